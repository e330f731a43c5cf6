"""Where jobs write: each sink stores every batch exactly once, however often the job is killed."""
