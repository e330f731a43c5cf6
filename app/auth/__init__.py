"""Write keys, their file, quotas, and the limits of the ingest port."""
