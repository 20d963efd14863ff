"""Features of images: extraction, storage on disk, and files for other programs."""
