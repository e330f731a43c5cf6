"""Whole days of log time, which a backfill replaces."""

from datetime import UTC, date, datetime, time, timedelta
from typing import NamedTuple

from pyspark.sql import Column
from pyspark.sql import functions as F

from pipeline.errors import UsageError
from pipeline.sources.records import Selection

NOT_IN_PARQUET = (
    "days cannot be replaced in a folder of Parquet files, where readers would see them missing or twice "
    "meanwhile: compute them into another --out, or use --format delta or iceberg"
)


class Days(NamedTuple):
    """Whole days of log time, in UTC."""

    first: date
    end: date
    """The day after the last one."""

    def __str__(self) -> str:
        return f"{self.first} to {self.end - timedelta(days=1)}"

    def times_around(self, more: timedelta) -> Selection:
        """The log times of these days, and of so much before and after them."""
        return Selection(_midnight(self.first) - more, _midnight(self.end) + more)

    @property
    def where(self) -> Column:
        """Whether a row is of these days, by its column `dt`."""
        return (F.col("dt") >= f"{self.first}") & (F.col("dt") < f"{self.end}")


def days_of(since: datetime | None, until: datetime | None, *, is_parquet: bool) -> Days | None:
    """
    Return the days of an output that `--since` and `--until` name; None if there is neither.

    Raises:
        UsageError: one is missing, they are no whole days, or the output is a folder of Parquet files.
    """
    if since is None and until is None:
        return None
    if since is None or until is None:
        raise UsageError("days are replaced between --since and --until: name both")
    first, end = since.astimezone(UTC), until.astimezone(UTC)
    if any(moment.time() != time() for moment in (first, end)) or first >= end:
        raise UsageError("--since and --until name whole days in UTC: --since 2026-01-30 --until 2026-01-31")
    if is_parquet:
        raise UsageError(NOT_IN_PARQUET)
    return Days(first.date(), end.date())


def _midnight(day: date) -> datetime:
    return datetime.combine(day, time(), UTC)
