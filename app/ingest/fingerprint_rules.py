"""
The rules by which an event's content is compared with that of its original.

An original may have been stored under earlier rules. A retry has its fingerprint by each of them as well, so
that a change of the rules makes no retry a conflict.
"""

from collections.abc import Sequence
from typing import Any

from dedupe.model.identity import (
    EQUAL_NUMBERS,
    RETRY_FIELDS,
    canonical_content,
    canonical_json,
    fingerprint_of,
)
from dedupe.model.json_number import Number, Place, fill
from dedupe.model.types import Fingerprint


class FingerprintRules:
    """The rule in force, and earlier ones by which remembered events may be stored."""

    def __init__(self, ignore: frozenset[str], earlier: Sequence[frozenset[str]]) -> None:
        """
        Prepare the rules.

        Args:
            ignore: fields that retries change, besides RETRY_FIELDS.
            earlier: the noted fields of earlier rules; see EQUAL_NUMBERS.
        """
        self.ignore = RETRY_FIELDS | ignore
        self._earlier = [(rule - {EQUAL_NUMBERS}, EQUAL_NUMBERS in rule) for rule in earlier]
        self._by_fields = list(dict.fromkeys(fields for fields, _ in self._earlier))
        self.changed_fields = frozenset[str]().union(*(fields ^ ignore for fields in self._by_fields))
        """The fields of which the earlier rules differ; an event without them, and without a Number, has no
        other fingerprint by these."""

    def earlier_of(self, item: dict[str, Any], ignored: frozenset[str]) -> tuple[Fingerprint, ...]:
        """Return the fingerprints of an item without a Number by the earlier rules, if these differ."""
        if self.changed_fields.isdisjoint(item):
            return ()
        always = RETRY_FIELDS | (ignored - self.ignore)
        return tuple(fingerprint_of(canonical_content(item, always | fields)) for fields in self._by_fields)

    def compared(
        self, item: dict[str, Any], ignored: frozenset[str], numbers: Sequence[Place]
    ) -> tuple[Fingerprint, tuple[Fingerprint, ...]]:
        """
        Return the fingerprint of an item with a Number, and those by the earlier rules.

        Args:
            item: the item, with all numbers as they are stored, as it also is afterwards.
            ignored: the fields that are not content.
            numbers: the places of its numbers.
        """
        always = RETRY_FIELDS | (ignored - self.ignore)
        fill(numbers, Number.compared)
        fingerprint = fingerprint_of(canonical_content(item, ignored))
        earlier: list[Fingerprint] = []
        for fields, is_equal in self._earlier:
            fill(numbers, Number.compared if is_equal else Number.compared_before)
            earlier.append(fingerprint_of(canonical_content(item, always | fields)))
        fill(numbers, Number.stored)
        return fingerprint, tuple(earlier)


def content_of(
    item: dict[str, Any], ignored: frozenset[str], replaced: frozenset[str]
) -> tuple[bytes, bytes]:
    """
    Return the content of an item as it is stored, and the JSON of the other fields of its record.

    Args:
        item: the item.
        ignored: the fields that are not content.
        replaced: those of them that are not part of the record either.

    Raises:
        TypeError: see canonical_json.
    """
    present = ignored.intersection(item)
    if not present:
        return canonical_json(item), b""
    content = item.copy()
    retried = {name: content.pop(name) for name in present}
    for name in replaced & present:
        del retried[name]
    return canonical_json(content), canonical_json(retried) if retried else b""
