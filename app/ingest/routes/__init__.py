"""The HTTP paths of the ingest port."""
