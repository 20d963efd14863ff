"""Images behind addresses (s3://, gs://, https://, hf:// and others of fsspec): requests, the cache of shards."""
