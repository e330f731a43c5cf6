"""Claim: the audit names what the core refuses as foreign, what misleads readers besides, and no more."""

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from dedupe.model.types import NewRecord
from pipeline.audit.checks import ALTERED, VALUE, VERSION, check_records, faulty
from pipeline.audit.checks import FOREIGN as FOREIGN_KIND
from pipeline.sources.records import KafkaSource, Selection, read_records
from tests.conftest import TopicFactory
from tests.support.foreign import CHANGED, FOREIGN, GENUINE, ODD
from tests.support.records import fill_topic

CHANGED_ONES = {f"changed: {what}": record for what, record in CHANGED.items()}
ALL: dict[str, NewRecord] = FOREIGN | ODD | GENUINE | CHANGED_ONES


async def test_every_record_that_no_gateway_wrote_is_named_and_no_other(
    spark: SparkSession, kafka_bootstrap: str, topic: TopicFactory
) -> None:
    name = await topic("foreign", configs={"retention.ms": "-1"})
    await fill_topic(kafka_bootstrap, name, {0: list(ALL.values())}, batch_records=len(ALL))

    records = read_records(spark, KafkaSource(kafka_bootstrap, name), Selection())
    checked = check_records(records, 1).select(
        "*", *(F.lit(None).cast("bigint").alias(f"{what}_before") for what in ("seq", "offset", "time"))
    )
    rows = faulty(checked).collect()

    found = {row["offset"]: row["kind"] for row in rows}
    kinds = {label: found.get(offset) for offset, label in enumerate(ALL)}
    expected: dict[str, str | None] = {}
    expected |= dict.fromkeys(FOREIGN, FOREIGN_KIND) | dict.fromkeys(ODD, VALUE)
    expected |= {label: VERSION for label in kinds if label.startswith("version")}
    expected |= {label: FOREIGN_KIND for label in kinds if label.startswith("lane_seq")}
    expected |= {label: ALTERED for label in kinds if label.startswith("checksum")}
    expected |= dict.fromkeys(CHANGED_ONES, ALTERED) | dict.fromkeys(GENUINE)
    assert kinds == expected
    assert len(rows) == len(found)
