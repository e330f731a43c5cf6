"""How a job begins that reads a topic or an archive into an output, and says so."""

from collections.abc import Sequence

from pyspark.sql import SparkSession

from pipeline.runtime.progress import progress_logger
from pipeline.runtime.session import start_session
from pipeline.sources.origin import Origin, origin_of
from pipeline.sources.records import Source


def begin(
    job: str,
    source: Source,
    output: Source | None,
    *,
    remote: str | None,
    conf: Sequence[tuple[str, str]] | None,
) -> tuple[SparkSession, Origin]:
    """
    Ask the source what it is, then start Spark.

    Args:
        job: its name.
        source: what it reads.
        output: where it writes, if Spark does.
        remote: see start_session.
        conf: see start_session.

    Raises:
        PipelineError: the source does not answer, or is none.
    """
    log_progress = progress_logger(job)
    log_progress(f"asking {source}")
    origin = origin_of(source)
    log_progress("starting Spark")
    spark = start_session(job, source, output, remote=remote, conf=conf)
    log_progress(f"reading {source}")
    return spark, origin
