"""Output for people: tables, plots and pages."""
