"""The life of the process: start, signals, background tasks, readiness, disk, clock, logs."""
