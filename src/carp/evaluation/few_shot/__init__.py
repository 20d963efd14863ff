"""Few-shot evaluation: what is drawn, and the classifiers that are trained on it."""
