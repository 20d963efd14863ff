"""Linear classifiers on frozen features, over stored features or random crops."""
