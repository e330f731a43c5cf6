"""A soak test, short because all sizes are small."""
