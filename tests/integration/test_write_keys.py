"""
Claim: keys and quotas change while requests go on, none of which is dropped; a key over its quota is
told when to come back, before anything of its request is taken.
"""

import hashlib
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import orjson
import pytest
import yaml

from dedupe.model.identity import canonical_content, fingerprint_of
from tests.support.gateway import Gateway
from tests.support.http import AUTH, cli, new_event, post, stored
from tests.support.waiting import until

KEYS = """
- {key: of-few-events, source: web, quotas: {events: 0.01, burst: 1000s}}
- {key: of-few-requests, source: web, quotas: {requests: 0.01, burst: 100s}}
- {key: of-an-app, source: web}
- {key: of-a-tool, source: web, scopes: [replay]}
- {key: of-both, source: web, scopes: [ingest, replay]}
"""


@pytest.fixture(scope="module")
def keyed_gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A running gateway with a key for each purpose; its tests tell their events apart by ids."""
    folder = tmp_path_factory.mktemp("keyed")
    keys = folder / "keys.yaml"
    keys.write_text(KEYS)
    with gateway_with(keys, folder) as gateway:
        yield gateway


def gateway_with(keys: Path, folder: Path, *, look_interval_s: float = 1) -> Gateway:
    env = {
        "GATEWAY_WRITE_KEYS_FILE": str(keys),
        "GATEWAY_PARTITIONS": "2",
        "GATEWAY_WRITE_KEYS_GRACE": "0",
    }
    constants = {"app.round:LOOK_INTERVAL_S": look_interval_s}
    return Gateway(folder / "gateway", env, constants=constants)


def change(file: Path, text: str) -> None:
    """Replace a file at once: who looks at it all the time sees no half of it."""
    new = file.with_suffix(".new")
    new.write_text(text)
    new.replace(file)


def test_keys_change_under_load_and_damage_changes_nothing(tmp_path: Path) -> None:
    keys = tmp_path / "keys.yaml"
    change(keys, "- {key: first, source: web}\n")
    statuses: list[int] = []
    is_over = threading.Event()

    with gateway_with(keys, tmp_path, look_interval_s=0.05) as gateway:

        def send() -> None:
            with httpx.Client(base_url=gateway.url, auth=("first", "")) as client:
                while not is_over.is_set():
                    statuses.append(post(client, "/v1/batch", {"batch": [new_event()]}).status_code)

        def status_of(key: str) -> int:
            return httpx.post(f"{gateway.url}/v1/batch", content=b'{"batch":[]}', auth=(key, "")).status_code

        sender = threading.Thread(target=send)
        sender.start()
        try:
            assert status_of("second") == 401
            change(keys, "- {key: first, source: web}\n- {key: second, source: web}\n")
            until(lambda: status_of("second") == 200)
            change(keys, "- {key: first")
            until(lambda: gateway.stats()["write_keys"]["is_stale"])
            keys.unlink()
            until(lambda: gateway.stats()["write_keys"]["failures"] == 2)
            assert status_of("second") == 200
        finally:
            is_over.set()
            sender.join()
        assert set(statuses) == {200}
        told = gateway.stats()["write_keys"]
        assert (told["keys"], told["is_stale"]) == (2, True)
        assert told["age_seconds"] > 0
        metrics = httpx.get(f"{gateway.admin_url}/metrics").text
        assert "gateway_write_keys_stale 1.0" in metrics
        assert "gateway_write_keys_age_seconds " in metrics
        change(keys, "- {key: second, source: web}\n")
        until(lambda: status_of("first") == 401)
        assert status_of("second") == 200
    log = gateway.log_path.read_text()
    assert log.count("write keys not reloaded") == 2


def test_hangup_reads_the_file_at_once(tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    keys.write_text('[{"key": "first", "source": "web"}]')
    with gateway_with(keys, tmp_path, look_interval_s=3600) as gateway:
        keys.write_text('[{"key": "second", "source": "web"}]')
        gateway.process.send_signal(signal.SIGHUP)
        until(
            lambda: httpx.post(f"{gateway.url}/v1/batch?writeKey=second", content=b'{"batch":[]}').is_success
        )


def test_quota_refuses_whole_requests_before_any_effect(keyed_gateway: Gateway) -> None:
    gateway = keyed_gateway
    with httpx.Client(base_url=gateway.url) as client:
        batches = [[new_event() for _ in range(4)] for _ in range(4)]
        answers = [post(client, "/v1/batch?writeKey=of-few-events", {"batch": batch}) for batch in batches]
        assert [answer.status_code for answer in answers] == [200, 200, 429, 429]
        refused = answers[2]
        assert refused.json()["code"] == "quota_exceeded"
        assert list(refused.json()) == ["code", "message"]
        # two of ten tokens are left, so a batch of four waits for two of them
        assert 150 <= int(refused.headers["Retry-After"]) <= 250  # and jitter
        assert refused.headers["Access-Control-Allow-Origin"] == "*"
        sent = [{event["messageId"] for event in batch} for batch in batches]
        found = {line["messageId"] for line in stored(gateway)}
        assert found.intersection(set().union(*sent)) == sent[0] | sent[1]
        assert post(client, "/v1/batch?writeKey=of-few-events", {"batch": batches[0][:2]}).status_code == 200
        in_body = {"batch": batches[2], "writeKey": "of-few-events"}
        assert post(client, "/v1/batch", in_body).status_code == 429
        for batch in batches:
            assert post(client, "/v1/batch?writeKey=of-an-app", {"batch": batch}).status_code == 200
        assert gateway.stats()["quota_refusals"]["events"] == 3
        assert 'gateway_quota_refused_requests_total{limit="events"} 3.0' in (
            httpx.get(f"{gateway.admin_url}/metrics").text
        )


def test_key_over_its_quota_is_refused_before_its_body_is_read(keyed_gateway: Gateway) -> None:
    with httpx.Client(base_url=keyed_gateway.url) as client:
        big = orjson.dumps({"batch": [new_event(padding="x" * 700_000) for _ in range(10)]})
        assert client.post("/v1/batch?writeKey=of-few-requests", content=big).status_code == 200
        for content in (big, b"not JSON"):
            answer = client.post("/v1/batch?writeKey=of-few-requests", content=content)
            assert (answer.status_code, answer.json()["code"]) == (429, "quota_exceeded")
            assert 90 <= int(answer.headers["Retry-After"]) <= 125  # the true wait, jittered
        # the connection outlives the bodies that nobody read
        assert client.post("/v1/batch?writeKey=unknown", content=big).status_code == 401
        assert client.post("/v1/batch", content=b"{}").status_code == 400


def test_quota_without_one_of_its_own_is_that_of_the_file(tmp_path: Path) -> None:
    keys = tmp_path / "keys.yaml"
    keys.write_text(
        "defaults: {requests: 0.1, burst: 10s}\nkeys: [{key: a, source: web}, {key: b, source: web}]\n"
    )
    with gateway_with(keys, tmp_path) as gateway:
        statuses = [
            httpx.post(f"{gateway.url}/v1/batch?writeKey={key}", content=b'{"batch":[]}').status_code
            for key in ("a", "a", "b")
        ]
        assert statuses == [200, 429, 200]


def test_new_key_and_its_entry_fit_together(tmp_path: Path) -> None:
    keys = tmp_path / "keys.yaml"
    gateway = gateway_with(keys, tmp_path)
    printed = cli(gateway, "keys", "new", "--source", "ios", "--name", "Ünïcode app").stdout.decode()
    write_key = printed.splitlines()[0].rpartition(" ")[2]
    (entry,) = yaml.safe_load(printed)
    assert entry == {
        "key_sha256": hashlib.sha256(write_key.encode()).hexdigest(),
        "source": "ios",
        "name": "Ünïcode app",
    }
    assert cli(gateway, "keys", "hash", write_key).stdout.decode().strip() == entry["key_sha256"]
    assert cli(gateway, "keys", "hash", "").returncode == 2
    assert cli(gateway, "keys", "hash", "cut:here").returncode == 2
    scoped = cli(gateway, "keys", "new", "--scope", "ingest", "--scope", "replay").stdout.decode()
    assert yaml.safe_load(scoped)[0]["scopes"] == ["ingest", "replay"]
    keys.write_text("\n".join(line for line in printed.splitlines() if not line.startswith("#")))
    with gateway:
        assert httpx.post(f"{gateway.url}/v1/batch", content=b'{"batch":[]}', auth=(write_key, "")).is_success


def test_rotated_key_works_on_for_its_grace(tmp_path: Path) -> None:
    keys = tmp_path / "keys.yaml"
    keys.write_text("- {key: old-key, source: ios}")
    env = {"GATEWAY_WRITE_KEYS_FILE": str(keys), "GATEWAY_PARTITIONS": "2"}
    with Gateway(tmp_path / "gateway", env, constants={"app.round:LOOK_INTERVAL_S": 0.05}) as gateway:

        def is_taken(key: str) -> bool:
            return httpx.post(f"{gateway.url}/v1/batch", content=b'{"batch":[]}', auth=(key, "")).is_success

        written = cli(gateway, "keys", "rotate", "ios").stdout.decode().strip()
        until(lambda: is_taken(written))
        assert is_taken("old-key")
        lines = cli(gateway, "keys", "--url", gateway.admin_url, "-o", "json").stdout.splitlines()
        assert sorted(orjson.loads(line)["state"] for line in lines) == ["enabled", "removed"]
        cli(gateway, "keys", "add", "--source", "web")
        cli(gateway, "keys", "remove", "ios", "--now")
        until(lambda: not is_taken(written))


@pytest.mark.regression("A replay of events to which the gateway had added fields was a conflict.")
def test_stored_events_sent_again_are_known_by_their_fingerprints(keyed_gateway: Gateway) -> None:
    first, other = new_event(), new_event()
    known_by = [fingerprint_of(canonical_content(event)).hex() for event in (first, other)]
    again = [first | {"context": {"ip": "203.0.113.9"}}, other | {"context": {"ip": "203.0.113.9"}}]
    with httpx.Client(base_url=keyed_gateway.url, auth=("of-both", "")) as tool:
        post(tool, "/v1/events", first)
        answer = post(tool, "/v1/events", again, **{"Gateway-Fingerprints": ",".join(known_by)})
        assert (answer.headers["Gateway-Accepted"], answer.headers["Gateway-Duplicates"]) == ("1", "1")
        assert post(tool, "/v1/events", [first, other]).content == answer.content
        for bad in ("", known_by[0], f"{known_by[0]},{known_by[1]},", "00,11", "x" * 16 + "," + known_by[0]):
            refused = post(tool, "/v1/events", again, **{"Gateway-Fingerprints": bad})
            assert (refused.status_code, refused.json()["code"]) == (400, "fingerprints_invalid")


@pytest.mark.regression("A public write key could make events to come duplicates.")
def test_public_key_cannot_make_an_event_to_come_a_duplicate(keyed_gateway: Gateway) -> None:
    event = new_event()
    forged = {"Gateway-Fingerprints": fingerprint_of(canonical_content(event)).hex()}
    junk = {"messageId": event["messageId"]}
    with httpx.Client(base_url=keyed_gateway.url) as client:

        def send(key: str, document: dict[str, str], **headers: str) -> httpx.Response:
            return post(client, f"/v1/events?writeKey={key}", document, **headers)

        refused = [send("of-an-app", junk, **forged), send("of-a-tool", event)]
        assert [(answer.status_code, answer.json()["code"]) for answer in refused] == [
            (403, "scope_missing"),
            (403, "scope_missing"),
        ]
        assert "replay" in refused[0].json()["message"]
        assert send("of-an-app", event).headers["Gateway-Accepted"] == "1"
        assert send("of-a-tool", junk, **forged).headers["Gateway-Duplicates"] == "1"
        found = [line for line in stored(keyed_gateway) if line["messageId"] == event["messageId"]]
        assert [line["value"]["event"] for line in found] == ["Tested"]


def test_development_without_a_key_file_lets_nobody_replay(own_gateway: Gateway) -> None:
    own_gateway.start()
    with httpx.Client(base_url=own_gateway.url, auth=AUTH) as client:
        answer = post(client, "/v1/events", new_event(), **{"Gateway-Fingerprints": "0" * 16})
    assert (answer.status_code, answer.json()["code"]) == (403, "scope_missing")
