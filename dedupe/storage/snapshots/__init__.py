"""Copies of indexes in object storage, from which a lost index is restored faster than from the log."""
