"""
The command line of the jobs. stdout is for results only; progress and errors go to stderr.

Exit codes: 0 done, and for audit clean; 1 audit found a violation; 2 the job failed, was told
something wrong, or could not judge; 130 Ctrl-C.
"""

import sys
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

EXIT_FAILED, EXIT_INTERRUPTED = 2, 130
SENTENCE_CHARACTERS_MAX = 600

app = typer.Typer(
    name="pipeline",
    help="Spark jobs over the clean topic of the gateway.",
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
    try:
        app(arguments)
    except (PipelineError, PySparkException, Py4JError) as err:
        print(f"pipeline: {_sentence(err)}", file=sys.stderr)
        sys.exit(EXIT_FAILED)
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)


def _sentence(err: Exception) -> str:
    """Return what happened without the JVM's stack."""
    text = str(err)
    # A failure inside a Python source arrives wrapped in Spark's words about workers.
    if (place := text.rfind("PipelineError: ")) >= 0:
        text = text[place + len("PipelineError: ") :]
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("\tat ")]
    return " ".join(lines[:3])[:SENTENCE_CHARACTERS_MAX]
