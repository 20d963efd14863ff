"""Pictures and pages to look at: sheets of views, search results, near-copies."""
