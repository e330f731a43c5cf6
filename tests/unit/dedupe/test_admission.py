"""Admission: the first copy is new, later ones follow it, and nothing else is ever concluded."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dedupe.admission import Admission, Verdicts, admit
from dedupe.types import Entry, Event

EXAMPLES = settings(max_examples=300)

NEW, REPEAT, DUPLICATE, CONFLICT = Admission.NEW, Admission.REPEAT, Admission.DUPLICATE, Admission.CONFLICT


def event(key: str, content: str = "x") -> Event:
    return Event(key.encode(), 0, content.encode(), "source", key, b"{}")


def known(offset: int, content: str = "x") -> Entry:
    return Entry(offset, content.encode())


@pytest.mark.parametrize(
    ("events", "entries", "verdicts"),
    [
        pytest.param([], [], [], id="nothing"),
        pytest.param([event("a")], [None], [(NEW, ~0)], id="new"),
        pytest.param(
            [event("a"), event("b"), event("c")],
            [None, None, None],
            [(NEW, ~0), (NEW, ~1), (NEW, ~2)],
            id="places count the new ones",
        ),
        pytest.param([event("a")], [known(70)], [(DUPLICATE, 70)], id="known"),
        pytest.param([event("a", "y")], [known(70)], [(CONFLICT, 70)], id="known, other content"),
        pytest.param([event("a")], [known(50)], [(DUPLICATE, 50)], id="known at the window's start"),
        pytest.param([event("a")], [known(49)], [(NEW, ~0)], id="known before the window"),
        pytest.param([event("a", "y")], [known(49)], [(NEW, ~0)], id="other content before the window"),
        pytest.param(
            [event("a"), event("a")],
            [None, None],
            [(NEW, ~0), (REPEAT, ~0)],
            id="copy in the batch",
        ),
        pytest.param(
            [event("a"), event("a", "y"), event("a")],
            [None, None, None],
            [(NEW, ~0), (CONFLICT, ~0), (REPEAT, ~0)],
            id="conflict in the batch leaves the original in place",
        ),
        pytest.param(
            [event("a"), event("b"), event("c"), event("b"), event("a", "y")],
            [known(60), None, None, None, known(60)],
            [
                (DUPLICATE, 60),
                (NEW, ~0),
                (NEW, ~1),
                (REPEAT, ~0),
                (CONFLICT, 60),
            ],
            id="one duplicate drops nothing else",
        ),
        pytest.param(
            [event("a"), event("a")],
            [known(49), known(49)],
            [(NEW, ~0), (REPEAT, ~0)],
            id="copies of a forgotten one",
        ),
    ],
)
def test_verdicts(
    events: Sequence[Event], entries: Sequence[Entry | None], verdicts: list[tuple[Admission, int]]
) -> None:
    admitted = admit(events, entries, window_start=50)
    assert list(zip(*admitted, strict=True)) == verdicts


def test_originals_in_the_batch_are_where_the_new_ones_begin() -> None:
    verdicts = Verdicts([DUPLICATE, NEW, NEW, REPEAT, CONFLICT], [60, ~0, ~1, ~0, 61])
    assert verdicts.offsets(100) == [60, 100, 101, 100, 61]


def test_entries_must_match_the_events() -> None:
    with pytest.raises(AssertionError):
        admit([event("a")], [], window_start=0)


@EXAMPLES
@given(
    st.lists(st.tuples(st.sampled_from("abcdef"), st.sampled_from("xy")), max_size=40),
    st.dictionaries(st.sampled_from("abcdef"), st.tuples(st.integers(0, 9), st.sampled_from("xy"))),
    st.integers(0, 10),
)
def test_verdicts_are_those_of_one_event_after_the_other(
    sent: list[tuple[str, str]], index: dict[str, tuple[int, str]], window_start: int
) -> None:
    events = [event(key, content) for key, content in sent]
    entries = [known(*index[key]) if key in index else None for key, _ in sent]

    verdicts = zip(*admit(events, entries, window_start=window_start), strict=True)

    # The model keeps one dictionary of originals and judges event by event, as if each were a batch.
    originals = {key: entry for key, entry in index.items() if entry[0] >= window_start}
    new_count = 0
    for (key, content), verdict in zip(sent, verdicts, strict=True):
        if key not in originals:
            originals[key] = (~new_count, content)
            assert verdict == (NEW, ~new_count)
            new_count += 1
            continue
        place, original = originals[key]
        copy = REPEAT if place < 0 else DUPLICATE
        assert verdict == (copy if content == original else CONFLICT, place)
