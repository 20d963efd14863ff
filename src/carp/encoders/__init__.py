"""Load any encoder: a run, released weights of another method, an export; write exports."""
