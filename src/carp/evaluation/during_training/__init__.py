"""What `carp train` measures before and while a run trains: k-NN, or the recognition of views without labels."""
