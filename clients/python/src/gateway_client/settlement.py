"""What becomes of the events of a batch after an answer."""

from collections.abc import Sequence
from typing import NamedTuple

from .answers import Fate, Verdict
from .model import Batch, DeadLetter, Place, Queued, event_of


class Settlement(NamedTuple):
    """What becomes of a batch."""

    done: list[int]
    """Sequences of events that do not wait there any more."""
    moved: list[Queued]
    """Of these, to go on in another session."""
    letters: list[DeadLetter]
    doubtful_through: int
    is_session_over: bool


def settlement_of(batch: Batch, verdicts: Sequence[Verdict]) -> Settlement:
    """
    Return what becomes of each event.

    A session that is over takes no new event, but of each that is stored it says so: all up to its
    watermark for good, those above while they are in the dedupe window. What is stored of a session has
    no gaps, so nothing above the watermark is, and what was refused goes on in another session. The
    exception is an event that was sent before, unanswered, behind one that may have left its place
    empty, because it was rejected or its messageId was known. Nobody can tell whether it is stored:
    it becomes a dead letter rather than be stored twice.
    """
    done, moved, letters = list[int](), list[Queued](), list[DeadLetter]()
    doubtful_through = batch.doubtful_through
    for sequence, (event, verdict) in enumerate(
        zip(batch.events, verdicts, strict=True), batch.first_sequence
    ):
        place = Place(batch.session, sequence)
        is_over = verdict.fate is Fate.SESSION_OVER
        if verdict.fate is not Fate.AGAIN:
            done.append(sequence)
        if is_over and sequence > doubtful_through:
            moved.append(event.moved_from(place))
        elif is_over or verdict.fate is Fate.REJECTED:
            letters.append(DeadLetter(place, verdict.code, verdict.message, event_of(event.content)))
        if sequence <= batch.sent_before and (verdict.fate is Fate.REJECTED or event.has_id):
            doubtful_through = batch.sent_before
    is_session_over = any(verdict.fate is Fate.SESSION_OVER for verdict in verdicts)
    return Settlement(done, moved, letters, doubtful_through, is_session_over)
