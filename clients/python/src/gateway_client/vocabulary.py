"""The calls of analytics: what each makes of its arguments is an event."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Generic, TypedDict, TypeVar, Unpack

from .model import VERSION, now_text

LIBRARY = {"name": "gateway-client-python", "version": VERSION}

_Queued = TypeVar("_Queued")


class Options(TypedDict, total=False):
    """What each call may say besides."""

    anonymous_id: str | None
    context: Mapping[str, Any] | None


class UserOptions(Options, total=False):
    """What calls about a user may say besides; without an id the event gets those that are kept."""

    user_id: str | None


class Vocabulary(ABC, Generic[_Queued]):
    """
    Track, identify, page, screen, group and alias.

    Each queues an event with the time of the call.
    """

    @abstractmethod
    def _say(self, event: dict[str, Any]) -> _Queued:
        """Queue an event, with what is kept about the user."""

    def track(
        self, event: str, *, properties: Mapping[str, Any] | None = None, **options: Unpack[UserOptions]
    ) -> _Queued:
        """Queue an action of a user."""
        return self._say(_event("track", options, event=event, properties=properties or {}))

    def identify(
        self,
        user_id: str | None = None,
        *,
        traits: Mapping[str, Any] | None = None,
        **options: Unpack[Options],
    ) -> _Queued:
        """Queue who the user is; the id is kept for later events until `reset`."""
        return self._say(_event("identify", {**options, "user_id": user_id}, traits=traits or {}))

    def page(
        self,
        name: str | None = None,
        *,
        properties: Mapping[str, Any] | None = None,
        **options: Unpack[UserOptions],
    ) -> _Queued:
        """Queue a view of a page."""
        return self._say(_event("page", options, name=name, properties=properties or {}))

    def screen(
        self,
        name: str | None = None,
        *,
        properties: Mapping[str, Any] | None = None,
        **options: Unpack[UserOptions],
    ) -> _Queued:
        """Queue a view of a screen."""
        return self._say(_event("screen", options, name=name, properties=properties or {}))

    def group(
        self, group_id: str, *, traits: Mapping[str, Any] | None = None, **options: Unpack[UserOptions]
    ) -> _Queued:
        """Queue which group the user belongs to."""
        return self._say(_event("group", options, groupId=group_id, traits=traits or {}))

    def alias(self, user_id: str, previous_id: str | None = None, **options: Unpack[Options]) -> _Queued:
        """Queue that two ids are one user's; without the previous one it is the id that was kept."""
        return self._say(_event("alias", {**options, "user_id": user_id}, previousId=previous_id))


def _event(kind: str, options: UserOptions, **fields: Any) -> dict[str, Any]:
    """Return an event without the fields that are None."""
    ids = {"userId": options.get("user_id"), "anonymousId": options.get("anonymous_id")}
    return {
        "type": kind,
        **{name: value for name, value in ids.items() if value},
        **{name: value for name, value in fields.items() if value is not None},
        "context": {"library": LIBRARY, **(options.get("context") or {})},
        "timestamp": now_text(),
    }
