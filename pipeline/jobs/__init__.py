"""One module a job: its options, and read -> transform -> write."""
