"""Batches in a fixed order: order, loader, quarantine of bad files, images held in memory."""
