"""Files on disk: atomic writes, digests, locks, and safe reading of files that a user names."""
