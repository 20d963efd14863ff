"""Few-shot evaluation: the choice of images, and the classifiers that are trained on them."""
