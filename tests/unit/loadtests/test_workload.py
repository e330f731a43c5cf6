"""Claim: a duplicate is the same event again, a new one never was, and the shares are what was asked for."""

import orjson

from app.cli.load.events import event
from loadtests.bench.workload import SessionWorkload, Workload, make_bodies

BATCH_EVENTS = 20


def events_of(requests: list[bytes]) -> list[bytes]:
    """Return the events of some requests as the service gets them, in one order of fields."""
    bodies = [orjson.loads(request.partition(b"\r\n\r\n")[2]) for request in requests]
    return [orjson.dumps(item) for body in bodies for item in body["batch"]]


def test_an_event_is_as_long_as_real_ones() -> None:
    sizes = {len(event(number)) for number in (0, 7, 123_456, 10**9)}
    assert 700 <= min(sizes) <= max(sizes) <= 760


def test_new_events_never_were_before() -> None:
    history = Workload(seed=1)
    sent = [
        *events_of(history.requests(10, BATCH_EVENTS, duplicate_percent=0)),
        *events_of(history.requests(10, BATCH_EVENTS, duplicate_percent=0)),
    ]
    assert len(set(sent)) == len(sent) == history.new_events == 400


def test_duplicates_are_earlier_events_byte_for_byte_in_the_share_asked_for() -> None:
    history = Workload(seed=1)
    known = set(events_of(history.requests(50, BATCH_EVENTS, duplicate_percent=0)))
    for percent, duplicates in ((1, 1), (50, 50), (95, 95), (100, 100)):
        before = history.new_events
        sent = events_of(history.requests(100, BATCH_EVENTS, duplicate_percent=percent))
        assert sum(one in known for one in sent) == duplicates * BATCH_EVENTS
        assert history.new_events - before == (100 - duplicates) * BATCH_EVENTS
        known.update(sent)


def test_the_same_seed_makes_the_same_history() -> None:
    first, second = (Workload(seed=5) for _ in range(2))
    for percent in (0, 50):
        assert first.requests(10, 1, duplicate_percent=percent) == second.requests(
            10, 1, duplicate_percent=percent
        )


def test_a_declared_length_is_the_length_of_the_body() -> None:
    (request,) = Workload(seed=1).requests(1, 3, duplicate_percent=0)
    head, _, body = request.partition(b"\r\n\r\n")
    assert f"Content-Length: {len(body)}".encode() in head


def test_bodies_of_two_calls_have_no_event_in_common() -> None:
    bodies = [orjson.loads(body) for _ in range(2) for body in make_bodies(5, 2)]
    ids = [item["messageId"] for body in bodies for item in body["batch"]]
    assert len(set(ids)) == len(ids) == 20


def test_clients_take_turns_and_number_their_events_without_gaps() -> None:
    clients = SessionWorkload(2)
    found: dict[str, list[int]] = {}
    for request in [*clients.requests(3, 5), *clients.requests(3, 5)]:
        head, _, body = request.partition(b"\r\n\r\n")
        fields = dict(line.split(": ", 1) for line in head.decode().splitlines()[1:])
        document = orjson.loads(body)
        assert int(fields["Content-Length"]) == len(body)
        assert int(fields["Gateway-Acknowledged-Through"]) == document["firstSequence"] - 1
        assert not any("messageId" in event for event in document["batch"])
        numbers = range(document["firstSequence"], document["firstSequence"] + len(document["batch"]))
        found.setdefault(fields["Gateway-Session"], []).extend(numbers)
    assert list(found.values()) == [list(range(1, 16))] * 2
