"""
The rules by which an event's content is compared with that of its original.

An original may have been stored under earlier rules. A retry has its fingerprint by each of them as well, so
that a change of the rules makes no retry a conflict.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from dedupe.model.identity import (
    EQUAL_NUMBERS,
    RETRY_FIELDS,
    canonical_content,
    canonical_json,
    fingerprint_of,
    json_with_numbers,
)
from dedupe.model.json_number import COMPARED, NEAREST, STORED, Form, Number
from dedupe.model.types import Fingerprint

stored_json: Callable[[Mapping[str, Any]], bytes] = partial(json_with_numbers, form=STORED)
"""Returns what canonical_json is of a document, with its Numbers as they are stored."""


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

    def fingerprints(self, item: dict[str, Any], ignored: frozenset[str]) -> Iterator[Fingerprint]:
        """
        Yield the fingerprint of an item with a Number, and then those by the earlier rules.

        Args:
            item: the item, whose numbers are read.
            ignored: the fields that are not content.
        """
        always = RETRY_FIELDS | (ignored - self.ignore)
        yield _fingerprint(item, ignored, COMPARED)
        for fields, is_equal in self._earlier:
            yield _fingerprint(item, always | fields, COMPARED if is_equal else NEAREST)


def _fingerprint(
    item: dict[str, Any], ignored: frozenset[str], form: Callable[[Number], Form]
) -> Fingerprint:
    kept = {name: value for name, value in item.items() if name not in ignored}
    return fingerprint_of(json_with_numbers(kept, form))


def content_of(
    item: dict[str, Any],
    ignored: frozenset[str],
    replaced: frozenset[str],
    to_json: Callable[[Mapping[str, Any]], bytes] = canonical_json,
) -> tuple[bytes, bytes]:
    """
    Return the content of an item as it is stored, and the JSON of the other fields of its record.

    Args:
        item: the item.
        ignored: the fields that are not content.
        replaced: those of them that are not part of the record either.
        to_json: writes both.

    Raises:
        TypeError: see canonical_json.
    """
    present = ignored.intersection(item)
    if not present:
        return to_json(item), b""
    content = item.copy()
    retried = {name: content.pop(name) for name in present}
    for name in replaced & present:
        del retried[name]
    return to_json(content), to_json(retried) if retried else b""
