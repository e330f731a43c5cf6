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

    def charge(self, identified: Identified, admissions: Sequence[Admission]) -> None:
        """Charge what was decided."""
        for source, allowance in self._allowances().items():
            own = [
                (event, admission)
                for event, admission in zip(identified.events, admissions, strict=True)
                if event.source == source
            ]
            rejected = [event for event in identified.quarantined if event.source == source]
            conflicting = [event for event, admission in own if admission is Admission.CONFLICT]
            allowance.charge(
                events=len(own) + len(rejected),
                size_bytes=_bytes_of([event for event, _ in own]) + _bytes_of(rejected),
                quarantine_bytes=_bytes_of(rejected) + _bytes_of(conflicting),
                accepted=sum(admission is Admission.NEW for _, admission in own),
            )

    def _allowances(self) -> dict[str, Allowance]:
        """Return what the sources have left, of those that have a key with a quota."""
        found = {source: self._write_keys.allowance_of(source) for source in self._sources}
        return {source: allowance for source, allowance in found.items() if allowance is not None}


def _bytes_of(events: Sequence[Event]) -> int:
    return sum(len(event.value) for event in events)
