"""Where jobs write: each sink stores every batch exactly once."""
