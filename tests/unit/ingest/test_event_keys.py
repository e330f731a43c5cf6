"""
Claim: in a request without a key of its own, each event is stored under its own key and charged to it; no
event with a bad key is lost or stored under another source's ids.
"""

import hashlib
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.auth.write_keys import Source
from app.http.errors import DisabledWriteKeyError, InvalidWriteKeyError
from app.ingest.event_keys import KEYS_MAX, shares_of
from dedupe.model.identity import canonical_content, fingerprint_of
from tests.support.gateway_in_process import GatewayInProcess

KEYS = """
- {key: k1, source: web}
- {key: k2, source: ios, quotas: {events: 0.01, burst: 300s}}
- {key: k4, source: ios}
- {key: k3, source: web, quotas: {index_share: 0.5}}
- {key: ended, source: web, enabled: false}
- {key: tool, source: web, scopes: [replay]}
- {key: tool2, source: ios, scopes: [replay]}
"""

CLIENT = {"client": "phone", "session": "2Hh3tyRZlRgSpBDgKxpNHrDbU8A"}


def event(number: int, write_key: object = None, **fields: object) -> dict[str, Any]:
    own = {} if write_key is None else {"writeKey": write_key}
    return {"messageId": f"m{number}", "type": "track", "event": "Tested", **own, **fields}


@pytest.fixture
def gateway(tmp_path: Path) -> Any:
    keys = tmp_path / "keys.yaml"
    keys.write_text(KEYS)
    with GatewayInProcess(tmp_path, write_keys_file=keys) as running:
        yield running


def post(
    gateway: GatewayInProcess, events: object, path: str = "/v1/events", **top: object
) -> httpx.Response:
    body = events if path == "/v1/events" and not top else {"batch": events, **top}
    with httpx.Client(transport=gateway.transport, base_url="http://gateway") as client:
        return client.post(path, content=orjson.dumps(body))


def stored(gateway: GatewayInProcess) -> set[tuple[str, str]]:
    """The source and id of each stored event."""
    return {(source, value["messageId"]) for source, value in gateway.by_source()}


def kept(gateway: GatewayInProcess) -> list[tuple[str, dict[str, Any]]]:
    """The source and value of each record of the quarantine."""
    return gateway.by_source(gateway.settings.log.quarantine_topic)


def test_each_event_is_stored_under_its_own_key(gateway: GatewayInProcess) -> None:
    sent = [event(0, "k1"), event(1, "k4"), event(2), event(0, "k4"), event(4, "k3")]
    answer = post(gateway, sent)
    assert answer.status_code == 200
    assert [receipt["messageId"] for receipt in answer.json()["receipts"]] == ["m0", "m1", "m2", "m0", "m4"]
    assert answer.headers["Gateway-Accepted"] == "5"
    assert stored(gateway) == {("web", "m0"), ("ios", "m1"), ("web", "m2"), ("ios", "m0"), ("web", "m4")}
    again = post(gateway, sent)
    assert again.content == answer.content
    assert again.headers["Gateway-Duplicates"] == "5"
    one_by_one = [post(gateway, [each]).headers["Gateway-Duplicates"] for each in (sent[0], sent[1], sent[4])]
    assert one_by_one == ["1"] * 3


def test_event_with_a_bad_key_is_kept_whole_under_the_first_good_one(
    gateway: GatewayInProcess,
) -> None:
    sent = [event(0, "unknown", properties={"a": 1}), event(1, "k4"), event(2, "ended"), event(3, "tool")]
    answer = post(gateway, sent, context={"app": "x"}, path="/v1/batch")
    assert answer.status_code == 200
    rejected = answer.json()["rejected"]
    assert [(each["index"], each["messageId"], each["code"]) for each in rejected] == [
        (0, "m0", "write_key_invalid"),
        (2, "m2", "write_key_invalid"),
        (3, "m3", "write_key_invalid"),
    ]
    assert stored(gateway) == {("ios", "m1")}
    by_id = {value["event"]["messageId"]: (source, value) for source, value in kept(gateway)}
    source, value = by_id["m0"]
    assert source == "ios"
    assert value["key_sha256"] == hashlib.sha256(b"unknown").hexdigest()
    assert value["event"]["properties"] == {"a": 1}
    assert value["event"]["context"]["app"] == "x"
    assert "writeKey" not in value["event"]
    assert post(gateway, sent, context={"app": "x"}, path="/v1/batch").json() == answer.json()
    assert len(kept(gateway)) == 3


