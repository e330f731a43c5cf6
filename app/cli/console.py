"""
Output and exit codes of commands. stdout is for data only; logs, warnings and errors go to stderr.

Exit codes: 0 done or stopped in order, 1 an error that may pass, 2 wrong usage or settings, 3 the log was
written under another identity secret or partition count, 128 + n ended at once by a second signal n.
"""

import asyncio
import functools
import os
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import typer

from dedupe.model.errors import ConfigurationError, GatewayError, IdentityMismatchError

EXIT_ERROR, EXIT_USAGE, EXIT_IDENTITY, EXIT_INTERRUPTED = 1, 2, 3, 130

P = ParamSpec("P")
Result = TypeVar("Result")


def write_lines(lines: bytes) -> None:
    """Write whole lines of data to stdout, and flush it."""
    sys.stdout.buffer.write(lines)
    sys.stdout.buffer.flush()


def note(sentence: str) -> None:
    """Write a sentence to stderr."""
    print(f"gateway: {sentence}", file=sys.stderr)


def note_no_log(data_dir: Path) -> None:
    """Write to stderr that there is no log in the folder."""
    note(f"there is no log in {data_dir} yet; GATEWAY_DATA_DIR sets another folder")


def run_quietly(main_coroutine: Coroutine[Any, Any, Result], *, level: str = "warning") -> Result:
    """Return what a command's coroutine does, and log only lines of this level or above."""
    from app.telemetry.logging_setup import configure_logging

    configure_logging(level=level, is_json=False)
    return asyncio.run(main_coroutine)


def guarded(command: Callable[P, None]) -> Callable[P, None]:
    """Return a command whose expected errors become lines on stderr and an exit code."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except ConfigurationError as err:
            _fail(err, EXIT_USAGE)
        except IdentityMismatchError as err:
            _fail(err, EXIT_IDENTITY)
        except GatewayError as err:
            _fail(err, EXIT_ERROR)
        except KeyboardInterrupt:
            raise typer.Exit(EXIT_INTERRUPTED) from None
        except BrokenPipeError:
            # The reader of stdout has ended. Python would fail again when it flushes at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    return run


def _fail(err: GatewayError, code: int) -> None:
    for line in str(err).splitlines():
        note(line)
    raise typer.Exit(code)
