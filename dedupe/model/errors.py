"""
The errors of the core.

    GatewayError
      RetriableError             the same request may succeed later
        LaneNotActiveError       the lane is restoring, draining or lost; nothing was accepted
        LaneSaturatedError       the lane's queue is full; nothing was accepted
        DiskFullError            too little free disk space; nothing was accepted
        DeadlineExceededError    no verdict in time; the events may still be committed
        NotAppendedError         nothing is or will be appended
          RecordsRefusedError    the log takes no batch with these records; a smaller one may do
        OutcomeUnknownError      the append may or may not be committed
        FencedError              another producer epoch owns the partition
        IndexUnavailableError    the machine or a lock prevents access to the index: open it again later
      IndexCorruptError          the index is wrong or in doubt: rebuild it from the log
        IndexDisprovedError      the log has disproved an entry: its copies may have it, too
      LogCorruptError            the log has a record that no gateway of this version wrote
      IdentityMismatchError      the log was written under another secret or partition count
        DividedAnewError         the topic was divided since the process opened the log: open it again
      ConfigurationError         the process must not start with these settings

`code` is stable; docs/http-api.md documents the codes that clients receive. An error's text is for operators,
`detail` is for clients.
"""

from typing import ClassVar


class GatewayError(Exception):
    """Base of the gateway's errors."""

    code: ClassVar[str] = "internal"
    retriable: ClassVar[bool] = False

    def __init__(self, *args: object, detail: str = "") -> None:
        """
        Set the text for operators and the one for clients.

        Args:
            args: those of any exception; never shown to a client.
            detail: the reason for clients, in a few words, without internal names, addresses or contents.
        """
        super().__init__(*args)
        self.detail = detail


class RetriableError(GatewayError):
    """The same request may succeed later; a retry with the same ids stores nothing twice."""

    code = "unavailable"
    retriable = True


class LaneNotActiveError(RetriableError):
    """A lane of the request does not serve now. Nothing was accepted."""

    code = "lane_not_active"


class LaneSaturatedError(RetriableError):
    """The queue of a lane of the request is full. Nothing was accepted."""

    code = "overloaded"


class DiskFullError(RetriableError):
    """Free disk space is below the configured minimum. Nothing was accepted."""

    code = "disk_full"


class DeadlineExceededError(RetriableError):
    """No verdict within the request's deadline; the events may still be committed."""

    code = "deadline_exceeded"


class NotAppendedError(RetriableError):
    """Nothing is or will be appended; the lane must fence before the next append."""

    code = "not_appended"

    def __init__(self, *args: object, detail: str = "", is_log_time_refused: bool = False) -> None:
        """
        Set the texts, see GatewayError.

        Args:
            args: the text for operators.
            detail: the text for clients.
            is_log_time_refused: whether the log takes no record of this log time: a clock is wrong, or was
                when the process started.
        """
        super().__init__(*args, detail=detail)
        self.is_log_time_refused = is_log_time_refused


class RecordsRefusedError(NotAppendedError):
    """
    The log takes no batch of these records, for their size or content, and may take a part of them.

    Nothing is or will be appended, and the writer goes on without a fence. Clients never see it.
    """

    code = "records_refused"

    def __init__(self, *args: object, detail: str = "", is_for_size: bool = True) -> None:
        """
        Set the texts, see GatewayError.

        Args:
            args: the text for operators; it names the setting.
            detail: the text for clients.
            is_for_size: whether the size is why, not the content.
        """
        super().__init__(*args, detail=detail)
        self.is_for_size = is_for_size


class OutcomeUnknownError(RetriableError):
    """The append may or may not be committed; a read of the log after a fence shows which."""

    code = "outcome_unknown"

    def __init__(self, *args: object, detail: str = "", is_unanswered: bool = False) -> None:
        """
        Set the texts, see GatewayError.

        Args:
            args: the text for operators.
            detail: the text for clients.
            is_unanswered: whether the log gave no answer at all, in time or before the connection broke.
        """
        super().__init__(*args, detail=detail)
        self.is_unanswered = is_unanswered


class FencedError(RetriableError):
    """A newer producer epoch owns the partition; nothing of this append is or will be committed."""

    code = "fenced"


class IndexUnavailableError(RetriableError):
    """The index cannot be opened, read or written now, but is not damaged. Open it again later."""

    code = "index_unavailable"


class IndexCorruptError(GatewayError):
    """The index is wrong or in doubt. Discard it and rebuild it from the log."""

    code = "index_corrupt"


class IndexDisprovedError(IndexCorruptError):
    """The log has disproved an entry. Copies of the index may have it too: rebuild it from the log alone."""

    code = "index_disproved"

    def __init__(self, *args: object, detail: str = "", lineage: bytes = b"") -> None:
        super().__init__(*args, detail=detail)
        self.lineage = lineage
        """That of the index, see DedupeIndex; empty if it is not known."""


class LogCorruptError(GatewayError):
    """A record does not have record format v1. Final until an operator acts."""

    code = "log_corrupt"


class IdentityMismatchError(GatewayError):
    """The log was written under another identity secret or partition count. Final: refuse to serve."""

    code = "identity_mismatch"


class DividedAnewError(IdentityMismatchError):
    """The topic was divided since this process opened the log: it must not serve before it opens it again."""

    code = "divided_anew"


class ConfigurationError(GatewayError):
    """Settings, topic or broker are unsafe or contradict each other. Final: refuse to start."""

    code = "configuration"
