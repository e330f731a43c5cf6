"""What jobs compute: pure functions from DataFrame to DataFrame."""
