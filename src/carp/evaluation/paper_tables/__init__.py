"""The evaluations behind the paper's tables: which are needed, which are done, how long they take, and running them."""
