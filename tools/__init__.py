"""Programs for those who work on the gateway; no part of the wheel."""
