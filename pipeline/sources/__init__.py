"""Where records are read from, and what is known of the place: topics, the embedded log, lakes."""

from pipeline.embedded_log import GatewayLogSource, read_partitions
from pipeline.sources.extent import Ranges, ranges_of, records_ends, span_of, undecided_below
from pipeline.sources.kafka import Standing, standings
from pipeline.sources.origin import Origin, origin_of
from pipeline.sources.records import (
    NAMED,
    KafkaSource,
    LakeSource,
    LogSource,
    Offsets,
    Source,
    Span,
    absolute,
    is_named,
    parse_source,
    quoted,
    read_lake,
    read_records,
    stream_records,
    within,
)

__all__ = [
    "NAMED",
    "GatewayLogSource",
    "KafkaSource",
    "LakeSource",
    "LogSource",
    "Offsets",
    "Origin",
    "Ranges",
    "Source",
    "Span",
    "Standing",
    "absolute",
    "is_named",
    "origin_of",
    "parse_source",
    "quoted",
    "ranges_of",
    "read_lake",
    "read_partitions",
    "read_records",
    "records_ends",
    "span_of",
    "standings",
    "stream_records",
    "undecided_below",
    "within",
]
