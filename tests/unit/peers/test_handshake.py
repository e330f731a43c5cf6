"""Claim: a proof is of one side, over everything both have said, and the same in every version."""

from typing import Any

import pytest

from app.peers.errors import FrameRefusedError
from app.peers.frames import packed
from app.peers.handshake import (
    ACCEPTS,
    DIALS,
    MAGIC,
    NONCE_BYTES,
    Challenge,
    Hello,
    challenge_of,
    check_proof,
    hello_of,
    key_of,
    magic_of,
    proof_of,
)
from app.peers.limits import Versions

SECRET = b"a secret of sixteen bytes or more"
KEY = key_of(SECRET)
HELLO = Hello(MAGIC, 1, 1, "a", "b", bytes(NONCE_BYTES))
CHALLENGE = Challenge(1, 1, "b", b"\1" * NONCE_BYTES)
PROOF = proof_of(KEY, DIALS, HELLO, CHALLENGE)


def body(*fields: Any) -> memoryview:
    return memoryview(packed(fields))


def test_proofs_are_frozen() -> None:
    assert KEY.hex() == "23ab80edae1a369f5c51680b5797e60425ce6ce3fe2938ffcb7b718fde511694"
    assert PROOF.hex() == "6a09fd3ce370c3b5322988895eced5609a105c45a78970030a21ac356a44f383"


def test_key_is_not_the_secret() -> None:
    assert SECRET not in KEY
    assert key_of(SECRET + b"!") != KEY


@pytest.mark.parametrize(
    "other",
    [
        proof_of(KEY, ACCEPTS, HELLO, CHALLENGE),
        proof_of(key_of(b"another secret, also long enough"), DIALS, HELLO, CHALLENGE),
        *(
            proof_of(KEY, DIALS, HELLO._replace(**change), CHALLENGE)
            for change in ({"newest": 2}, {"oldest": 0}, {"worker": "c"}, {"to": "c"}, {"nonce": b"x" * 32})
        ),
        *(
            proof_of(KEY, DIALS, HELLO, CHALLENGE._replace(**change))
            for change in ({"newest": 2}, {"oldest": 0}, {"worker": "c"}, {"nonce": b"x" * 32})
        ),
        PROOF[:-1],
        b"",
        None,
        "text",
        [PROOF],
    ],
)
def test_proof_of_anything_else_is_none(other: Any) -> None:
    check_proof(body(PROOF), PROOF)
    with pytest.raises(FrameRefusedError, match="unauthenticated"):
        check_proof(body(other), PROOF)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("magic", "other"),
        ("newest", 256),
        ("newest", 0),
        ("newest", "1"),
        ("oldest", -1),
        ("oldest", True),
        ("worker", ""),
        ("worker", "x" * 256),
        ("to", b"b"),
        ("nonce", bytes(31)),
        ("nonce", "x" * 32),
    ],
)
def test_hello_out_of_bounds_is_refused(name: str, wrong: Any) -> None:
    assert hello_of(body(*HELLO)) == HELLO
    with pytest.raises(FrameRefusedError):
        hello_of(body(*HELLO._replace(**{name: wrong})))
    if name in Challenge._fields and name != "worker":
        with pytest.raises(FrameRefusedError):
            challenge_of(body(*CHALLENGE._replace(**{name: wrong})))


@pytest.mark.parametrize(("theirs", "own"), [(0, 1), (1, 0), (1, 2)])
def test_worker_of_another_plan_is_refused_by_name(theirs: int, own: int) -> None:
    hello = HELLO._replace(magic=magic_of(theirs))
    assert hello_of(body(*hello), theirs) == hello
    with pytest.raises(FrameRefusedError, match="other_plan"):
        hello_of(body(*hello), own)


def test_words_of_a_later_version_are_passed_over() -> None:
    assert hello_of(body(*HELLO, "new")) == HELLO
    assert challenge_of(body(*CHALLENGE, "new")) == CHALLENGE
    check_proof(body(PROOF, "new"), PROOF)


@pytest.mark.parametrize(
    ("one", "other", "agreed"),
    [((1, 1), (1, 1), 1), ((2, 1), (1, 1), 1), ((3, 2), (2, 1), 2), ((3, 2), (1, 1), None)],
)
def test_newest_version_that_both_speak_is_spoken(
    one: tuple[int, int], other: tuple[int, int], agreed: int | None
) -> None:
    for first, second in ((Versions(*one), Versions(*other)), (Versions(*other), Versions(*one))):
        if agreed is None:
            with pytest.raises(FrameRefusedError, match="version"):
                first.agreed(second)
        else:
            assert first.agreed(second) == agreed
