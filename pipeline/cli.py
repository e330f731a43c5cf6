"""
The command line of the jobs. stdout is for results only; progress and errors go to stderr.

Exit codes: 0 done, and for audit clean; 1 audit found a violation; 2 the job failed, was told
something wrong, or could not judge; 130 Ctrl-C.
"""

import os
import sys
import traceback
import warnings
from collections.abc import Sequence

import typer
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from pipeline.errors import PipelineError
from pipeline.jobs.archive import archive
from pipeline.jobs.audit import audit
from pipeline.jobs.clean import clean
from pipeline.jobs.compact import compact
from pipeline.jobs.minute_counts import minute_counts
from pipeline.jobs.replay import replay
from pipeline.jobs.sessionize import sessionize
from pipeline.runtime.session import DEBUG_VARIABLE

EXIT_FAILED, EXIT_INTERRUPTED = 2, 130
SENTENCE_CHARACTERS_MAX = 600
CAUSE = "Caused by: "
TRACEBACK = "Traceback (most recent call last):"
DEBUG = "--debug"

app = typer.Typer(
    name="pipeline",
    help="Spark jobs over the clean topic of the gateway.",
    epilog=f"{DEBUG}, anywhere, or {DEBUG_VARIABLE}=1: show stacks where something fails.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def pipeline() -> None:
    """Take the options that stand before a job."""


for job in (archive, audit, minute_counts, sessionize, replay, clean, compact):
    app.command(job.__name__)(job)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line: what follows the program's name, or these arguments."""
    # Spark's own use of what pandas and Python have deprecated is no news for the user.
    warnings.simplefilter("ignore")
    told = list(sys.argv[1:] if arguments is None else arguments)
    if DEBUG in told:
        os.environ[DEBUG_VARIABLE] = "1"
    try:
        app([argument for argument in told if argument != DEBUG])
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    except Exception as err:
        # Whatever it is, it is no verdict: 1 would say that a topic is violated.
        if os.environ.get(DEBUG_VARIABLE):
            traceback.print_exc()
        print(f"pipeline: {_sentence(err)}", file=sys.stderr)
        sys.exit(EXIT_FAILED)


def _sentence(err: Exception) -> str:
    """Return what happened and why, without a stack of Python's or the JVM's."""
    text = str(err)
    if isinstance(err, PipelineError):
        return text
    # A failure inside a Python source arrives wrapped in Spark's words about workers.
    if (place := text.rfind("PipelineError: ")) >= 0:
        return text[place + len("PipelineError: ") :].splitlines()[0]
    if not isinstance(err, PySparkException | Py4JError):
        return f"{type(err).__name__}: {text} ({DEBUG} shows where)"[:SENTENCE_CHARACTERS_MAX]
    # What our own code raised within Spark: the first line of its traceback that is not indented.
    if (place := text.find(TRACEBACK)) >= 0:
        raised = [line for line in text[place:].splitlines()[1:] if line and not line[0].isspace()]
        return f"{(raised or [TRACEBACK])[0][:SENTENCE_CHARACTERS_MAX]} ({DEBUG} shows where)"
    lines = [line.strip(" :") for line in text.splitlines() if line.strip() and not line.startswith("\tat ")]
    told = [line for line in lines if not line.startswith(("An error occurred while calling", CAUSE))]
    causes = [line.removeprefix(CAUSE) for line in lines if line.startswith(CAUSE)]
    return ": ".join([*told[:1], *causes[-1:]])[:SENTENCE_CHARACTERS_MAX]
