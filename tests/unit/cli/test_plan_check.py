"""Claim: a plan is refused in one sentence while a gateway does not answer, is older, or must not end."""

from typing import Any

import pytest

from app.cli.admin_client import AdminClient
from app.cli.plan_check import check_gateways, older_workers, unsafe_workers
from app.settings.version import VERSION
from dedupe.model.errors import ConfigurationError
from tests.support.processes import free_port
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
        check_gateways(AdminClient(f"http://127.0.0.1:{free_port()}"))
