"""Inspection of images before training: scans, throughput, sizes, altered copies."""
