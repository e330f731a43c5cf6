"""
The handshake by which two workers prove that they know the identity secret. Pure.

    dialler                                  acceptor
    HELLO      versions, names, nonce  --->
               <---  versions, name, nonce   CHALLENGE
    PROOF      MAC "dials"             --->
               <---  MAC "accepts"           WELCOME

Each MAC covers the role of its sender and both messages. Both nonces are new, so that nothing can be replayed
or reflected. The dialler proves itself first, so that an unauthenticated caller obtains no MAC. The key is
derived from the secret. Later frames are not authenticated: TLS protects connections that others could alter.
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


def magic_of(plan: int) -> str:
    """
    Return the first field of HELLO, which each proof covers.

    Workers that follow different plans do not talk to each other: one would send events to lanes in which
    they are not at home. Without a plan it is MAGIC.
    """
    return f"{MAGIC}/{plan}" if plan else MAGIC


class Hello(NamedTuple):
    """The dialler's first message."""

    magic: str  # see magic_of
    newest: int
    oldest: int
    worker: str
    to: str  # the expected worker: addresses are reused
    nonce: bytes


class Challenge(NamedTuple):
    """The acceptor's first message."""

    newest: int
    oldest: int
    worker: str
    nonce: bytes


def hello_of(body: memoryview, plan: int = 0) -> Hello:
    """Decode HELLO, for a worker that follows a plan. Raises FrameRefusedError."""
    hello = Hello._make(_fields(body, len(Hello._fields)))
    if type(hello.magic) is not str or hello.magic.partition("/")[0] != MAGIC:
        refuse("malformed")
    if hello.magic != magic_of(plan):
        refuse("other_plan")
    _check(hello.newest, hello.oldest, hello.nonce, hello.worker, hello.to)
    return hello


def challenge_of(body: memoryview) -> Challenge:
    """Decode CHALLENGE. Raises FrameRefusedError."""
    challenge = Challenge._make(_fields(body, len(Challenge._fields)))
    _check(challenge.newest, challenge.oldest, challenge.nonce, challenge.worker)
    return challenge


def key_of(secret: bytes) -> bytes:
    """Derive the key of all proofs from the secret, which it does not reveal."""
    return hashlib.blake2b(key=secret, person=_PURPOSE, digest_size=PROOF_BYTES).digest()


def proof_of(key: bytes, role: bytes, hello: Hello, challenge: Challenge) -> bytes:
    """Return the MAC of one side over its role and both messages."""
    message = packed((role, hello, challenge))
    return hashlib.blake2b(message, key=key, person=_PURPOSE, digest_size=PROOF_BYTES).digest()


def check_proof(body: memoryview, expected: bytes) -> None:
    """Raise FrameRefusedError unless the body has the expected proof."""
    (proof,) = _fields(body, 1)
    if type(proof) is not bytes or not hmac.compare_digest(proof, expected):
        refuse("unauthenticated")


def _fields(body: memoryview, count: int) -> list[Any]:
    """Return the fields that this version knows; a later one may add fields after them."""
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
