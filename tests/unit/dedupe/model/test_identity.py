"""Identity: equal for every try of one event, different as soon as any part of it differs."""

import orjson
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dedupe.model.identity import RETRY_FIELDS, SOURCES_CACHED, Identity, canonical_content, fingerprint_of

EXAMPLES = settings(max_examples=300)

IDENTITY = Identity(b"a secret of 24 bytes....")
TEXT = st.text(st.characters(codec="utf-8"), max_size=20)
HASH = st.binary(min_size=16, max_size=16)
U64 = st.integers(0, 2**64 - 1)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)
EVENT = st.dictionaries(TEXT, JSON, max_size=6)


# ---- keys


@EXAMPLES
@given(st.tuples(TEXT, TEXT), st.tuples(TEXT, TEXT))
def test_message_keys_differ_as_soon_as_source_or_id_differs(
    one: tuple[str, str], other: tuple[str, str]
) -> None:
    assert (IDENTITY.message_key(*one) == IDENTITY.message_key(*other)) == (one == other)


@EXAMPLES
@given(TEXT, TEXT, st.data())
def test_bytes_moved_from_source_to_id_make_another_key(source: str, rest: str, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(rest)))
    assume(at > 0)

    assert IDENTITY.message_key(source, rest) != IDENTITY.message_key(source + rest[:at], rest[at:])


@EXAMPLES
@given(st.tuples(TEXT, TEXT, TEXT), st.tuples(TEXT, TEXT, TEXT))
def test_session_hashes_differ_as_soon_as_any_part_differs(
    one: tuple[str, str, str], other: tuple[str, str, str]
) -> None:
    assert (IDENTITY.session_hash(*one) == IDENTITY.session_hash(*other)) == (one == other)


@EXAMPLES
@given(TEXT, TEXT, TEXT, st.data())
def test_bytes_moved_from_client_to_session_make_another_hash(
    source: str, client: str, session: str, data: st.DataObject
) -> None:
    at = data.draw(st.integers(0, len(session)))
    assume(at > 0)
    moved = IDENTITY.session_hash(source, client + session[:at], session[at:])

    assert IDENTITY.session_hash(source, client, session) != moved


@EXAMPLES
@given(st.tuples(TEXT, TEXT), st.tuples(TEXT, TEXT))
def test_client_hashes_differ_as_soon_as_source_or_client_differs(
    one: tuple[str, str], other: tuple[str, str]
) -> None:
    assert (IDENTITY.client_hash(*one) == IDENTITY.client_hash(*other)) == (one == other)


@EXAMPLES
@given(st.tuples(HASH, HASH, U64), st.tuples(HASH, HASH, U64))
def test_sequence_keys_differ_as_soon_as_any_part_differs(
    one: tuple[bytes, bytes, int], other: tuple[bytes, bytes, int]
) -> None:
    assert (IDENTITY.sequence_key(*one) == IDENTITY.sequence_key(*other)) == (one == other)


@EXAMPLES
@given(st.tuples(TEXT, TEXT, st.binary(max_size=12)), st.tuples(TEXT, TEXT, st.binary(max_size=12)))
def test_quarantine_keys_differ_as_soon_as_any_part_differs(
    one: tuple[str, str, bytes], other: tuple[str, str, bytes]
) -> None:
    assert (IDENTITY.quarantine_key(*one) == IDENTITY.quarantine_key(*other)) == (one == other)


@EXAMPLES
@given(TEXT, TEXT)
def test_kinds_never_share_a_key(source: str, text: str) -> None:
    keys = [
        IDENTITY.message_key(source, text),
        IDENTITY.client_hash(source, text),
        IDENTITY.session_hash(source, "", text),
        IDENTITY.quarantine_key(source, "", text.encode()),
        IDENTITY.check_value,
    ]

    assert len(set(keys)) == len(keys)
    assert {len(key) for key in keys} == {16}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("0f3c9a51-8c1e-4d7f-9a3b-5e2d1c0b9a87", "0f3c9a51-8c1e-4d7f-9a3b-5e2d1c0b9a88"),  # last letter
        ("a" * 254 + "b", "a" * 254 + "c"),
        ("id", "id "),
        ("id", "ID"),
        ("\u00e9", "e\u0301"),  # looks equal, is not
        ("", "\x00"),
    ],
)
def test_whole_id_counts_as_exact_bytes(one: str, other: str) -> None:
    assert IDENTITY.message_key("source", one) != IDENTITY.message_key("source", other)


