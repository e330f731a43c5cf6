"""Claim: what workers send one another has the same bytes in every release of a version."""

from app.peers.codec import Forwarded, outcomes_body, submissions_body
from app.peers.frames import Kind, frame_of, packed
from dedupe.cluster.codec import encode_committed, encode_entry, encode_rows
from dedupe.cluster.links import Status
from dedupe.decide.admission import Admission
from dedupe.decide.committed import Committed, LastRecord
from dedupe.decide.sessions import SessionState
from dedupe.model.clock import Deadline
from dedupe.model.types import Entry, Event, Order, Progress, Session, with_headers
from dedupe.submission import Outcomes, Submission
from tests.unit.peers.test_codec import CLOCK

EVENT = Event(bytes(16), 1, bytes(8), "source", "id", b"{}")
SESSION = Session(b"c" * 16, b"s" * 16, 3, 1, 2, Progress(2, 5))
RARE = EVENT._replace(session=SESSION, secondary_key=b"g" * 16, order=Order.STRICT, flags=2)
FIRST = Forwarded(1, 7, Submission([EVENT], 5, Deadline(CLOCK, 4.5), 99))
SECOND = Forwarded(2, 8, Submission([RARE, EVENT._replace(partition=2)], 6, Deadline(CLOCK, 4.4), 98))


def test_kinds_of_frames_are_frozen() -> None:
    numbers = {name: number for name, number in vars(Kind).items() if name.isupper()}
    assert numbers == {
        "HELLO": 1,
        "CHALLENGE": 2,
        "PROOF": 3,
        "WELCOME": 4,
        "STATUS": 5,
        "PING": 6,
        "SUBMIT": 7,
        "OUTCOMES": 8,
        "FAILED": 9,
        "REQUEST": 10,
        "RESPONSE": 11,
        "NOTIFY": 12,
        "NEWEST": 12,
    }


def test_submissions_are_frozen() -> None:
    assert submissions_body([FIRST]).hex() == (
        "9c96010705cd11946301c41800000000000000000000000000000000000000000000000001a6736f7572"
        "636591a2696491c4027b7d00c0c0c0c0c0"
    )
    assert frame_of(1, Kind.SUBMIT, 0, submissions_body([FIRST, SECOND])).hex() == (
        "00000116010700000000000000009c9c010705cd11946301020806cd11306202c4480000000000000000"
        "000000000000000000000000000000000000000000000000000000000000000000000000000000000000"
        "0000000000000000000000000000000000000000000093010102a6736f7572636593a26964a26964a269"
        "6493c4027b7dc4027b7dc4027b7d9300020093c096c41063636363636363636363636363636363c41073"
        "7373737373737373737373737373730301029202c4400000000000000000000000000000000000000000"
        "000000000000000000000000000000000000000000000000000000000000000000000000000000000000"
        "0005c0c0c093c0c41067676767676767676767676767676767c093000100"
    )


def test_headers_of_events_from_topics_are_frozen() -> None:
    headed = with_headers(EVENT, [("origin", b"r:r/0/7")])
    submission = Submission([EVENT, headed], 5, Deadline(CLOCK, 4.5), 99)
    plain = submissions_body([Forwarded(1, 7, submission._replace(events=[EVENT, EVENT]))]).hex()
    assert submissions_body([Forwarded(1, 7, submission)]).hex() == (
        "9d" + plain[2:] + "9290" + "9192a66f726967696ec407" + b"r:r/0/7".hex()
    )


def test_outcomes_are_frozen() -> None:
    decided = [
        (1, Outcomes([Admission.NEW], [3])),
        (2, Outcomes([Admission.CONFLICT, Admission.GAP], [4, -1])),
    ]
    assert outcomes_body(decided).hex() == "93920102c403000305930304ff"


def test_what_a_group_sends_is_frozen() -> None:
    committed = Committed(1, 2, 3, LastRecord(1, b"k" * 16, 3), [b"k" * 16], [b"f" * 8], [None], [SESSION])
    assert packed(encode_committed(4, committed)).hex() == (
        "9b040102039301c4106b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b03c4106b6b6b6b6b6b6b6b6b6b6b6b6b6b"
        "6b6bc408666666666666666691c09196c41063636363636363636363636363636363c410737373737373"
        "737373737373737373730301029202c401059090"
    )
    status = Status(3, frozenset({1, 2}), frozenset({2}), frozenset({1}), is_leaving=True)
    assert packed(status.encode()).hex() == "950392010291029101c3"
    assert packed(encode_rows([(b"k" * 32, SessionState(1, 2, 3, 4, 5, 6))])).hex() == (
        "9192c4206b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b9901c4010203040506c2c4"
        "080000000000000000ff"
    )
    assert packed(encode_entry(Entry(5, b"f" * 8))).hex() == "9205c4086666666666666666"
