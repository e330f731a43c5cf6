"""Claim: a stream ends when it is stopped, and not because a broker or gateway does not answer."""

import threading
from pathlib import Path
from typing import Any

import httpx
import pytest

from pipeline.errors import PipelineError
from pipeline.runtime import stall, streams
from pipeline.runtime.lag import LagMonitor
from pipeline.runtime.stall import StallMonitor
from pipeline.sinks import publisher
from pipeline.sinks.publisher import PostedCounts
from pipeline.sources.embedded_log import LogStreamReader
from pipeline.sources.records import KafkaSource, LogSource
from tests.support.logs import append_to_log, trim_log
from tests.support.processes import HOST, free_port
from tests.support.records import RecordMaker

SILENT = KafkaSource(f"{HOST}:{free_port()}", "events")
EVENTS = [publisher._Posted("web", b"{}", None, None)] * 3


class BusyQuery:
    """A query that catches up: always in a batch, and of its reports Spark keeps the last hundred."""

    isActive = True

    def __init__(self) -> None:
        self.status = {"isTriggerActive": True}
        self._reports = 0

    @property
    def recentProgress(self) -> list[Any]:
        return [self.lastProgress] * 100

    @property
    def lastProgress(self) -> Any:
        self._reports += 1
        return type("Progress", (), {"batchId": 4000 + self._reports // 3, "timestamp": "now"})


@pytest.mark.regression("A job that was told to stop caught up first.")
def test_stop_while_catching_up_waits_for_one_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "FINISH_TIMEOUT_S", 20.0)
    query: Any = BusyQuery()
    streams._finish_batch(query)

    assert query._reports < 10


def test_broker_that_does_not_answer_is_reported_and_ends_nothing() -> None:
    monitor = StallMonitor(SILENT, interval_s=0)
    while (found := monitor.poll()) is None:
        pass
    assert isinstance(found, PipelineError)


def test_stream_does_not_wait_for_the_check_of_stalls(monkeypatch: pytest.MonkeyPatch) -> None:
    is_answered, checks = threading.Event(), []

    def slow(_source: object) -> list[str]:
        checks.append(1)
        is_answered.wait()
        return []

    monkeypatch.setattr(stall, "stalled_partitions", slow)
    monitor = StallMonitor(SILENT, interval_s=0)
    first = [monitor.poll() for _ in range(100)]
    is_answered.set()
    while monitor.poll() is None:
        pass

    assert first == [None] * 100
    assert len(checks) == 1


def test_stream_of_a_log_does_not_step_over_what_retention_deleted(tmp_path: Path) -> None:
    maker = RecordMaker(1)
    append_to_log(tmp_path, {0: [maker.record(maker.event_of(0)) for _ in range(10)]})
    trim_log(tmp_path, 0, 5)
    reader = LogStreamReader({"path": str(tmp_path), "topic": "events"})

    assert len(reader.partitions({"0": 5}, {"0": 10})) == 1
    with pytest.raises(PipelineError, match="begins at 5, and this job has read only up to 4"):
        reader.partitions({"0": 4}, {"0": 10})


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_answer_that_will_pass_is_waited_out(status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publisher, "RETRY_AFTER_S", 0.0)
    answers = iter([httpx.Response(status, text="<html>"), httpx.Response(status), ok(accepted=3)])

    assert post(lambda _: next(answers)) == PostedCounts(accepted=3)


@pytest.mark.parametrize("status", [301, 401, 403, 404])
def test_answer_that_will_stay_ends_the_job(status: int) -> None:
    with pytest.raises(PipelineError, match=f"the gateway refused: {status}"):
        post(lambda _: httpx.Response(status))


def ok(*, accepted: int) -> httpx.Response:
    return httpx.Response(200, json={"success": True}, headers={"Gateway-Accepted": str(accepted)})


def post(answer: Any) -> PostedCounts:
    with httpx.Client(base_url="http://gateway", transport=httpx.MockTransport(answer)) as client:
        return publisher._post(client, "web", EVENTS)


def test_lag_is_known_before_the_first_batch_and_while_one_hangs(tmp_path: Path) -> None:
    maker = RecordMaker(2)
    append_to_log(tmp_path, maker.lanes([maker.event_of(n % 2) for n in range(20)]))
    monitor = LagMonitor(LogSource(str(tmp_path), "events"), interval_s=0)

    assert lag_at(monitor, {}) == {0: 10, 1: 10}
    append_to_log(tmp_path, maker.lanes([maker.event_of(0)]))
    while lag_at(monitor, {0: 10, 1: 10}) != {0: 1, 1: 0}:
        pass
    assert lag_at(LagMonitor(SILENT), {}) == {}


def lag_at(monitor: LagMonitor, read_to: dict[int, int]) -> dict[int, int]:
    while (lag := monitor.poll(read_to)) is None:
        pass
    return lag
