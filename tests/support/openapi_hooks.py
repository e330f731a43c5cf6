"""
Loaded by schemathesis (SCHEMATHESIS_HOOKS): what an OpenAPI document cannot say of headers.

Of a client session, client and session come together, and the body must not contradict the head. What the
document calls invalid is refused if the client wants all or nothing; otherwise it is kept in quarantine.
"""

from typing import Any

import schemathesis

NUMBERS = ("epoch", "acknowledgedThrough", "firstSequence")
FIELDS = ("Gateway-Client", "Gateway-Session", "Gateway-Session-Epoch", "Gateway-Acknowledged-Through")


@schemathesis.hook
def before_call(_context: Any, case: Any, **_kwargs: Any) -> None:
    """Let a request that is to be valid say all of its client session, or nothing, and in one place."""
    if isinstance(case.body, dict):  # a schema takes 1.0 for an integer, and the gateway does not
        case.body |= {name: int(case.body[name]) for name in NUMBERS if type(case.body.get(name)) is float}
    if not case.meta.generation.mode.is_positive and case.operation.method.upper() == "POST":
        case.headers = {**(case.headers or {}), "Prefer": "handling=strict"}
    if case.operation.path != "/v1/events" or not case.meta.generation.mode.is_positive or not case.headers:
        return
    in_body = isinstance(case.body, dict) and {"client", "session"} & case.body.keys()
    if in_body or not {*FIELDS[:2]} <= set(case.headers):
        for name in FIELDS:
            case.headers.pop(name, None)
