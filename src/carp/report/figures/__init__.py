"""Figures about a run: each module collects its data first, then draws them on matplotlib axes."""
