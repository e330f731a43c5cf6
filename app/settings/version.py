"""The gateway's version, as installed."""

from importlib.metadata import version

VERSION = version("idempotent-ingestion-gateway")
