"""The quotas of an input's sources, which its records use as requests with the sources' write keys do."""

from collections.abc import Sequence

from app.auth.quotas import Allowance
from app.auth.write_keys import WriteKeys
from app.ingest.identified import Identified
from dedupe.decide.admission import Admission
from dedupe.model.types import Event


class SourceQuotas:
    """What is left of the quotas of one input's sources. What is used up is a pause, never a refusal."""

    def __init__(self, write_keys: WriteKeys, sources: Sequence[str]) -> None:
        self._write_keys = write_keys
        self._sources = sources

    def wait_s(self) -> float:
        """Return the seconds until an event of each source would pass."""
        return max((allowance.wait_s() for allowance in self._allowances().values()), default=0.0)

    def charge(self, identified: Identified) -> None:
        """Charge what is going to be decided."""
        for source, allowance in self._allowances().items():
            events = _of(source, identified.events)
            rejected = _of(source, identified.quarantined)
            allowance.charge(
                events=len(events) + len(rejected),
                size_bytes=_bytes_of(events) + _bytes_of(rejected),
                quarantine_bytes=_bytes_of(rejected),
                accepted=0,
            )

    def charge_verdicts(self, events: Sequence[Event], admissions: Sequence[Admission]) -> None:
        """Charge what follows from verdicts alone: conflicts are kept, and new ids remembered."""
        for source, allowance in self._allowances().items():
            own = [each for each in zip(events, admissions, strict=True) if each[0].source == source]
            conflicting = [event for event, admission in own if admission is Admission.CONFLICT]
            allowance.owe_quarantine(_bytes_of(conflicting))
            allowance.grow(sum(admission is Admission.NEW for _, admission in own))

    def _allowances(self) -> dict[str, Allowance]:
        """Return what the sources have left, of those that have a key with a quota."""
        found = {source: self._write_keys.allowance_of(source) for source in self._sources}
        return {source: allowance for source, allowance in found.items() if allowance is not None}


def _of(source: str, events: Sequence[Event]) -> list[Event]:
    return [event for event in events if event.source == source]


def _bytes_of(events: Sequence[Event]) -> int:
    return sum(len(event.value) for event in events)
