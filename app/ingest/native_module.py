"""
Loads the native module, and proves that it gives the same bytes as the Python path of this process.

The examples also notice another version of orjson that writes numbers or text in another way.
"""

import importlib
from collections.abc import Coroutine
from typing import Any, Literal

import structlog

from app.ingest.identified import Arrival, Identified
from app.ingest.identify import Identifier
from app.ingest.large_json import JSONLimits
from app.ingest.native import NativePath
from app.ingest.payload import Payload, parse_batch
from dedupe.model.errors import ConfigurationError

MODULE = "gateway_native"

EXAMPLES = (
    b'{"batch":[{"messageId":"m-1","type":"track","event":"A","userId":"u","properties":{"b":1,"a":[true,null]}}]}',
    '{"sentAt":"2026-01-01T00:00:00Z","batch":[{"type":"page","messageId":"é~","context":{"z":{},"a":"x"}}]}'.encode(),
    b'{"batch":[{"messageId":"\\u0041\\/1","type":"track","n":[0.1,-12.5,48.858370421,1700000000000,0.001]}]}',
    b'{"batch":[{"messageId":"m-2","type":"track","n":48.85837042112345},{"messageId":"m-3","type":"a","n":0.30000000000000004}]}',
    b'{"batch":[{"messageId":"m-4","type":"track","s":"\\n\\t\\u0000\\u001f\\u00e9\\ud83d\\ude00\\"\\\\\\/ \\u007f"}]}',
    b'{"context":{"app":{"v":1}},"batch":[{"messageId":"m-5","type":"track","_metadata":{"b":1,"a":2},"sentAt":"now"}]}',
    b'{"batch":[{"messageId":"m-6","type":"track","context":{"ip":"::1"},"writeKey":"k","receivedAt":7}]}',
)

logger = structlog.get_logger(__name__)


def load_native(
    choice: Literal["auto", "off", "required"], identifier: Identifier, *, gives_advice: bool
) -> NativePath | None:
    """
    Return the native path of an identifier; None without one.

    Raises:
        ConfigurationError: it is required, and the module is missing or differs (not retriable).
    """
    if choice == "off":
        return None
    try:
        module = importlib.import_module(MODULE)
    except ImportError as err:
        if choice == "required":
            raise ConfigurationError(f"GATEWAY_NATIVE=required, but the module cannot be loaded: {err}") from err
        return None
    path = NativePath(
        module, identifier.identity, identifier.partitions, identifier.limits, gives_advice=gives_advice
    )
    if difference := _difference(identifier, path):
        sentence = f"the native module {path.version} differs from this gateway: {difference}"
        if choice == "required":
            raise ConfigurationError(f"GATEWAY_NATIVE=required, but {sentence}")
        logger.error("the native module is not used", reason=sentence)
        return None
    path.events = path.odd_events = path.other_bodies = 0
    return path


def _difference(identifier: Identifier, path: NativePath) -> str | None:
    """Return what the path makes of the first example of which it makes something else; None if none."""
    arrival = Arrival("source", 1_700_000_000_123, client_ip="203.0.113.7")
    for example in EXAMPLES:
        identifier.native = None
        expected = _identified(identifier, example, arrival)
        identifier.native = path
        found = _identified(identifier, example, arrival)
        identifier.native = None
        if found != expected:
            return f"of {example.decode()} it makes {found!r} instead of {expected!r}"
    if path.panics:
        return "it panics"
    return None if path.events else "it takes no event"


def _identified(identifier: Identifier, body: bytes, arrival: Arrival) -> Identified:
    limits = JSONLimits(100, identifier.limits.event_bytes_max, native=identifier.native)
    found = Identified()
    found.take(identifier.identify(_result_of(parse_batch(body, limits, _run_on)), arrival))
    return found


def _result_of(coroutine: Coroutine[Any, Any, Payload]) -> Payload:
    """Return the result of a coroutine that never waits."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        payload: Payload = stop.value
        return payload
    raise AssertionError("it waits")


async def _run_on(_work_bytes: int) -> None:
    """Let nobody else run."""
