"""
How commands run and end. stdout is for data only; logs, warnings and errors go to stderr.

Exit codes: 0 done or stopped in order, 1 an error that may pass, 2 wrong usage or settings, 3 the
log was written under another identity secret or partition count, 128 + n ended at once by a second
signal n.
"""

import asyncio
import os
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import typer

from dedupe.errors import ConfigurationError, GatewayError, IdentityMismatchError

EXIT_ERROR, EXIT_USAGE, EXIT_IDENTITY, EXIT_INTERRUPTED = 1, 2, 3, 130
CANCEL_AGAIN_S = 1.0
"""Longer than a command takes to end."""


def write_lines(lines: bytes) -> None:
    """Put whole lines of data on stdout, at once."""
    sys.stdout.buffer.write(lines)
    sys.stdout.buffer.flush()


def tell(sentence: str) -> None:
    """Say something that is no data, on stderr."""
    print(f"gateway: {sentence}", file=sys.stderr)


def tell_no_log(data_dir: Path) -> None:
    """Say why nothing is found, since a gateway may have been started with another folder."""
    tell(f"there is no log in {data_dir} yet; GATEWAY_DATA_DIR names another folder")


def run_async(
    main_coroutine: Coroutine[Any, Any, None],
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None,
) -> None:
    """Run a command's coroutine in an event loop of its own. Raises KeyboardInterrupt after Ctrl-C."""
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(_until_it_ends(main_coroutine))


async def _until_it_ends(work: Coroutine[Any, Any, None]) -> None:
    """
    Have a Ctrl-C, which cancels this, end what it waits for, however often that takes.

    anyio, on which httpx waits, cancels attempts of its own, and takes a Ctrl-C of that moment for one.
    """
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait({task})
    finally:
        while not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=CANCEL_AGAIN_S)
    await task


def guarded(run: Callable[[], None]) -> None:
    """Turn errors raised on purpose into one sentence a line and an exit code."""
    try:
        run()
    except ConfigurationError as err:
        _fail(err, EXIT_USAGE)
    except IdentityMismatchError as err:
        _fail(err, EXIT_IDENTITY)
    except GatewayError as err:
        _fail(err, EXIT_ERROR)
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None
    except BrokenPipeError:
        # The reader has seen enough. Python would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(err: GatewayError, code: int) -> None:
    for line in str(err).splitlines():
        tell(line)
    raise typer.Exit(code)
