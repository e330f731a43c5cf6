"""The edge: HTTP, settings, command line. Stands on `dedupe`; app.main alone chooses implementations."""
