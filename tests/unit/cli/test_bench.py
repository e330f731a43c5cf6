"""Claim: the CPU of a gateway is read from its metrics, and not told where others do a part of its work."""

import httpx
import pytest

from app.cli.bench import cpu_seconds
from dedupe.model.errors import ConfigurationError
from tests.unit.cli.test_admin_client import answer_with

METRICS = 'gateway_connections{state="idle"} 1\ngateway_ready 1.0\nprocess_cpu_seconds_total 1.5e+02\n'


@pytest.mark.parametrize("more", ["", "gateway_group_workers 1.0\n"], ids=["alone", "alone in its group"])
def test_cpu_is_that_of_a_gateway_alone(monkeypatch: pytest.MonkeyPatch, more: str) -> None:
    answer_with(monkeypatch, httpx.Response(200, text=METRICS + more))
    assert cpu_seconds("http://localhost") == 150


def test_cpu_of_one_of_several_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    answer_with(monkeypatch, httpx.Response(200, text=METRICS + "gateway_group_workers 2.0\n"))
    with pytest.raises(ConfigurationError, match="leave --admin-url out"):
        cpu_seconds("http://localhost")
