"""The inputs of this gateway: what was read, what became of it, what is left, and why one is stopped."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from fastapi import FastAPI, Response
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from app.admin.answers import json_answer
from app.admin.ingest_loop import IngestLoop
from app.admin.scopes import READ
from app.admin.scraped import ScrapedCollector
from app.inputs.inputs import Input, Inputs


class InputCollector(ScrapedCollector):
    """Metrics of inputs."""

    def __init__(self, inputs: Inputs) -> None:
        self._inputs = inputs

    def collect(self) -> Iterator[Metric]:
        records = CounterMetricFamily("gateway_input_records", "Records of inputs read", labels=["input"])
        empty = CounterMetricFamily(
            "gateway_input_empty_records", "Records of inputs without a value, skipped", labels=["input"]
        )
        events = CounterMetricFamily(
            "gateway_input_events", "Events of inputs by verdict", labels=["input", "result"]
        )
        stopped = GaugeMetricFamily(
            "gateway_input_stopped", "1 if an input is not read on until a restart", labels=["input"]
        )
        lag = GaugeMetricFamily(
            "gateway_input_lag_records",
            "Offsets of an input that are still to be read, as seen within 10 s",
            labels=["input", "partition"],
        )
        for each in self._inputs.inputs:
            name, counts = each.spec.name, asdict(each.counts)
            records.add_metric([name], counts.pop("records"))
            empty.add_metric([name], counts.pop("empty"))
            for result, count in counts.items():
                events.add_metric([name, result], count)
            stopped.add_metric([name], each.stopped is not None)
            for partition in each.partitions.values():
                if partition.lag is not None:
                    lag.add_metric([name, str(partition.number)], partition.lag)
        yield from (records, empty, events, stopped, lag)


def add_inputs(app: FastAPI, inputs: Inputs | None, ingest_loop: IngestLoop) -> None:
    """Add the path."""

    def read() -> list[dict[str, Any]]:
        return [] if inputs is None else [_document_of(each) for each in inputs.inputs]

    @app.get("/admin/v1/inputs", dependencies=[READ])
    async def get_inputs() -> Response:
        """Return each input with its counts and partitions."""
        return json_answer({"inputs": await ingest_loop.read(read)})


def _document_of(each: Input) -> dict[str, Any]:
    lags = [partition.lag for partition in each.partitions.values() if partition.lag is not None]
    return {
        "input": each.spec.name,
        "topic": each.spec.topic,
        "source": each.spec.source,
        "stopped": each.stopped,
        **asdict(each.counts),
        "lag": sum(lags) if lags else None,
        "partitions": [
            {
                "partition": partition.number,
                "position": partition.position,
                "committed": partition.committed,
                "end": partition.end,
            }
            for _, partition in sorted(each.partitions.items())
        ],
    }
