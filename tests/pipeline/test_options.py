"""Claim: an option is parsed, or refused with a sentence that shows its format."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import UsageError
from pipeline.runtime.options import duration, key_value, moment, offsets
from pipeline.sources.records import KafkaSource, LakeSource, LogSource, parse_source

HERE = Path.cwd()


@pytest.mark.parametrize(
    ("parse", "text", "meaning"),
    [
        (duration, "90s", timedelta(seconds=90)),
        (duration, "7d", timedelta(days=7)),
        (moment, "2026-01-31T12:00Z", datetime(2026, 1, 31, 12, tzinfo=UTC)),
        (moment, "2026-01-31", datetime(2026, 1, 31, tzinfo=UTC)),
        (offsets, "0:100,1:250", {0: 100, 1: 250}),
        (offsets, '{"0": 100}', {0: 100}),
        (key_value, "web=key=", ("web", "key=")),
        (parse_source, "kafka://a:1,b:2/events", KafkaSource("a:1,b:2", "events")),
        (parse_source, "log:///data", LogSource("/data", "events")),
        (parse_source, "log://data?topic=other", LogSource(str(HERE / "data"), "other")),
        (parse_source, "delta://lake/events", LakeSource("delta", str(HERE / "lake/events"))),
        (parse_source, "iceberg://events", LakeSource("iceberg", str(HERE / "events"))),
        (parse_source, "delta://file:/lake", LakeSource("delta", "file:/lake")),
        (parse_source, "parquet://s3a://lake/events", LakeSource("parquet", "s3a://lake/events")),
    ],
)
def test_option_is_understood(parse: Callable[[str], Any], text: str, meaning: object) -> None:
    assert parse(text) == meaning


@pytest.mark.parametrize(
    ("parse", "text", "sentence"),
    [
        (duration, "7", "use 90s, 15m, 36h or 7d"),
        (moment, "noon", "use 2026-01-31T12:00Z"),
        (offsets, "100", "use 0:100,1:250"),
        (offsets, "{", "use 0:100,1:250"),
        (key_value, "web", "is not NAME=VALUE"),
        (parse_source, "kafka://broker:9092", "use kafka://host:port/topic"),
        (parse_source, "csv:///data", "use kafka://host:port/topic"),
    ],
)
def test_option_that_makes_no_sense_is_refused(parse: Callable[[str], Any], text: str, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        parse(text)
