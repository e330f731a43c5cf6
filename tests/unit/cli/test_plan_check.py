"""Claim: a plan is refused in one sentence while a gateway does not answer, is older, or must not end."""

from typing import Any

import pytest

from app.admin.about import config_document
from app.cli.admin_client import AdminClient
from app.cli.plan_check import check_gateways, longer_memories, older_workers, unsafe_workers
from app.settings.units import DAY
from app.settings.version import VERSION
from dedupe.model.errors import ConfigurationError
from tests.support.processes import free_port
from tests.support.settings import make_settings
from tests.unit.cli.test_group import A, stats


def document(*, silent: dict[str, str] | None = None, **workers: Any) -> dict[str, Any]:
    told = {name: stats | {"version": VERSION} for name, stats in workers.items()}
    return {"workers": told, "silent": silent or {}}


def test_nothing_is_said_of_a_group_that_may_lose_any_worker() -> None:
    group = document(a=stats("af", follows="1"), b=stats("fa", follows="0"))
    assert [*older_workers(group), *unsafe_workers(group)] == []


@pytest.mark.parametrize(
    ("version", "sentence"),
    [
        ("0.0.9", f"a runs version 0.0.9, and this command is of {VERSION}"),
        ("", f"a runs version unknown, and this command is of {VERSION}"),
        (VERSION, None),
        ("99.0", None),
    ],
)
def test_older_worker_is_named_with_its_version(version: str, sentence: str | None) -> None:
    group = document(a=A)
    group["workers"]["a"]["version"] = version
    assert list(older_workers(group)) == ([] if sentence is None else [sentence])


def test_worker_that_does_not_answer_and_one_without_standby_are_named() -> None:
    said = list(unsafe_workers(document(a=A, silent={"c": "timeout"})))
    assert said[0] == "c does not answer (timeout)"
    assert "nobody else could take a partition of its over at once" in said[1]


def test_way_out_is_named_where_no_gateway_answers() -> None:
    with pytest.raises(ConfigurationError, match=r"by --url, or, if none runs, plan with --force"):
        check_gateways(AdminClient(f"http://127.0.0.1:{free_port()}"), 60.0)


@pytest.mark.regression("A plan by a command with a shorter window than the gateways' had them forget ids.")
def test_gateway_that_remembers_for_longer_than_the_plan_is_named() -> None:
    configured = config_document(make_settings(window="40d", session_lease="30d", retention="41d"))

    assert list(longer_memories(configured, 41 * DAY)) == []
    (window,) = longer_memories(configured, 31 * DAY)
    assert window.startswith(
        "GATEWAY_WINDOW is 40d there, by this command's settings all is forgotten after 31d"
    )
    assert len(list(longer_memories(configured, 8 * DAY))) == 2
