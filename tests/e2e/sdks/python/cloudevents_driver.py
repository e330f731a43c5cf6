"""
Send CloudEvents with the SDK for Python, each of them in all modes, by its API of today and the earlier one.

Usage: cloudevents_driver.py URL
Prints as JSON the status of each answer, and the events in CloudEvents' JSON format.
"""

import json
import sys
from datetime import UTC, datetime
from typing import Any
from urllib.request import Request, urlopen

from cloudevents.core.bindings.http import to_binary_event, to_structured_event
from cloudevents.core.v1.event import CloudEvent
from cloudevents.v1 import conversion
from cloudevents.v1.http import CloudEvent as EarlierCloudEvent

DATA: list[tuple[str, Any]] = [
    ("application/json", {"price": 10, "name": "Käse", "tags": [1.5, None, True]}),
    ("application/octet-stream", b"\x00\xff\xfe"),
]
TIME = datetime(2026, 1, 1, tzinfo=UTC)
Message = tuple[dict[str, str], bytes]


def attributes_of(event_id: str, media_type: str) -> dict[str, Any]:
    return {
        "specversion": "1.0",
        "id": event_id,
        "source": "https://sdk.example/python",
        "type": "com.example.sold",
        "datacontenttype": media_type,
    }


def messages_of(media_type: str, data: Any) -> list[Message]:
    """Return an event in all modes, structured mode first."""
    attributes = attributes_of(f'{media_type} "Euro" € 😀 %41', media_type)
    event = CloudEvent({**attributes, "subject": "größe", "time": TIME}, data)
    structured, binary = to_structured_event(event), to_binary_event(event)
    batched = {"content-type": "application/cloudevents-batch+json"}, b"[%b]" % structured.body
    return [(structured.headers, structured.body), (binary.headers, binary.body), batched]


def earlier_messages_of(media_type: str, data: Any) -> list[Message]:
    """Return another event in both modes of the earlier API, which encodes no header."""
    attributes = attributes_of(f"earlier {media_type}", media_type)
    event = EarlierCloudEvent({**attributes, "time": TIME.isoformat()}, data)
    return [conversion.to_structured(event), conversion.to_binary(event, _json)]


def _json(data: Any) -> Any:
    return data if isinstance(data, bytes) else json.dumps(data).encode()


def main() -> None:
    statuses, events = [], []
    for media_type, data in DATA:
        for messages in messages_of(media_type, data), earlier_messages_of(media_type, data):
            events.append(json.loads(messages[0][1]))
            for headers, body in messages:
                with urlopen(Request(sys.argv[1], body, headers), timeout=30) as answer:
                    statuses.append(answer.status)
    print(json.dumps({"statuses": statuses, "events": events}))


if __name__ == "__main__":
    main()
