"""The archive every hour and the audit every day, by Airflow. Workers have gateway-pipeline and Java 17."""

from datetime import datetime, timedelta

from airflow import DAG
from airflow.operators.bash import BashOperator

ALONE = {"start_date": datetime(2026, 1, 1), "catchup": False, "max_active_runs": 1}

with DAG("gateway_archive", schedule="@hourly", **ALONE):
    BashOperator(
        task_id="archive",
        bash_command="gateway-pipeline archive --source=kafka://kafka:9092/events --out=s3a://lake/events"
        " --checkpoint=s3a://lake/events.checkpoint --once",
        retries=3,  # the table's ledger knows what an ended run has stored
        retry_delay=timedelta(minutes=5),
    )

with DAG("gateway_audit", schedule="@daily", **ALONE):
    BashOperator(
        task_id="audit",
        bash_command="gateway-pipeline audit --source=delta://s3a://lake/events"
        " --against=kafka://kafka:9092/events",
        retries=0,  # exit code 1 is the verdict VIOLATED
    )
