"""Claim: in development an answer says what was surely meant otherwise, and nothing of what is right."""

from typing import Any

import pytest

from app.ingest.advice import ADVICE_MAX, NO_ID, NO_NAME, UNKNOWN_TYPE, advice_on
from app.ingest.client_sessions import ClientSession
from app.ingest.identified import Arrival

ARRIVAL = Arrival("web", 0)
SESSION = ClientSession(
    "phone-1", "2dlpu8idjvw2es2uvixfliqQYNu", 0, 0, None, frozenset(), bytes(16), bytes(16)
)


@pytest.mark.parametrize(
    ("item", "arrival", "messages"),
    [
        ({"messageId": "1", "type": "track", "event": "Seen"}, ARRIVAL, []),
        ({"messageId": "1", "event": "Seen"}, ARRIVAL, []),
        ({"messageId": "1"}, ARRIVAL._replace(default_type="page"), []),
        ({"messageId": "1"}, ARRIVAL._replace(default_type="event"), []),
        ({"event": "Seen"}, ARRIVAL, [NO_ID]),
        ({"messageId": None, "event": "Seen"}, ARRIVAL, [NO_ID]),
        ({"event": "Seen"}, ARRIVAL._replace(idempotency_key=b"k"), []),
        ({"event": "Seen", "sequence": 1}, ARRIVAL._replace(session=SESSION), []),
        ({"messageId": "1", "type": "Track", "event": "Seen"}, ARRIVAL, [UNKNOWN_TYPE]),
        ({"messageId": "1", "type": []}, ARRIVAL, [UNKNOWN_TYPE]),
        ({"messageId": "1", "type": "track"}, ARRIVAL, [NO_NAME]),
        ({"messageId": "1", "event": ""}, ARRIVAL, [NO_NAME]),
        ({}, ARRIVAL, [NO_ID, NO_NAME]),
        (5, ARRIVAL, []),
    ],
)
def test_only_what_is_surely_meant_otherwise_is_said(
    item: Any, arrival: Arrival, messages: list[str]
) -> None:
    good = {"messageId": "0", "type": "page"}
    assert advice_on([good, item], arrival) == [{"index": 1, "message": message} for message in messages]


def test_advice_of_one_answer_is_bounded() -> None:
    assert len(advice_on([{}] * 2_500, ARRIVAL)) == ADVICE_MAX
