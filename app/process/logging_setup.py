"""
Logging: everything on stderr, in one shape, whoever logs it.

A service protects stderr first (app.process.stderr), so that logging never fails and never waits. Tracebacks
are plain: a renderer that shows local variables would show events and keys.
"""

import logging
import sys

import structlog
from structlog.typing import Processor


def configure_logging(*, level: str, is_json: bool) -> None:
    """Set up structlog, and route what libraries log through the same renderer."""
    shared: list[Processor] = [
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
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
        processors=[*shared, *render],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *render],
        )
    )
    logging.basicConfig(handlers=[handler], level=max(number, logging.WARNING), force=True)
