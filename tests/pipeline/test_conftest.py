"""Claim: a test that is cut off in the middle of a call to Spark fails alone."""

from typing import Any

from pyspark import SparkContext
from pyspark.sql import SparkSession

from tests.pipeline.conftest import begin_anew_with_the_jvm

FORGET_AN_OBJECT = b"m\nd\no999999\ne\n"  # py4j's words


def test_answer_that_nobody_read_is_not_taken_for_that_of_the_next_call(spark: SparkSession) -> None:
    assert spark.range(3).count() == 3
    gateway: Any = SparkContext._gateway
    gateway._gateway_client.get_thread_connection().socket.sendall(FORGET_AN_OBJECT)

    begin_anew_with_the_jvm()

    assert spark.range(4).count() == 4
