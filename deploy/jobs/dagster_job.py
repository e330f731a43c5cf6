"""The archive every hour by Dagster; its workers have gateway-pipeline and Java 17."""

import subprocess

from dagster import Definitions, RetryPolicy, ScheduleDefinition, job, op

ARCHIVE = (
    "gateway-pipeline archive --source=kafka://kafka:9092/events --out=s3a://lake/events"
    " --checkpoint=s3a://lake/events.checkpoint --once"
)


@op(retry_policy=RetryPolicy(max_retries=3, delay=300))  # the ledger knows what an ended run has stored
def archive() -> None:
    subprocess.run(ARCHIVE.split(), check=True)


@job(tags={"dagster/concurrency_key": "gateway-archive"})  # one at a time
def gateway_archive() -> None:
    archive()


defs = Definitions(schedules=[ScheduleDefinition(job=gateway_archive, cron_schedule="7 * * * *")])
