"""
The command line of the jobs. Results go to stdout; progress and errors go to stderr.

Exit codes: 0 done, and for audit clean; 1 audit found a violation; 2 failed, wrong usage, or no verdict;
130 Ctrl-C.
"""

import os
import re
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
from pipeline.jobs.duplicates import duplicates
from pipeline.jobs.erase import erase
from pipeline.jobs.minute_counts import minute_counts
from pipeline.jobs.replay import replay
from pipeline.jobs.sessionize import sessionize
from pipeline.jobs.suspects import suspects
from pipeline.jobs.tables import tables
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


JOBS = (
    *(archive, tables, audit, minute_counts, sessionize, replay, clean, compact, erase),
    *(suspects, duplicates),
)
for job in JOBS:
    app.command(job.__name__)(job)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line with these arguments; default: those of the process."""
    # Spark uses deprecated parts of pandas and Python.
    warnings.simplefilter("ignore")
    words = list(sys.argv[1:] if arguments is None else arguments)
    if DEBUG in words:
        os.environ[DEBUG_VARIABLE] = "1"
    try:
        app([word for word in words if word != DEBUG])
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    except Exception as err:
        # Never exit with 1, which is the audit's verdict "violated".
        if os.environ.get(DEBUG_VARIABLE):
            traceback.print_exc()
        print(f"pipeline: {_sentence(err)}", file=sys.stderr)
        sys.exit(EXIT_FAILED)


_CHECKSUM_DIFFERS = re.compile(r"ChecksumException: Checksum error: (\S+)")
_NO_FILE_SYSTEM = re.compile(r'Class (\S+FileSystem) not found|No FileSystem for scheme "?(\w+)')


def _sentence(err: Exception) -> str:
    """Return the error and its cause in one sentence, without the stack of Python or the JVM."""
    text = str(err)
    if isinstance(err, PipelineError):
        return text
    if known := _known(text):
        return known
    # Spark wraps the error of a Python source.
    if (place := text.rfind("PipelineError: ")) >= 0:
        return text[place + len("PipelineError: ") :].splitlines()[0]
    if not isinstance(err, PySparkException | Py4JError):
        return f"{type(err).__name__}: {text} ({DEBUG} shows where)"[:SENTENCE_CHARACTERS_MAX]
    # An error of a Python worker: the first line of its traceback that is not indented.
    if (place := text.find(TRACEBACK)) >= 0:
        raised = [line for line in text[place:].splitlines()[1:] if line and not line[0].isspace()]
        return f"{(raised or [TRACEBACK])[0][:SENTENCE_CHARACTERS_MAX]} ({DEBUG} shows where)"
    lines = [line.strip(" :") for line in text.splitlines() if line.strip() and not line.startswith("\tat ")]
    messages = [line for line in lines if not line.startswith(("An error occurred while calling", CAUSE))]
    causes = [line.removeprefix(CAUSE) for line in lines if line.startswith(CAUSE)]
    return ": ".join([*messages[:1], *causes[-1:]])[:SENTENCE_CHARACTERS_MAX]


def _known(text: str) -> str | None:
    """Return what to do about an error of Spark that is known here."""
    if found := _CHECKSUM_DIFFERS.search(text):
        return (
            f"{found[1]} differs from its checksum: if another program wrote it, delete the file .NAME.crc "
            "beside it, which is of the one before; else the disk has changed it, so restore it"
        )
    if found := _NO_FILE_SYSTEM.search(text):
        return (
            f"Spark has no jar of the file system {found[1] or found[2]}: --conf spark.jars.packages=... "
            "names it, for s3a:// org.apache.hadoop:hadoop-aws:3.4.1 (docs/pipeline.md)"
        )
    return None
