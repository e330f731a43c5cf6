"""A simulated world for the core: seeded, deterministic, as hostile as the real one."""
