"""Find similar images by their features: index, neighbours, near-duplicates."""
