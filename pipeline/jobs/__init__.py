"""One module a job: what it is told, and read -> transform -> write."""
