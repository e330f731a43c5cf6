"""What the console says of an event's content: filters, warnings, and the content with its values hidden."""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, NamedTuple

HIDDEN = "•••"
ITEMS_SHOWN = 20
"""The items of a list that are shown hidden; the rest are alike."""

FUTURE_MAX_S, PAST_MAX_S = 3_600, 365 * 86_400

TYPES = {str: "text", bool: "boolean", int: "number", float: "number", dict: "object", list: "list"}


class Content(NamedTuple):
    """A filter by content; an empty text admits every event."""

    user: str = ""
    anonymous_id: str = ""
    event: str = ""

    def may_be_in(self, value: bytes) -> bool:
        """Whether the text may be there, without parsing; other texts than plain ones may be escaped."""
        plain = (text for text in self if text and text.isascii() and text.replace("-", "").isalnum())
        return all(text.encode() in value for text in plain)

    def admits(self, event: dict[str, Any]) -> bool:
        """Whether an event passes."""
        return (
            (not self.user or _texts(event, "userId") == self.user)
            and (not self.anonymous_id or _texts(event, "anonymousId") == self.anonymous_id)
            and (not self.event or self.event in (event.get("event"), event.get("name"), event.get("type")))
        )


def _texts(event: dict[str, Any], name: str) -> str | None:
    value = event.get(name)
    return None if value is None else str(value)


def hidden(value: Any) -> Any:
    """Return a document with its fields, and HIDDEN for every value."""
    if isinstance(value, dict):
        return {name: hidden(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [hidden(inner) for inner in value[:ITEMS_SHOWN]]
    return HIDDEN


def warnings_of(event: dict[str, Any], at_ms: int) -> list[dict[str, str]]:
    """Return what an analyst will ask about an event that was taken: each with a code and a sentence."""
    found = []
    if not event.get("userId") and not event.get("anonymousId"):
        found.append(("no_user", "It has neither userId nor anonymousId: nobody's event."))
    for name in ("originalTimestamp", "timestamp"):
        if (why := _oddness(event.get(name), at_ms)) is not None:
            found.append(("odd_timestamp", f"Its {name} {why}."))
    return [{"code": code, "detail": detail} for code, detail in found]


def _oddness(value: object, at_ms: int) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str):
        return "is no text in ISO 8601"
    try:
        time = datetime.fromisoformat(value[:40])
        age_s = at_ms / 1000 - (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return "is no time in ISO 8601"
    if age_s < -FUTURE_MAX_S:
        return "is more than an hour ahead"
    return "is more than a year ago" if age_s > PAST_MAX_S else None


def changed_types(event: dict[str, Any], earlier: Iterable[dict[str, Any]]) -> list[dict[str, str]]:
    """Return a warning for each property or trait that had another type the last time, newest first."""
    wanted = {
        (part, name): _type_of(value)
        for part in ("properties", "traits")
        for name, value in _fields(event, part).items()
        if value is not None
    }
    found = []
    for other in earlier:
        for (part, name), now in list(wanted.items()):
            before = _type_of(_fields(other, part).get(name))
            if before is None:
                continue
            del wanted[part, name]
            if before != now:
                detail = f"{part}.{name} is a {now}; it was a {before} in the event before."
                found.append({"code": "type_changed", "detail": detail})
        if not wanted:
            break
    return found


def _fields(event: dict[str, Any], part: str) -> dict[str, Any]:
    value = event.get(part)
    return value if isinstance(value, dict) else {}


def _type_of(value: object) -> str | None:
    return TYPES.get(type(value))