@EXAMPLES
@given(st.binary(min_size=16, max_size=64), st.binary(min_size=16, max_size=64))
def test_keys_and_check_value_depend_on_the_secret(one: bytes, other: bytes) -> None:
    assume(one != other)

    assert Identity(one).message_key("source", "id") != Identity(other).message_key("source", "id")
    assert Identity(one).check_value != Identity(other).check_value


@pytest.mark.parametrize("length", [0, 15, 65])
def test_secret_of_another_length_is_refused(length: int) -> None:
    with pytest.raises(ValueError, match="16 to 64 bytes"):
        Identity(b"x" * length)


def test_more_sources_than_are_cached_keep_their_keys() -> None:
    identity = Identity(b"x" * 16)
    sources = [f"source-{i}" for i in range(SOURCES_CACHED + 100)]
    first = [identity.message_key(source, "id") for source in sources]

    assert [identity.message_key(source, "id") for source in sources] == first
    assert len(set(first)) == len(sources)


# ---- content

RETRIED = {"sentAt", "receivedAt", "_metadata", "writeKey"}  # what SDKs change between tries


@EXAMPLES
@given(EVENT, st.data())
def test_content_is_equal_under_key_order_and_retry_fields(
    event: dict[str, object], data: st.DataObject
) -> None:
    assume(RETRIED.isdisjoint(event))
    retry = dict(data.draw(st.permutations(list(event.items()))))
    for name in data.draw(st.sets(st.sampled_from(sorted(RETRIED)))):
        retry[name] = data.draw(JSON)

    assert canonical_content(retry) == canonical_content(event)


@EXAMPLES
@given(EVENT, EVENT)
def test_content_differs_when_what_is_said_differs(one: dict[str, object], other: dict[str, object]) -> None:
    assume(RETRY_FIELDS.isdisjoint(one) and RETRY_FIELDS.isdisjoint(other))
    is_same = orjson.dumps(one, option=orjson.OPT_SORT_KEYS) == orjson.dumps(
        other, option=orjson.OPT_SORT_KEYS
    )

    assert (canonical_content(one) == canonical_content(other)) == is_same


def test_nested_keys_are_sorted_too() -> None:
    one = {"b": {"y": 1, "x": [{"q": 1, "p": 2}]}, "a": 0}

    assert canonical_content(one) == b'{"a":0,"b":{"x":[{"p":2,"q":1}],"y":1}}'


def test_retry_fields_are_left_out_at_the_top_only() -> None:
    event = {"sentAt": "now", "properties": {"sentAt": "then"}, "writeKey": "k", "_metadata": {"n": 2}}

    assert canonical_content(event) == b'{"properties":{"sentAt":"then"}}'
    assert event["sentAt"] == "now"


def test_ignored_fields_can_be_named() -> None:
    event = {"sentAt": "now", "attempt": 2, "event": "paid"}

    content = canonical_content(event, ignore=RETRY_FIELDS | {"attempt"})

    assert content == b'{"event":"paid"}'


def test_content_nested_too_deep_is_refused() -> None:
    event: dict[str, object] = {}
    for _ in range(300):
        event = {"a": event}

    with pytest.raises(TypeError):
        canonical_content(event)


@EXAMPLES
@given(st.binary(), st.binary())
def test_fingerprints_tell_contents_apart(one: bytes, other: bytes) -> None:
    assert len(fingerprint_of(one)) == 8
    assert (fingerprint_of(one) == fingerprint_of(other)) == (one == other)
