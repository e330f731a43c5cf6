"""The core: decides which events are new, and stores each of them once."""
