"""Claim: settings are looked at hourly and soon after a doubt; each change is told once, and lanes obey."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from app.admin.setting_metrics import SettingCollector
from app.process import setting_watch
from app.process.setting_watch import LOOK_S, SettingWatch
from dedupe.model.errors import RetriableError
from dedupe.partition.queue import LaneQueue
from dedupe.storage.setting_problems import NOTHING_FOUND, Inspection, Level, Problem
from tests.support.settings import QUEUE_LIMITS
from tests.support.virtual_time import VirtualTimeLoop

WRONG = Problem(Level.UNSAFE, "events", "retention.ms", "topic events: retention.ms is 1, must be more")
HIDDEN = Problem(Level.NOT_SHOWN, "", "producer.id.expiration.ms", "broker 1: not shown")


class Cluster:
    def __init__(self) -> None:
        self.looks = 0
        self.found: Inspection | Exception = NOTHING_FOUND

    async def inspect(self) -> Inspection:
        self.looks += 1
        if isinstance(self.found, Exception):
            raise self.found
        return self.found


def run(history: Any) -> None:
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(history)


def samples(watch: SettingWatch) -> list[dict[str, str]]:
    (family,) = SettingCollector(watch).collect()
    return [sample.labels for sample in family.samples]


def test_wrong_setting_is_found_within_the_hour_or_after_a_doubt_and_told_once() -> None:
    async def history() -> None:
        cluster, queue = Cluster(), LaneQueue(QUEUE_LIMITS)
        lane: Any = SimpleNamespace(topic="events", queue=queue)
        watch = SettingWatch(NOTHING_FOUND, cluster.inspect)
        task = asyncio.ensure_future(watch.run([lane]))
        await asyncio.sleep(LOOK_S - 1)
        assert cluster.looks == 0
        await asyncio.sleep(2 + setting_watch.PAUSE_S)
        assert cluster.looks == 1

        cluster.found = Inspection([WRONG, HIDDEN], {"events": 10_000})
        with capture_logs() as logged:
            for _ in range(100):
                watch.doubt()
                await asyncio.sleep(0.5)
        assert 2 <= cluster.looks <= 7
        assert [entry["event"] for entry in logged].count("unsafe for production") == 1
        assert watch.sentences == [WRONG.text]
        assert samples(watch) == [{"topic": "events", "setting": "retention.ms"}]
        assert queue.batch_bytes_max == 10_000

        cluster.found = RetriableError("no answer")
        watch.doubt()
        await asyncio.sleep(60)
        assert watch.sentences == [WRONG.text]
        cluster.found = NOTHING_FOUND
        await asyncio.sleep(LOOK_S + 60)
        assert (watch.sentences, samples(watch)) == ([], [])
        assert queue.batch_bytes_max == QUEUE_LIMITS.batch_bytes_max
        task.cancel()

    run(history())


def test_log_without_such_settings_is_not_looked_at() -> None:
    run(SettingWatch(NOTHING_FOUND, None).run([]))


@pytest.mark.parametrize("level", list(Level))
def test_what_the_start_has_found_is_a_metric_if_it_is_wrong(level: Level) -> None:
    watch = SettingWatch(Inspection([WRONG._replace(level=level)], {}), None)
    assert bool(samples(watch)) == (level in (Level.WRONG, Level.UNSAFE))
