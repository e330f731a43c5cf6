"""
Claim: a partition that was silent, a broker with quotas or logins that end, and a leader that forgets or
moves are no reason to refuse an event; and a broker that does not fence is found out at the start.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator
from typing import Any

import pytest

from dedupe.model.errors import ConfigurationError, FencedError, NotAppendedError, RetriableError
from dedupe.model.types import NewRecord
from dedupe.storage.kafka import broker_connection
from dedupe.storage.kafka.log import KafkaLog
from dedupe.storage.kafka.producer import RENEW_S
from dedupe.storage.kafka.store import KafkaStore
from dedupe.storage.log import no_crashpoint
from tests.support.settings import kafka_config
from tests.support.sim_kafka import ID_EXPIRATION_S, PRODUCER_EXPIRATION_S
from tests.support.sim_kafka_net import (
    ADD_PARTITIONS_TO_TXN,
    BOOTSTRAP_SERVERS,
    END_TXN,
    FETCH,
    INIT_PRODUCER_ID,
    PRODUCE,
    SASL_AUTHENTICATE,
    SimKafkaNet,
)

TOPIC, NOW_MS = "events", 1_700_000_000_000
RECORD = NewRecord(NOW_MS, b"id", b"{}", [("source", b"web")])


@pytest.fixture
async def log(store: KafkaStore) -> AsyncIterator[KafkaLog]:
    """A partition's log that has fenced and appended."""
    log = store.partition_log(TOPIC, 0)
    await log.fence()
    await log.append([RECORD, RECORD])
    yield log
    await log.close()


def count(net: SimKafkaNet, api: int) -> int:
    return sum(api == request.API_KEY for request in net.requests)


async def stored(log: KafkaLog) -> int:
    _, end = await log.bounds()
    return sum([len(records) async for records in log.read(0, end)])


# ---- silence


@pytest.mark.regression("A leader that had forgotten its producer refused the next event.")
@pytest.mark.parametrize("silence_s", [600.0, 2 * PRODUCER_EXPIRATION_S, 2 * ID_EXPIRATION_S])
@pytest.mark.parametrize("is_renewed", [True, False], ids=["renewed", "frozen"])
async def test_first_event_after_any_silence_is_stored(
    net: SimKafkaNet, log: KafkaLog, *, silence_s: float, is_renewed: bool
) -> None:
    if not is_renewed:
        assert log._renew_timer is not None
        log._renew_timer.cancel()
    await asyncio.sleep(silence_s)
    net.kafka.settle()

    await log.append([RECORD])
    await log.append([RECORD])

    assert await stored(log) == 4


async def test_leader_that_forgets_early_takes_the_first_event_of_a_new_connection(
    net: SimKafkaNet, log: KafkaLog
) -> None:
    net.kafka.partitions[0].forgets_after_s = 3.0
    await asyncio.sleep(6)
    for transport in net.transports:
        transport.close()
    await asyncio.sleep(0.1)

    await log.append([RECORD])

    assert await stored(log) == 3


async def test_leader_does_not_forget_an_idle_owner(
    net: SimKafkaNet, log: KafkaLog, store: KafkaStore
) -> None:
    """A rival that was frozen between its check and its batch is refused for as long as the owner lives."""
    owner = store.partition_log(TOPIC, 0)
    await owner.fence()
    await asyncio.sleep(3 * PRODUCER_EXPIRATION_S)
    zombie = log._producer
    assert zombie is not None
    connection = await zombie._connections.connect(zombie._leader)

    response = await connection.send_encoded(zombie._produce.encode(zombie._batch_of([RECORD])))

    assert zombie._produce.decode(response).code == 47
    await owner.append([RECORD])
    await owner.close()


async def test_idle_owner_renews_once_an_hour_and_a_busy_one_does_not_twice(
    net: SimKafkaNet, log: KafkaLog
) -> None:
    before = count(net, END_TXN)
    await asyncio.sleep(10.5 * RENEW_S)
    assert count(net, END_TXN) - before == 10
    for _ in range(20):
        await asyncio.sleep(RENEW_S / 10)
        await log.append([RECORD])
    assert count(net, END_TXN) - before <= 13


@pytest.mark.parametrize("api", [INIT_PRODUCER_ID, ADD_PARTITIONS_TO_TXN, END_TXN])
@pytest.mark.parametrize("fault", ["lose_request", "lose_answer", "hold_request", "hold_answer"])
async def test_renewal_of_an_idle_partition_that_fails_costs_the_next_event_nothing(
    net: SimKafkaNet, log: KafkaLog, api: int, fault: str
) -> None:
    net.holds_s = [20.0]
    # The first epoch is asked for too early; a transaction that is not ended for 30 s is aborted.
    net.due[api] = ["", fault] if api == INIT_PRODUCER_ID else [fault] * 4
    await asyncio.sleep(RENEW_S + 120)

    await log.append([RECORD])

    assert await stored(log) == 3


async def test_event_that_comes_during_a_renewal_waits_for_it(net: SimKafkaNet, log: KafkaLog) -> None:
    net.holds_s = [1.0]
    net.due[END_TXN] = ["hold_answer"]
    while log._renewal is None:
        await asyncio.sleep(1)

    await log.append([RECORD])

    assert await stored(log) == 3


