"""The command line. Its commands import what they need when they run, so that `--help` is quick."""

from app.cli.commands import main

__all__ = ["main"]
