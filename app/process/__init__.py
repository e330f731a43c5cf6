"""The life of the process: start, signals, background tasks, readiness, disk, clock, logs."""

from app.process.background_tasks import announce, keep_notes, tell_outages, trim_log
from app.process.clock_check import check_clock, judge_clock, keep_time
from app.process.disk import Disk
from app.process.life import (
    Lanes,
    Server,
    ThreadServer,
    allow_connections,
    bind,
    stop_signals,
    supervise,
    url_of,
)
from app.process.logging_setup import configure_logging, lines_left_out
from app.process.readiness import readiness_of
from app.process.stderr import lines_lost, protect_stderr
from app.process.traces import Traces, tracing
from app.process.workers import run_workers, workers_of

__all__ = [
    "Disk",
    "Lanes",
    "Server",
    "ThreadServer",
    "Traces",
    "allow_connections",
    "announce",
    "bind",
    "check_clock",
    "configure_logging",
    "judge_clock",
    "keep_notes",
    "keep_time",
    "lines_left_out",
    "lines_lost",
    "protect_stderr",
    "readiness_of",
    "run_workers",
    "stop_signals",
    "supervise",
    "tell_outages",
    "tracing",
    "trim_log",
    "url_of",
    "workers_of",
]
