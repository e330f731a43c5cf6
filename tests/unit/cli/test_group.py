"""Claim: `gateway group` names everything that a restart of a worker would make worse, and nothing else."""

from typing import Any

import pytest

from app.cli.group import RISKS, broken_links, ranges, restart_risks, rows_of, verdicts


def stats(
    states: str, *, follows: str = "", group: dict[str, Any] | None = None, **lane: Any
) -> dict[str, Any]:
    """Return a worker's statistics; `states` has a letter for each lane, quarantine's last."""
    names = {"a": "active", "f": "following", "-": "unassigned", "r": "restoring"}
    lanes = [
        {
            "partition": number,
            "state": names[state],
            "caught_up": str(number) in follows,
            "in_doubt": 0,
            "last_error": None,
            **lane,
        }
        for number, state in enumerate(states)
    ]
    quarantine = [lanes.pop() | {"partition": 0}]
    told = {"leaving": False} | (group or {})
    return {
        "group": told,
        "totals": {"received": 3},
        "disk": {"has_room": True},
        "partitions": lanes,
        "quarantine": quarantine,
    }


A = stats("aaf-")
B = stats("ffaa", follows="01")
FENCED = A | {"partitions": [*A["partitions"][:2], A["partitions"][2] | {"last_error": "FencedError"}]}
"""A has lost a partition to the worker that serves it now."""


def risks_of_a(own: dict[str, Any], others: dict[str, Any], silent: dict[str, str]) -> list[str]:
    return list(restart_risks("a", {"workers": {"a": own, **others}, "silent": silent}))


@pytest.mark.regression(
    "A worker that others had taken a partition from counted as failing: no plan was taken until it ended."
)
@pytest.mark.parametrize(
    ("own", "others", "silent", "risks"),
    [
        (A, {"b": B}, {}, []),
        (A, {"b": stats("ffaa", follows="0")}, {}, ["no_standby"]),
        (A, {}, {"b": "timeout"}, ["silent_worker", "unserved", "no_standby"]),
        (
            A,
            {"b": stats("ffaa", follows="01", group={"leaving": True})},
            {},
            ["leaving_worker", "no_standby"],
        ),
        (A, {"b": stats("ffra", follows="01")}, {}, ["unserved"]),
        (B, {"b": A}, {}, ["no_standby"]),
        (stats("aaf-", in_doubt=2), {"b": B}, {}, ["in_doubt"]),
        (stats("aaf-", last_error="no"), {"b": B}, {}, ["failing"]),
        (FENCED, {"b": B}, {}, []),
        (stats("aafr"), {"b": B}, {}, ["restoring"]),
        (A | {"disk": {"has_room": False}}, {"b": B}, {}, ["disk_full"]),
    ],
)
def test_each_risk_is_named(
    own: dict[str, Any], others: dict[str, Any], silent: dict[str, str], risks: list[str]
) -> None:
    assert risks_of_a(own, others, silent) == risks


def test_gateway_alone_may_restart_unless_something_is_wrong_with_it() -> None:
    def row(states: str) -> dict[str, Any]:
        own = stats(states) | {"group": None}
        (found,) = rows_of({"workers": {"worker": own}, "silent": {}})
        return found

    assert row("aaaa")["restart_risks"] == []
    assert row("aara")["restart_risks"] == ["unserved", "restoring"]


def test_rows_have_each_worker_with_its_own_risks() -> None:
    silent, first, second = rows_of({"workers": {"a": A, "b": B}, "silent": {"c": "timeout"}})
    assert (silent["worker"], silent["answers"], silent["why"]) == ("c", False, "timeout")
    assert (first["serves"], first["follows"]) == ([0, 1], [])
    assert (first["restart_risks"], second["restart_risks"]) == (
        ["silent_worker"],
        ["silent_worker", "no_standby"],
    )


def test_pairs_that_do_not_reach_each_other_are_shown_with_both_reasons_in_80_columns() -> None:
    broken = [
        "worker-0 -> worker-1: closed",
        "worker-1 -> worker-0: its certificate is not accepted: certificate has expired",
        "worker-1 -> worker-2: silent",
    ]
    lines = list(broken_links({"broken": broken}))
    assert " ".join("\n".join(lines).split()) == (
        f"worker-0 and worker-1 do not reach each other ({broken[0]}; {broken[1]}) "
        f"worker-1 and worker-2 do not reach each other ({broken[2]})"
    )
    assert max(len(line) for text in lines for line in text.splitlines()) <= 80
    assert list(broken_links({})) == [], "of a worker of an earlier version"


def test_unsafe_restart_is_explained_in_80_columns() -> None:
    rows = rows_of({"workers": {"a": A, "b": stats("ffaa", last_error="no")}, "silent": {"c": "timeout"}})
    texts = list(verdicts(rows))
    assert texts[0] == "c does not answer: timeout"
    assert "a: a restart now is not safe: another worker does not answer (silent_worker)" in " ".join(
        texts[1].split()
    )
    assert max(len(line) for text in texts for line in text.splitlines()) <= 80
    assert list(verdicts(rows_of({"workers": {"a": A, "b": B}, "silent": {}}))) == [
        "b: a restart now is not safe: nobody else could take a partition of its over at\n  once (no_standby)"
    ]


def test_each_risk_has_its_words() -> None:
    everything = stats("aa-r", in_doubt=1, last_error="no") | {"disk": {"has_room": False}}
    others = {"b": stats("ff--", group={"leaving": True})}
    assert set(risks_of_a(everything, others, {"c": "timeout"})) == set(RISKS)


@pytest.mark.parametrize(
    ("numbers", "text"), [([], ""), ([3], "3"), ([0, 1, 2, 5], "0-2,5"), ([0, 2, 3], "0,2-3")]
)
def test_partitions_are_ranges(numbers: list[int], text: str) -> None:
    assert ranges(numbers) == text
