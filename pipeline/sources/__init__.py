"""Where records are read from: topics, the embedded log, archives."""