def test_equal_events_of_two_unknown_keys_are_two(gateway: GatewayInProcess) -> None:
    post(gateway, [event(0, "k1"), event(1, "lost"), event(1, "gone"), event(1, "lost")])
    assert len(kept(gateway)) == 2


def test_two_equal_taps_without_ids_under_an_unknown_key_are_two(gateway: GatewayInProcess) -> None:
    tap = {"event": "Tap", "writeKey": "lost"}
    post(gateway, [event(0, "k1"), tap, tap])
    assert len(kept(gateway)) == 2


def test_event_that_has_another_fault_as_well_is_told_of_its_key(gateway: GatewayInProcess) -> None:
    answer = post(gateway, [event(0, "k1"), event(1, "lost") | {"messageId": 5.5}, event(2, "k2", type=7), 5])
    assert [(each["index"], each["code"]) for each in answer.json()["rejected"]] == [
        (1, "write_key_invalid"),
        (2, "type_invalid"),
        (3, "not_an_object"),
    ]
    assert sorted(source for source, _ in kept(gateway)) == ["ios", "web", "web"]


@pytest.mark.parametrize(
    "events",
    [
        [event(0, "lost"), event(1, "gone")],
        [event(0, "ended"), event(1, "lost"), event(2)],
        [event(0, "tool"), event(1, "lost")],
        [event(n, f"lost{n}") for n in range(KEYS_MAX)] + [event(99, "k1")],
    ],
    ids=["unknown", "disabled", "unfit", "good one behind too many"],
)
def test_without_a_good_key_nothing_is_stored(gateway: GatewayInProcess, events: list[object]) -> None:
    answer = post(gateway, events)
    assert (answer.status_code, answer.json()["code"]) == (401, "invalid_write_key")
    assert (gateway.by_source(), kept(gateway)) == ([], [])


def test_keys_for_something_else_are_told_so(gateway: GatewayInProcess) -> None:
    answer = post(gateway, [event(0, "tool"), event(1, "tool2")])
    assert (answer.status_code, answer.json()["code"]) == (403, "scope_missing")


def test_keys_beyond_the_limit_count_as_unknown(gateway: GatewayInProcess) -> None:
    lost = [event(n, f"lost{n}") for n in range(KEYS_MAX - 1)]
    answer = post(gateway, [event(50, "k1"), *lost, event(51, "k2")])
    assert len(answer.json()["rejected"]) == KEYS_MAX
    assert stored(gateway) == {("web", "m50")}


def test_one_used_up_quota_refuses_the_whole(gateway: GatewayInProcess) -> None:
    assert post(gateway, [event(n, "k2") for n in range(2)]).status_code == 200
    mixed = [event(10, "k1"), event(11, "k2"), event(12, "k2")]
    answer = post(gateway, mixed)
    assert (answer.status_code, answer.json()["code"]) == (429, "quota_exceeded")
    assert stored(gateway) == {("ios", "m0"), ("ios", "m1")}
    assert post(gateway, [mixed[0], event(11, "k2")]).status_code == 200  # the third of three


def test_quota_of_one_key_is_not_charged_for_events_of_another(gateway: GatewayInProcess) -> None:
    assert post(gateway, [event(0, "k2"), *[event(n, "k1") for n in range(1, 50)]]).status_code == 200
    assert post(gateway, [event(50, "k2"), event(51, "k1"), event(52, "k2")]).status_code == 200
    assert post(gateway, [event(53, "k2"), event(54, "k1")]).status_code == 429


def test_client_session_has_one_source(gateway: GatewayInProcess) -> None:
    several = [event(0, "k1", sequence=1), event(1, "k2", sequence=2)]
    answer = post(gateway, several, **CLIENT)
    assert (answer.status_code, answer.json()["code"]) == (400, "session_fields_invalid")
    assert (gateway.by_source(), kept(gateway)) == ([], [])
    one = [event(0, "k1", sequence=1), event(1, "k3", sequence=2)]
    assert post(gateway, one, **CLIENT).status_code == 200


