"""Real logs and indexes behind the core's protocols. Adapters import the core, never each other."""
