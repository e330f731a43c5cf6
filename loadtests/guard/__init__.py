"""A guard against slower code that needs no clock: what an event costs is counted and compared."""
