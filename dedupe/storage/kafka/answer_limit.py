"""
How long a question to a broker waits for its answer: briefly, unless the answers of this cluster take long.

A broker that stands still keeps its connections, so nothing but time tells; another broker may know the
answer. Appends have a limit of their own, the request timeout: their outcome is unknown after it.
"""

ASK_S = 2.5
"""The least limit of questions for topics, leaders and coordinators, and of a new connection."""

TIMES = 2
"""The limit beside the last answer's time, and the growth of the limit after silence."""


class AnswerLimit:
    """The present limit, shared by all connections to one cluster."""

    def __init__(self) -> None:
        self.seconds = ASK_S

    def note_answer(self, took_s: float) -> None:
        """Follow the time that an answer took, down to ASK_S."""
        self.seconds = max(ASK_S, TIMES * took_s)

    def note_silence(self, limit_s: float) -> None:
        """Allow more than the limit within which no answer came: the whole cluster may be slow."""
        self.seconds = max(self.seconds, TIMES * limit_s)
