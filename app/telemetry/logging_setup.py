"""
Logging: all lines, those of libraries included, go to stderr in one format.

A service protects stderr first (app.telemetry.stderr), so that logging never fails and never waits.
Tracebacks have no local variables, which could be events or keys.
"""

import logging
import sys
from functools import partial

import structlog
from structlog.typing import EventDict, Processor

from app.telemetry.line_limit import LineLimit

_LIMIT = LineLimit()
"""One for the process: all loggers write to the same stderr."""


def lines_left_out() -> int:
    """Return the number of lines dropped by the limit."""
    return _LIMIT.left_out


def configure_logging(*, level: str, is_json: bool, worker: str | None = None) -> None:
    """Configure structlog, and the same renderer for lines of libraries; lines have the worker's name."""
    shared: list[Processor] = [
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if worker is not None:
        shared.append(partial(_name, worker))
    render: list[Processor] = (
        [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
        if is_json
        else [
            structlog.dev.ConsoleRenderer(
                colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
            )
        ]
    )
    number = logging.getLevelNamesMapping()[level.upper()]
    structlog.configure(
        processors=[_LIMIT, *shared, *render],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),  # a line at once: workers share stderr
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(_LIMIT)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *render],
        )
    )
    logging.basicConfig(handlers=[handler], level=max(number, logging.WARNING), force=True)


def _name(worker: str, _logger: object, _method: str, event: EventDict) -> EventDict:
    """Add the worker's name, since workers may share one stderr."""
    return {"worker": worker, **event}
