"""What features and prototypes show: a map, clusters, prototypes with their images, labels from a few examples."""
