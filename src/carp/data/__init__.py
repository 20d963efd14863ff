"""From files to views: sources, decoding, view parameters, the two ways to render them, and batches."""
