"""
Everything the core raises, as one tree.

    GatewayError
      RetriableError             try the same request again, unchanged
        LaneNotActiveError       the lane is restoring, draining or lost; nothing was taken
        LaneSaturatedError       the lane's queue is full; nothing was taken
        DiskFullError            too little free disk; nothing was taken
        DeadlineExceededError    no verdict in time; the events may still be committed
        NotAppendedError         the append left no trace and never will
        OutcomeUnknownError      the append may or may not be committed
        FencedError              another producer epoch owns the partition
        IndexUnavailableError    the machine or a lock prevents access to the index: open it again later
      IndexCorruptError          the local index is wrong or in doubt: rebuild it from the log
      LogCorruptError            the log holds a record that no gateway of this version wrote
      IdentityMismatchError      the log was written under another secret or partition count
      ConfigurationError         the process must not start like this

`code` is stable and documented in docs/http-api.md where a client can see it. An error's text is for
operators; `detail` is for clients.
"""

from typing import ClassVar


class GatewayError(Exception):
    """Base of all errors that the gateway raises on purpose."""

    code: ClassVar[str] = "internal"
    retriable: ClassVar[bool] = False

    def __init__(self, *args: object, detail: str = "") -> None:
        """
        Keep the text for operators, and the text for clients.

        Args:
            args: as of any exception; never shown to a client.
            detail: the reason for clients, in a few words, without internal names, addresses or contents.
        """
        super().__init__(*args)
        self.detail = detail


class RetriableError(GatewayError):
    """The same request may succeed later; retrying it with the same ids is harmless."""

    code = "unavailable"
    retriable = True


class LaneNotActiveError(RetriableError):
    """A lane of the request does not serve at the moment. Nothing was taken."""

    code = "lane_not_active"


class LaneSaturatedError(RetriableError):
    """A lane of the request has no room in its queue. Nothing was taken."""

    code = "overloaded"


class DiskFullError(RetriableError):
    """Free disk space is below the configured minimum. Nothing was taken."""

    code = "disk_full"


class DeadlineExceededError(RetriableError):
    """No verdict within the request's deadline; the events may still be committed."""

    code = "deadline_exceeded"


class NotAppendedError(RetriableError):
    """The append definitely left nothing behind; the lane must fence before the next one."""

    code = "not_appended"


class OutcomeUnknownError(RetriableError):
    """The append may or may not be committed; a read of the log after a fence shows which."""

    code = "outcome_unknown"


class FencedError(RetriableError):
    """A newer producer epoch owns the partition; nothing of this append is or will be committed."""

    code = "fenced"


class IndexUnavailableError(RetriableError):
    """The index cannot be opened, read or written now, and is not to blame. Open it again later."""

    code = "index_unavailable"


class IndexCorruptError(GatewayError):
    """The index is wrong or in doubt. Discard it and restore from the log, loudly."""

    code = "index_corrupt"


class LogCorruptError(GatewayError):
    """A record cannot be read as record format v1. Final until an operator looks."""

    code = "log_corrupt"


class IdentityMismatchError(GatewayError):
    """The log was written under another identity secret or partition count. Final: refuse to serve."""

    code = "identity_mismatch"


class ConfigurationError(GatewayError):
    """Settings, topic or broker are unsafe or contradict each other. Final: refuse to start."""

    code = "configuration"
