"""Protocols: stored features in, named values out. A protocol is a file; none imports another."""
