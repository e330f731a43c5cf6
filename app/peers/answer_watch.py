"""
AnswerWatch: whether the other side of a connection still receives in time what is submitted to it.

A path may accept bytes, let pings pass, or trickle, and deliver nothing in time. So while a submission waits,
the other side is asked for an echo behind it, which it answers at once, however long its log takes.
"""

from app.peers.limits import ANSWER_BYTES_PER_S, ANSWER_S, CHECK_S, PING_S


class AnswerWatch:
    """Counts checks, CHECK_S apart, not the clock: a suspended process has heard nothing meanwhile."""

    def __init__(self) -> None:
        """Nothing waits."""
        self._is_asked = False
        self._asked_at = -PING_S
        self._oldest = 0  # submission at the last check
        self._checks = 0  # for which the oldest one, or the echo, is waited for
        self._limit = 0

    def is_over(self) -> bool:
        """Count a check; return whether the echo is too late."""
        self._checks += self._is_asked
        return self._checks > self._limit

    def is_due(self, oldest: int, now: float) -> bool:
        """
        Return whether to ask for an echo.

        Args:
            oldest: the number of the submission that waits longest; 0 if none does.
            now: the loop's time, in seconds.
        """
        was_oldest, self._oldest = self._oldest, oldest
        return 0 < oldest == was_oldest and not self._is_asked and now - self._asked_at >= PING_S

    def ask(self, now: float, bytes_ahead: int) -> None:
        """Note that an echo is asked for, behind this number of bytes."""
        self._is_asked, self._asked_at = True, now
        self._checks = 2  # since the oldest submission was made, at most
        self._limit = round((ANSWER_S + bytes_ahead / ANSWER_BYTES_PER_S) / CHECK_S)

    def note_echo(self) -> None:
        """Note the echo."""
        self._is_asked = False
        self._checks = 0
