"""Spark jobs that read the clean topic."""
