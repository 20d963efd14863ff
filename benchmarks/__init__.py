"""Each file times or scores CARP beside its peers in one run."""