async def test_owner_whose_id_was_forgotten_and_who_was_overtaken_is_fenced(
    net: SimKafkaNet, log: KafkaLog, store: KafkaStore
) -> None:
    assert log._renew_timer is not None
    log._renew_timer.cancel()
    await asyncio.sleep(2 * ID_EXPIRATION_S)
    net.kafka.settle()
    rival = store.partition_log(TOPIC, 0)
    await rival.fence()

    with pytest.raises(FencedError):
        await log.append([RECORD])
    await rival.append([RECORD])
    await rival.close()


# ---- quotas and logins


async def test_quota_that_is_used_up_is_a_pause_and_no_doubt(net: SimKafkaNet, log: KafkaLog) -> None:
    loop = asyncio.get_running_loop()
    net.throttle_s = 20.0
    net.due[PRODUCE] = ["throttle", "throttle"]
    began_at = loop.time()

    for _ in range(3):
        await log.append([RECORD])

    assert 40 <= loop.time() - began_at < 41
    assert log.throttled_s == pytest.approx(40)
    net.due[PRODUCE] = ["throttle"]
    await log.append([RECORD])
    assert log.pause_after_append_s == pytest.approx(20, abs=0.1)
    await asyncio.sleep(log.pause_after_append_s)
    assert log.pause_after_append_s < 0.1


@pytest.mark.parametrize("api", [INIT_PRODUCER_ID, ADD_PARTITIONS_TO_TXN, END_TXN])
async def test_quota_of_requests_makes_a_fence_slow_and_not_fail(
    net: SimKafkaNet, log: KafkaLog, api: int
) -> None:
    net.due[api] = ["throttle"]

    await log.fence()
    await log.append([RECORD])

    assert await stored(log) == 3


class Password:
    """The steps of PLAIN; aiokafka's take a thread, for which virtual time does not wait."""

    def __init__(self) -> None:
        self._steps = iter([(b"\0gw\0pw", True), None])

    async def step(self, _payload: bytes | None) -> tuple[bytes, bool] | None:
        return next(self._steps)


