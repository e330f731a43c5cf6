"""Notes: what was noted is read back, and no rule that decides where copies meet can be changed."""

from collections.abc import Callable

import pytest

from dedupe.decide.admission import Admission, admit
from dedupe.model.errors import ConfigurationError, IdentityMismatchError
from dedupe.model.types import Entry, Event, Topic
from dedupe.storage.log import NOTE_BYTES_MAX
from dedupe.storage.notes import FingerprintRule, Pin, Skips, adopt_rule, encode_rules

STREAM = Topic("events", 8)
KEY_CHECK = b"\x01" * 16
PIN = Pin(8, KEY_CHECK.hex())
DAY_MS = 86_400_000


# ---- pins


def test_pin_of_the_same_rules_passes() -> None:
    Pin.decode(PIN.encoded()).check(STREAM, KEY_CHECK)


def test_pin_of_a_later_version_with_more_fields_can_be_read() -> None:
    Pin.decode(PIN.encoded()[:-1] + ',"more":1}').check(STREAM, KEY_CHECK)


@pytest.mark.parametrize(
    ("pin", "words"),
    [
        (PIN._replace(partitions=4), "set it back to 4"),
        (PIN._replace(key_check="00" * 16), "another GATEWAY_IDENTITY_SECRET"),
        (PIN._replace(record_version=2), "run the newer gateway"),
    ],
)
def test_pin_of_other_rules_is_refused(pin: Pin, words: str) -> None:
    with pytest.raises(IdentityMismatchError, match=words):
        pin.check(STREAM, KEY_CHECK)


# ---- skips


def test_skips_hold_their_ranges() -> None:
    skips = Skips.decode(Skips().with_range(7, 7, log_start=0).with_range(20, 29, log_start=0).encoded())

    assert [offset for offset in range(40) if offset in skips] == [7, *range(20, 30)]


def test_skips_below_the_log_start_are_dropped() -> None:
    skips = Skips([(7, 7), (20, 29)]).with_range(40, 40, log_start=25)

    assert skips.ranges == [(20, 29), (40, 40)]


def test_skips_that_no_note_could_hold_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="skip ranges"):
        Skips((offset, offset) for offset in range(10**9, 10**9 + NOTE_BYTES_MAX)).encoded()


# ---- fingerprint rules


def rules_after(*changes: tuple[int, tuple[str, ...]]) -> list[FingerprintRule]:
    rules: list[FingerprintRule] = []
    for day, ignored in changes:
        stored = FingerprintRule.decode(encode_rules(rules))
        rules = adopt_rule(stored, ignored, now_ms=day * DAY_MS, remembered_ms=7 * DAY_MS)
    return rules


def test_rule_that_stays_is_the_only_one() -> None:
    assert rules_after((1, ("a", "b")), (2, ("b", "a"))) == [FingerprintRule(("a", "b"))]


def test_rule_that_was_changed_is_kept_for_as_long_as_its_events_are_remembered() -> None:
    changed = (1, ()), (2, ("a",))

    assert rules_after(*changed) == [FingerprintRule((), 2 * DAY_MS), FingerprintRule(("a",))]
    assert len(rules_after(*changed, (9, ("a",)))) == 2
    assert rules_after(*changed, (10, ("a",))) == [FingerprintRule(("a",))]


def test_rule_that_comes_back_is_in_force_once() -> None:
    assert rules_after((1, ()), (2, ("a",)), (3, ())) == [
        FingerprintRule(("a",), 3 * DAY_MS),
        FingerprintRule(()),
    ]


def test_retry_is_compared_by_the_rule_that_its_original_was_stored_under() -> None:
    stored = Entry(5, b"before..")
    retry = Event(b"k" * 16, 0, b"after...", "web", "id", b"{}", earlier_fingerprints=(b"before..",))
    other = retry._replace(earlier_fingerprints=(b"another.",))

    verdicts = admit([retry, other], [stored, stored], window_start=0)

    assert verdicts.admissions == [Admission.DUPLICATE, Admission.CONFLICT]


@pytest.mark.regression("A note of somebody else ended a start with a traceback.")
@pytest.mark.parametrize("read", [Pin.decode, Skips.decode, FingerprintRule.decode])
@pytest.mark.parametrize("text", ["", "{", "17", '[["a"]]'])
def test_note_that_no_gateway_wrote_is_refused_in_a_sentence(
    read: Callable[[str], object], text: str
) -> None:
    with pytest.raises(ConfigurationError, match="no gateway wrote the note"):
        read(text)
