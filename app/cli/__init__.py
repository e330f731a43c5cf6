"""The command line. Commands import their modules when they run, so that `--help` is fast."""

from app.cli.commands import main

__all__ = ["main"]