async def test_login_that_ends_is_repeated_before_anything_is_lost(
    net: SimKafkaNet, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def steps(_login: object) -> Password:
        return Password()

    monkeypatch.setattr(broker_connection, "authenticator_of", steps)
    net.session_s = 4.0
    login: dict[str, Any] = {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_username": "gw",
        "sasl_password": "pw",
    }
    store = KafkaStore(kafka_config(BOOTSTRAP_SERVERS, **login), no_crashpoint)
    log = store.partition_log(TOPIC, 0)
    await log.fence()
    for _ in range(100):
        await log.append([RECORD])
        await asyncio.sleep(0.3)

    assert await stored(log) == 100
    assert count(net, SASL_AUTHENTICATE) < 60
    await log.close()
    await store.close()


# ---- coordinators and leaders


@pytest.mark.regression("A coordinator that could not answer yet was asked in a tight loop.")
async def test_coordinator_that_is_busy_is_asked_less_and_less(net: SimKafkaNet, store: KafkaStore) -> None:
    log = store.partition_log(TOPIC, 0)
    net.due[INIT_PRODUCER_ID] = [51] * 1000
    with pytest.raises(RetriableError):
        await log.fence()

    assert count(net, INIT_PRODUCER_ID) < 30
    assert count(net, 10) == 1


@pytest.mark.regression("A lost answer during a takeover cost 8 seconds.")
async def test_lost_answer_costs_a_fence_two_seconds_and_slow_clusters_get_more(
    net: SimKafkaNet, store: KafkaStore
) -> None:
    loop, log = asyncio.get_running_loop(), store.partition_log(TOPIC, 0)
    net.holds_s = [100.0]
    took_s = []
    for _ in range(3):
        net.due[INIT_PRODUCER_ID] = ["hold_answer"]
        began_at = loop.time()
        with pytest.raises(RetriableError, match="no answer to InitProducerId within"):
            await log.fence()
        took_s.append(round(loop.time() - began_at))
    assert took_s == [2, 4, 8]
    await log.fence()


async def test_leader_that_moves_is_found_by_the_next_fence(net: SimKafkaNet, log: KafkaLog) -> None:
    net.kafka.leader = 1
    with pytest.raises(RetriableError):
        await log.append([RECORD])
    await log.fence()
    await log.append([RECORD])
    assert await stored(log) == 3


async def test_marker_of_an_earlier_fence_proves_nothing(net: SimKafkaNet, log: KafkaLog) -> None:
    """A leader that was deposed during a fence shows what it knew before."""
    partition = net.kafka.partitions[0]
    partition.shown_end = partition.end
    start, net_bounds = 0, log.bounds

    async def bounds_of_before() -> tuple[int, int]:
        _, end = await net_bounds()
        return start, start if log._producer and not log._producer.marked.epoch >= 0 else end

    log.bounds = bounds_of_before  # type: ignore[method-assign]
    with pytest.raises(RetriableError, match="does not know of its fence"):
        await log.fence()


async def test_strangers_open_transaction_is_named(net: SimKafkaNet, log: KafkaLog) -> None:
    net.kafka.partitions[0].open_since = net.kafka.partitions[0].end
    with pytest.raises(
        RetriableError, match=r"kafka-transactions.sh .* --topic events --partition 0 --start-offset 3"
    ):
        await log.fence()


async def test_batch_that_is_sent_again_is_found_among_the_last_five(net: SimKafkaNet, log: KafkaLog) -> None:
    producer = log._producer
    assert producer is not None
    connection = await producer._connections.connect(producer._leader)
    requests = []
    for _ in range(6):
        requests.append(producer._produce.encode(producer._batch_of([RECORD])))
        await log.append([RECORD])
    codes = [producer._produce.decode(await connection.send_encoded(each)).code for each in requests]
    assert codes == [45, 0, 0, 0, 0, 0]
    assert await stored(log) == 8


# ---- versions


async def test_versions_that_do_not_meet_are_told_in_a_sentence(net: SimKafkaNet) -> None:
    net.versions = {PRODUCE: (9, 13), FETCH: (4, 4)}
    store = KafkaStore(kafka_config(BOOTSTRAP_SERVERS), no_crashpoint)
    with pytest.raises(
        ConfigurationError, match="simulated:9001 speaks Produce 9 to 13, this gateway 3 to 8"
    ):
        await store.partition_log(TOPIC, 0).fence()
    await store.close()


@pytest.mark.parametrize(("produce", "fetch"), [*itertools.product((3, 5, 8), (4, 11))])
async def test_highest_version_that_both_speak_is_taken(
    net: SimKafkaNet, store: KafkaStore, produce: int, fetch: int
) -> None:
    net.versions = {PRODUCE: (0, produce), FETCH: (0, fetch)}
    log = store.partition_log(TOPIC, 0)
    await log.fence()
    await log.append([RECORD])
    assert await stored(log) == 1
    sent = {(request.API_KEY, request.API_VERSION) for request in net.requests}
    assert {(PRODUCE, produce), (FETCH, fetch)} <= sent


# ---- the fence's own test


async def test_broker_that_fences_passes_and_nobody_is_disturbed(
    net: SimKafkaNet, log: KafkaLog, store: KafkaStore
) -> None:
    for _ in range(3):
        await asyncio.gather(*(store.check_fencing(TOPIC, now_ms=NOW_MS) for _ in range(4)))
        await log.append([RECORD])
    assert await stored(log) == 5
    ids = {each.transactional_id for each in net.requests if each.API_KEY == INIT_PRODUCER_ID}
    assert ids == {"gateway-events-0", "gateway-events-fence-test"}


@pytest.mark.regression("Brokers that do not fence were used, and two owners could write.")
async def test_broker_that_takes_older_epochs_is_refused_and_its_record_skipped(
    net: SimKafkaNet, log: KafkaLog, store: KafkaStore
) -> None:
    net.kafka.partitions[0].takes_older_epochs = True
    with pytest.raises(ConfigurationError, match=r"does not fence: .* and it took it"):
        await store.check_fencing(TOPIC, now_ms=NOW_MS)
    _, end = await log.bounds()
    assert end > 4
    assert await stored(log) == 2


@pytest.mark.parametrize("code", [45, 87])
async def test_broker_that_refuses_for_another_reason_does_not_fence(
    net: SimKafkaNet, store: KafkaStore, code: int
) -> None:
    net.due[PRODUCE] = [code]
    with pytest.raises(ConfigurationError, match=r"does not fence: .* and it answered"):
        await store.check_fencing(TOPIC, now_ms=NOW_MS)


@pytest.mark.parametrize("code", [6, 7, 19, 32])
async def test_refusal_that_may_end_is_no_verdict(net: SimKafkaNet, store: KafkaStore, code: int) -> None:
    net.due[PRODUCE] = [code]
    with pytest.raises(RetriableError):
        await store.check_fencing(TOPIC, now_ms=NOW_MS)
    await store.check_fencing(TOPIC, now_ms=NOW_MS)


@pytest.mark.parametrize(
    ("api", "code"), [(PRODUCE, 29), (INIT_PRODUCER_ID, 53), (ADD_PARTITIONS_TO_TXN, 53)]
)
async def test_missing_right_is_named(net: SimKafkaNet, store: KafkaStore, api: int, code: int) -> None:
    net.due[api] = [code]
    with pytest.raises(ConfigurationError, match="it needs the ACL for"):
        await store.check_fencing(TOPIC, now_ms=NOW_MS)


async def test_record_of_a_stranger_between_two_batches_is_a_doubt(net: SimKafkaNet, log: KafkaLog) -> None:
    """Only markers may lie there."""
    partition = net.kafka.partitions[0]
    raw = partition.batches[-1].raw
    partition.append(raw[:43] + (9999).to_bytes(8, "big") + raw[51:])
    with pytest.raises(RetriableError, match="landed at offset"):
        await log.append([RECORD])
    with pytest.raises(NotAppendedError):
        await log.append([RECORD])