@pytest.mark.regression("A batch of several keys with a large context was answered 503 at each try.")
def test_batch_fields_too_large_to_be_merged_are_kept_once_under_the_first_key(
    gateway: GatewayInProcess,
) -> None:
    sent = [event(n, ("k1", "k3")[n % 2]) for n in range(600)]
    answer = post(gateway, sent, path="/v1/batch", context={"app": "x" * 10_000})
    assert (answer.status_code, answer.headers["Gateway-Accepted"]) == (200, "600")
    assert [(each["index"], each["code"]) for each in answer.json()["rejected"]] == [
        (600, "batch_fields_too_large")
    ]
    tallies = dict(gateway.router.answers.sources.top(5)[0])
    assert (tallies["web"].accepted, tallies["web"].rejected) == (600, 1)


@pytest.mark.parametrize("top", [{"writeKey": "k1"}, {"writeKey": "k2"}])
def test_key_of_the_body_decides_for_all(gateway: GatewayInProcess, top: dict[str, Any]) -> None:
    answer = post(gateway, [event(0, "lost"), event(1, "k1"), event(2)], path="/v1/batch", **top)
    assert answer.headers["Gateway-Accepted"] == "3"
    assert {source for source, _ in gateway.by_source()} == {{"k1": "web", "k2": "ios"}[top["writeKey"]]}


def test_first_key_of_any_event_serves_all_that_have_none(gateway: GatewayInProcess) -> None:
    answer = post(gateway, [event(0), event(1, 5), event(2, ""), event(3, "k2")])
    assert answer.headers["Gateway-Accepted"] == "4"
    assert {source for source, _ in gateway.by_source()} == {"ios"}


def test_each_source_counts_its_own_events(gateway: GatewayInProcess) -> None:
    post(gateway, [event(0, "k1"), event(1, "k2"), event(2, "k1"), event(3, "lost"), event(0, "k1")])
    tallies = dict(gateway.router.answers.sources.top(5)[0])
    assert (tallies["web"].accepted, tallies["web"].duplicates, tallies["web"].rejected) == (2, 1, 1)
    assert (tallies["ios"].accepted, tallies["ios"].rejected) == (1, 0)


def test_conflict_is_one_within_its_source_only(gateway: GatewayInProcess) -> None:
    post(gateway, [event(0, "k1"), event(0, "k2")])
    answer = post(gateway, [event(0, "k2", properties={}), event(1, "k1"), event(0, "k1")])
    assert [(each["index"], each["code"]) for each in answer.json()["rejected"]] == [(0, "conflict")]
    assert [source for source, _ in kept(gateway)] == ["ios"]


def test_stored_events_sent_again_need_their_own_key_to_allow_it(gateway: GatewayInProcess) -> None:
    events = [event(0, "tool"), event(1, "k1")]
    known_by = ",".join(fingerprint_of(canonical_content(each)).hex() for each in events)
    with httpx.Client(transport=gateway.transport, base_url="http://gateway") as client:
        answer = client.post(
            "/v1/events", content=orjson.dumps(events), headers={"Gateway-Fingerprints": known_by}
        )
    assert [(each["index"], each["code"]) for each in answer.json()["rejected"]] == [(1, "write_key_invalid")]
    assert stored(gateway) == {("web", "m0")}


SOURCES = {"good0": Source("a", "a"), "good1": Source("b", "b"), "good2": Source("a", "a")}


@given(st.lists(st.sampled_from(["", *SOURCES, "lost", "gone", "ended"]), min_size=1, max_size=40))
def test_every_item_has_exactly_one_owner(keys: list[str]) -> None:
    looked_up: list[str] = []

    def log_in(key: str) -> Source:
        looked_up.append(key)
        if key == "ended":
            raise DisabledWriteKeyError
        if key not in SOURCES:
            raise InvalidWriteKeyError
        return SOURCES[key]

    if not set(keys) & set(SOURCES):
        with pytest.raises(InvalidWriteKeyError):
            shares_of(keys, log_in, is_replay=False)
        return
    found = shares_of(keys, log_in, is_replay=False)
    assert len(looked_up) == len(set(looked_up)) <= KEYS_MAX
    assert sum(share.items for share in found.shares) == len(keys)
    first_good = next(key for key in keys if key in SOURCES)
    assert found.shares[0].write_key == first_good
    for index, key in enumerate(keys):
        owner = found.shares[found.ownership.shares[index]]
        assert owner.write_key == (key if key in SOURCES else first_good)
        assert (index in found.ownership.refused) == (key not in SOURCES and key != "")
