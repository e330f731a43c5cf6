"""Claim: an option is parsed, or refused with a sentence that shows its format."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import typer.main

from pipeline.cli import app
from pipeline.errors import UsageError
from pipeline.runtime.options import duration, key_value, moment, offsets
from pipeline.sources.kafka_options import client_option, with_options
from pipeline.sources.records import KafkaSource, LakeSource, LogSource, kafka_options, parse_source

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
        (client_option, "client.rack=eu-1a", ("kafka.client.rack", "eu-1a")),
        (client_option, "kafka.fetch.min.bytes=1", ("kafka.fetch.min.bytes", "1")),
        (client_option, "minPartitions=8", ("minPartitions", "8")),
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
        (client_option, "client.rack", "is not NAME=VALUE"),
        (client_option, "isolation.level=read_uncommitted", "committed records only"),
        (client_option, "kafka.isolation.level=read_uncommitted", "committed records only"),
        (client_option, "group.id=mine", "groupIdPrefix"),
        (client_option, "enable.auto.commit=true", "the ledger of the output"),
        (client_option, "auto.offset.reset=latest", "the ledger of the output"),
        (client_option, "value.deserializer=x.Y", "the bytes as they are"),
        (client_option, "interceptor.classes=x.Y", "the bytes as they are"),
        (client_option, "check.crcs=false", "must not pass"),
        (client_option, "bootstrap.servers=a:1", "--source names the brokers"),
        (client_option, "sasl.jaas.config=x", "GATEWAY_KAFKA_SASL"),
        (client_option, "ssl.truststore.location=/x", "GATEWAY_KAFKA_SSL_CA_FILE"),
        (client_option, "failOnDataLoss=false", "is no option of Kafka's consumer"),
        (client_option, "startingOffsets=latest", "is no option of Kafka's consumer"),
        (parse_source, "kafka://broker:9092", "use kafka://host:port/topic"),
        (parse_source, "csv:///data", "use kafka://host:port/topic"),
    ],
)
def test_option_that_makes_no_sense_is_refused(parse: Callable[[str], Any], text: str, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        parse(text)


def test_options_of_the_consumer_win_over_what_a_job_prefers() -> None:
    given = [client_option("max.poll.records=7"), client_option("groupIdPrefix=team-a")]

    topic = with_options(KafkaSource("a:1", "events"), given)

    assert isinstance(topic, KafkaSource)
    of_spark = kafka_options(topic, "archive")
    assert of_spark["kafka.max.poll.records"] == "7"
    assert of_spark["groupIdPrefix"] == "team-a"
    assert of_spark["kafka.isolation.level"] == "read_committed"


def test_options_of_the_consumer_are_refused_where_there_is_none() -> None:
    with pytest.raises(UsageError, match="--kafka is for kafka://, and this is delta:///lake"):
        with_options(LakeSource("delta", "/lake"), [client_option("client.rack=a")])


def test_each_job_that_reads_a_topic_has_options_of_the_consumer() -> None:
    commands: Any = typer.main.get_command(app)
    options = {name: {option.name for option in each.params} for name, each in commands.commands.items()}
    without = {name for name, known in options.items() if "source" in known and "kafka" not in known}
    assert without == {"compact"}
