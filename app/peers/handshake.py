"""
How two workers prove to each other that they know the identity secret. Pure.

    dialler                                  acceptor
    HELLO      versions, names, nonce  --->
               <---  versions, name, nonce   CHALLENGE
    PROOF      MAC "dials"             --->
               <---  MAC "accepts"           WELCOME

Each MAC is over who proves it, everything both have said, and nothing else; both nonces are new, so nothing
can be replayed, and neither proof is one of the other side. Whoever dials proves itself first, so that nobody
gets a MAC by asking for one. The key is made from the secret. Frames are not authenticated after that:
where others can write into connections, workers need TLS.
"""

import hashlib
import hmac
from typing import Any, NamedTuple

from app.peers.errors import refuse
from app.peers.frames import packed, unpacked

NONCE_BYTES = 32
PROOF_BYTES = 32
NAME_CHARS_MAX = 255

DIALS, ACCEPTS = b"dials", b"accepts"

MAGIC = "gateway-peers"
_PURPOSE = b"gateway-peers-1"  # at most 16 bytes


class Hello(NamedTuple):
    """The dialler's first words."""

    magic: str
    newest: int
    oldest: int
    worker: str
    to: str  # whom it wants to speak to: addresses are used again
    nonce: bytes


class Challenge(NamedTuple):
    """The acceptor's first words."""

    newest: int
    oldest: int
    worker: str
    nonce: bytes


def hello_of(body: memoryview) -> Hello:
    """Return what HELLO says. Raises FrameRefusedError."""
    hello = Hello._make(_fields(body, len(Hello._fields)))
    if hello.magic != MAGIC:
        refuse("malformed")
    _check(hello.newest, hello.oldest, hello.nonce, hello.worker, hello.to)
    return hello


def challenge_of(body: memoryview) -> Challenge:
    """Return what CHALLENGE says. Raises FrameRefusedError."""
    challenge = Challenge._make(_fields(body, len(Challenge._fields)))
    _check(challenge.newest, challenge.oldest, challenge.nonce, challenge.worker)
    return challenge


def key_of(secret: bytes) -> bytes:
    """Return the key of all proofs; it says nothing about the secret."""
    return hashlib.blake2b(key=secret, person=_PURPOSE, digest_size=PROOF_BYTES).digest()


def proof_of(key: bytes, role: bytes, hello: Hello, challenge: Challenge) -> bytes:
    """Return the MAC of one side over all that both have said."""
    said = packed((role, hello, challenge))
    return hashlib.blake2b(said, key=key, person=_PURPOSE, digest_size=PROOF_BYTES).digest()


def check_proof(body: memoryview, expected: bytes) -> None:
    """Raise FrameRefusedError unless the other side has proved itself."""
    (proof,) = _fields(body, 1)
    if type(proof) is not bytes or not hmac.compare_digest(proof, expected):
        refuse("unauthenticated")


def _fields(body: memoryview, count: int) -> list[Any]:
    """Return the fields this version knows; a later one may say more behind them."""
    fields = unpacked(body)
    if type(fields) is not list or len(fields) < count:
        refuse("malformed")
    return fields[:count]


def _check(newest: Any, oldest: Any, nonce: Any, *names: Any) -> None:
    if type(newest) is not int or type(oldest) is not int or not 0 <= oldest <= newest <= 255:
        refuse("malformed")
    if type(nonce) is not bytes or len(nonce) != NONCE_BYTES:
        refuse("malformed")
    if not all(type(name) is str and 0 < len(name) <= NAME_CHARS_MAX for name in names):
        refuse("malformed")
