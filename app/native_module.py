"""
Loads the native module, and proves that it gives the same bytes as the Python code of this process.

The examples also notice another version of orjson that writes numbers or text in another way.
"""

import importlib
from functools import cache
from types import ModuleType
from typing import Any, Literal, TypeAlias

import structlog

from app.http.at_once import at_once, yield_to_nobody
from app.ingest.event_limits import EventLimits
from app.ingest.identified import Arrival, Identified, Rejection
from app.ingest.identify import Identifier
from app.ingest.large_json import JSONLimits
from app.ingest.native import NativeModule
from app.ingest.parse import parse_batch
from app.ingest.payload import Expected
from dedupe.model.errors import ConfigurationError
from dedupe.model.identity import Identity
from dedupe.model.quarantine import Quarantine
from dedupe.model.slots import PartitionMap
from dedupe.model.types import Event, Topic

MODULE = "gateway_native"

EXAMPLES = (
    b'{"batch":[{"messageId":"m-1","type":"track","event":"A","properties":{"b":1,"a":[true,null]}}]}',
    '{"sentAt":"2026-01-01T00:00:00Z","batch":[{"type":"page","messageId":"é~","context":{"z":{},"a":"x"}}]}'.encode(),
    b'{"batch":[{"messageId":"\\u0041\\/1","type":"track","n":[0.1,-12.5,48.858370421,1700000000000,0.001]}]}',
    b'{"batch":[{"messageId":"m-2","type":"track","n":[48.85837042112345,0.30000000000000004]}]}',
    b'{"batch":[{"messageId":"m-4","type":"track","s":"\\n\\u0000\\u001f\\u00e9\\ud83d\\ude00\\"\\\\\\/\\u007f"}]}',
    b'{"context":{"app":1},"batch":[{"messageId":"m-5","type":"track","_metadata":{"b":1,"a":2},"sentAt":"now"}]}',
    b'{"batch":[{"messageId":"m-6","type":"track","context":{"ip":"::1"},"writeKey":"k","receivedAt":7}]}',
)

IDENTITY = Identity(b"not a secret: of examples")
ARRIVAL = Arrival("source", 1_700_000_000_123, client_ip="203.0.113.7")
LIMITS = EventLimits(event_bytes_max=2_000, event_depth_max=32, request_bytes_max=20_000)

logger = structlog.get_logger(__name__)


Choice: TypeAlias = Literal["auto", "off", "required"]
"""GATEWAY_NATIVE."""


def native_version(choice: Choice) -> str | None:
    """Return the version of the module in use, None without one. Raises as native_module."""
    module = native_module(choice)
    return None if module is None else str(module.__version__)


@cache
def native_module(choice: Choice) -> ModuleType | None:
    """
    Return the native module, if it is chosen, installed and proved.

    Raises:
        ConfigurationError: it is required, and it is missing or differs (not retriable).
    """
    if choice == "off":
        return None
    try:
        module = importlib.import_module(MODULE)
        problem = difference_of(module)
    except ImportError as err:
        module, problem = None, f"it cannot be loaded: {err}"
    if module is not None and problem is None:
        return module
    if choice == "required":
        raise ConfigurationError(f"GATEWAY_NATIVE=required, but the module {MODULE} is not usable: {problem}")
    if module is not None:
        logger.error("the native module is not used", reason=problem)
    return None


def difference_of(module: ModuleType | Any) -> str | None:
    """Return a sentence on how the module differs, such as by the first example; None if it does not."""
    if not {"add_keys", "encode_records", "faults"}.issubset(dir(module)):
        return "it is of an earlier version"
    before = module.faults()
    path = NativeModule(module, IDENTITY, PartitionMap(3), LIMITS, gives_advice=False)
    for example in EXAMPLES:
        expected, found = _identified(None, example), _identified(path, example)
        if found != expected:
            return f"of {example.decode()} it makes {found}, and Python {expected}"
    if module.faults() != before:
        return f"it fails: {module.faults()[1]}"
    return None if path.use.events else "it takes no event"


def _identified(native: NativeModule | None, body: bytes) -> tuple[list[Event], list[Rejection]]:
    identifier = Identifier(IDENTITY, 3, Quarantine(IDENTITY, Topic("quarantine", 1)), LIMITS)
    identifier.native = native
    limits, found = JSONLimits(100, LIMITS.event_bytes_max), Identified()
    payload = None if native is None else at_once(native.read(body, limits, yield_to_nobody, Expected.BATCH))
    if payload is None:
        payload = at_once(parse_batch(body, limits, yield_to_nobody))
    found.take(identifier.identify(payload, ARRIVAL))
    return found.events, found.rejections
