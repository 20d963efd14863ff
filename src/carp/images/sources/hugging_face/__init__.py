"""Images in tables, as Hugging Face `datasets` lays them out: columns, objects, folders of `save_to_disk`."""
