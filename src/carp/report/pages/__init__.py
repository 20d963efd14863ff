"""Sheets and pages: views, search results, near-duplicates."""
