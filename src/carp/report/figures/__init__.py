"""Figures about a run: each module first collects its data, then draws it on matplotlib axes."""
