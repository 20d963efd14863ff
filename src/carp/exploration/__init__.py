"""What features and prototypes say about images: a map, clusters, prototypes with their images, labels from a few."""
