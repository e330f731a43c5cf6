"""The inputs of this gateway: what was read, what became of it, what is left, and why one is stopped."""

from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Annotated, Any, Literal

from fastapi import FastAPI, Query, Response
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from app.admin.answers import NotFoundError, json_answer
from app.admin.ingest_loop import IngestLoop
from app.admin.scopes import READ, WRITE
from app.admin.scraped import ScrapedCollector
from app.inputs.inputs import Input, Inputs
from app.inputs.partition import InputPartition
from app.inputs.seeks import SeekTo

_ENDS: dict[str, Literal["earliest", "latest"]] = {"earliest": "earliest", "latest": "latest"}


class InputCollector(ScrapedCollector):
    """Metrics of inputs."""

    def __init__(self, inputs: Inputs) -> None:
        self._inputs = inputs

    def collect(self) -> Iterator[Metric]:
        labels = ["input", "partition"]
        records = CounterMetricFamily("gateway_input_records", "Records of inputs read", labels=labels)
        empty = CounterMetricFamily(
            "gateway_input_empty_records", "Records of inputs without a value, skipped", labels=labels
        )
        misdelivered = CounterMetricFamily(
            "gateway_input_misdelivered",
            "Times that other records of inputs were delivered than the next ones",
            labels=labels,
        )
        throttled = CounterMetricFamily(
            "gateway_input_throttled_seconds",
            "Seconds that inputs paused since events_per_s or a quota of their source was used up",
            labels=labels,
        )
        events = CounterMetricFamily(
            "gateway_input_events", "Events of inputs by verdict", labels=[*labels, "result"]
        )
        stopped = GaugeMetricFamily(
            "gateway_input_stopped", "1 if an input is not read on until it is resumed", labels=["input"]
        )
        paused = GaugeMetricFamily(
            "gateway_input_paused", "1 while an operator has paused an input", labels=["input"]
        )
        lag = GaugeMetricFamily(
            "gateway_input_lag_records",
            "Offsets of an input that are still to be read, as seen within 10 s",
            labels=labels,
        )
        for each in self._inputs.inputs:
            name = each.spec.name
            for number, of_partition in sorted(each.counts.items()):
                place, counts = [name, str(number)], asdict(of_partition)
                records.add_metric(place, counts.pop("records"))
                empty.add_metric(place, counts.pop("empty"))
                misdelivered.add_metric(place, counts.pop("misdelivered"))
                throttled.add_metric(place, counts.pop("throttled_s"))
                for result, count in counts.items():
                    events.add_metric([*place, result], count)
            stopped.add_metric([name], each.stopped is not None)
            paused.add_metric([name], each.control.told.is_paused)
            for partition in each.partitions.values():
                if partition.lag is not None:
                    lag.add_metric([name, str(partition.number)], partition.lag)
        yield from (records, empty, misdelivered, throttled, events, stopped, paused, lag)


def inputs_document(inputs: Inputs | None) -> list[dict[str, Any]]:
    """Return each input with its counts and the partitions that this process reads."""
    return [] if inputs is None else [_document_of(each) for each in inputs.inputs]


def add_inputs(app: FastAPI, inputs: Inputs | None, ingest_loop: IngestLoop) -> None:
    """Add the path that shows inputs."""

    @app.get("/admin/v1/inputs", dependencies=[READ])
    async def get_inputs() -> Response:
        """Return each input with its counts and partitions."""
        return json_answer({"inputs": await ingest_loop.read(lambda: inputs_document(inputs))})


def add_input_controls(app: FastAPI, inputs: Inputs | None, ingest_loop: IngestLoop) -> None:
    """Add the paths that change how inputs are read."""

    def found(name: str) -> tuple[Inputs, Input]:
        each = None if inputs is None else inputs.by_name(name)
        if inputs is None or each is None:
            raise NotFoundError(detail=f"there is no input {name}")
        return inputs, each

    async def tell(name: str, word: str) -> dict[str, Any]:
        _, each = found(name)
        await (each.control.pause() if word == "pause" else each.control.resume())
        return {"input": name, "paused": each.control.told.is_paused}

    @app.post("/admin/v1/inputs/{name}/pause", dependencies=[WRITE])
    async def post_pause(name: str) -> Response:
        """Have no worker read on, also after restarts, until the input is resumed."""
        return json_answer(await ingest_loop.run(lambda: tell(name, "pause")))

    @app.post("/admin/v1/inputs/{name}/resume", dependencies=[WRITE])
    async def post_resume(name: str) -> Response:
        """Have an input read on that is paused or has stopped."""
        return json_answer(await ingest_loop.run(lambda: tell(name, "resume")))

    @app.post("/admin/v1/inputs/{name}/seek", dependencies=[WRITE])
    async def post_seek(
        name: str,
        to: Annotated[str, Query(pattern=r"^(earliest|latest|[0-9]{1,18})$")],
        partition: Annotated[int | None, Query(ge=0)] = None,
        reads_past_window: bool = False,
    ) -> Response:
        """
        Have an input read on at an offset, `earliest` or `latest`: one partition, or all of them.

        Where records are older than the window it is refused, unless `reads_past_window` is true: if they
        have been read before, they would be stored twice.
        """

        async def seek() -> dict[str, Any]:
            all_inputs, each = found(name)
            place: SeekTo = int(to) if to.isdigit() else _ENDS[to]
            offsets = await all_inputs.seek(each, place, partition, reads_past_window=reads_past_window)
            return {"input": name, "offsets": {str(number): at for number, at in offsets.items()}}

        return json_answer(await ingest_loop.run(seek))


def _document_of(each: Input) -> dict[str, Any]:
    lags = [partition.lag for partition in each.partitions.values() if partition.lag is not None]
    return {
        "input": each.spec.name,
        "topic": each.spec.topic,
        "source": each.spec.source,
        "stopped": each.stopped,
        "paused": each.control.told.is_paused,
        **asdict(each.total),
        "lag": sum(lags) if lags else None,
        "records_per_s": _rate_of(each.partitions.values()),
        "partitions": [
            {
                "partition": partition.number,
                "position": partition.position,
                "committed": partition.committed,
                "end": partition.end,
                "lag": partition.lag,
                "records_per_s": partition.records_per_s,
                **asdict(partition.counts),
            }
            for _, partition in sorted(each.partitions.items())
        ],
    }


def _rate_of(partitions: Iterable[InputPartition]) -> float | None:
    rates = [each.records_per_s for each in partitions if each.records_per_s is not None]
    return sum(rates) if rates else None
