"""What a lane tells those whose submissions it does not decide."""

from dedupe.model.errors import FencedError, LaneNotActiveError, NotAppendedError, OutcomeUnknownError
from dedupe.partition.metrics import LaneCounts
from dedupe.partition.queue import Batch, LaneQueue, QueuedSubmission


class Refusals:
    """Answers the submissions of one lane with errors, and counts them."""

    def __init__(self, where: str, queue: LaneQueue, counts: LaneCounts) -> None:
        """`where` names the partition, for operators."""
        self._where = where
        self._queue = queue
        self._counts = counts

    def refuse_batch(self, batch: Batch, err: BaseException) -> None:
        """
        Answer the submissions of a batch whose commit failed.

        NotAppendedError says that nothing of a submission is in the log, neither of this batch nor of one
        before; any other error leaves the outcome unknown.
        """
        is_in_doubt = not isinstance(err, NotAppendedError | FencedError)
        self._counts.note_failed(batch, is_in_doubt=is_in_doubt)
        text = f"commit failed: {type(err).__name__}"
        for queued, _ in batch.shares:
            has_effect = is_in_doubt or bool(queued.offsets)
            queued.fail(OutcomeUnknownError(text) if has_effect else NotAppendedError(text))

    def refuse_expired(self) -> None:
        """Answer the submissions whose deadline is over."""
        for expired in self._queue.take_expired():
            self._refuse_untaken(expired)

    def refuse_queued(self) -> None:
        """Answer all submissions of the queue."""
        for queued in self._queue.take_all():
            self._refuse_untaken(queued)

    def _refuse_untaken(self, queued: QueuedSubmission) -> None:
        """Answer a submission with events that were not decided."""
        self._counts.note_untaken(queued)
        kind = OutcomeUnknownError if queued.taken else LaneNotActiveError
        queued.fail(kind(f"{self._where} stopped serving", detail="it stopped serving"))
