"""The evaluations behind the paper's tables: which there are, how long they take, which are done, and running them."""
