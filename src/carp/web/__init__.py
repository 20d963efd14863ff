"""The local web application of `carp explore`: what a browser may ask for, and the server that answers it."""
