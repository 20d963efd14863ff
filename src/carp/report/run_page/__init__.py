"""The page of `carp report`: one run, or several side by side."""
