"""The core: decides which events are new, and makes that decision survive anything."""
