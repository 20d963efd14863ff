"""Optimiser, schedules, the training step, the loop around it, and the health of a run."""
