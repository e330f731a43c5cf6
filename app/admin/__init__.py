"""The admin port: health, statistics and metrics, on a port and in a thread of their own."""
