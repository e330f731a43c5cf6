"""Claim: a probe of the path to a leader is answered, stores nothing, moves no offset and fences nobody."""

import pytest

from dedupe.model.errors import OutcomeUnknownError, RetriableError
from dedupe.model.types import NewRecord
from dedupe.storage.kafka.log import KafkaLog
from dedupe.storage.kafka.probe import PATH_BYTES
from dedupe.storage.kafka.store import KafkaStore
from tests.support.sim_kafka_net import PRODUCE, SimKafkaNet

TOPIC, NOW_MS = "events", 1_700_000_000_000
RECORD = NewRecord(NOW_MS, b"id", b"{}", [("source", b"web")])


def probes(net: SimKafkaNet) -> int:
    """Return how many large batches were sent."""
    sent = [request for request in net.requests if request.API_KEY == PRODUCE]
    return sum(len(request.topics[0][1][0][1]) >= PATH_BYTES for request in sent)


async def fenced(store: KafkaStore, *, times: int = 1) -> KafkaLog:
    log = store.partition_log(TOPIC, 0)
    for _ in range(times):
        await log.fence()
    return log


async def test_probe_stores_nothing_and_the_owner_goes_on(net: SimKafkaNet, store: KafkaStore) -> None:
    log = await fenced(store, times=2)
    end = (await log.bounds())[1]
    await log.probe()
    assert await log.append([RECORD]) == end
    await log.probe()
    assert await log.append([RECORD]) == end + 1
    assert (await log.bounds())[1] == end + 2
    assert probes(net) == 2


async def test_probe_of_the_first_owner_waits_for_an_older_epoch(net: SimKafkaNet, store: KafkaStore) -> None:
    log = await fenced(store)
    await log.probe()
    assert probes(net) == 0
    base = await log.append([RECORD])
    await log.probe()
    assert probes(net) == 1
    assert await log.append([RECORD]) == base + 1


async def test_probe_of_an_earlier_owner_fences_nobody(net: SimKafkaNet, store: KafkaStore) -> None:
    before = await fenced(store, times=2)
    log = await fenced(store)
    base = await log.append([RECORD])
    await before.probe()
    assert probes(net) == 1
    assert await log.append([RECORD]) == base + 1


async def test_probe_without_an_answer_fails_and_the_owner_goes_on(
    net: SimKafkaNet, store: KafkaStore
) -> None:
    log = await fenced(store, times=2)
    net.due[PRODUCE] = ["lose_request"]
    with pytest.raises(RetriableError):
        await log.probe()
    await log.append([RECORD])


@pytest.mark.parametrize("code", [10, 29, 6, 19])
async def test_any_answer_proves_the_path(net: SimKafkaNet, store: KafkaStore, code: int) -> None:
    log = await fenced(store, times=2)
    net.due[PRODUCE] = [code]
    await log.probe()


@pytest.mark.parametrize(
    ("fault", "is_unanswered"), [("lose_request", True), ("lose_answer", True), (20, False), (7, False)]
)
async def test_append_tells_whether_there_was_an_answer(
    net: SimKafkaNet, store: KafkaStore, fault: str | int, is_unanswered: bool
) -> None:
    log = await fenced(store)
    net.due[PRODUCE] = [fault]
    with pytest.raises(OutcomeUnknownError) as raised:
        await log.append([RECORD])
    assert raised.value.is_unanswered is is_unanswered
