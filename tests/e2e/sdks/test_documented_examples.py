"""Claim: the documents' examples for Python and Node deliver their event, run as they are printed."""

import itertools
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.sdks.server_sdks import BUILD, HERE
from tests.support.documents import HTTP_API, README, blocks_of, for_gateway
from tests.support.gateway import Gateway

EXAMPLE_TIMEOUT_S = 60

EXAMPLES = [
    *(("python", text) for document in (HTTP_API, README) for text in blocks_of(document, "python")),
    *(("js", text) for text in blocks_of(HTTP_API, "js")),
]


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with Gateway(tmp_path_factory.mktemp("gateway")) as running:
        yield running


def interpreter_of(language: str, text: str) -> list[str | Path]:
    """Return what reads such a program from its standard input."""
    if language == "js":
        return [HERE / "node" / "node_modules" / ".bin" / "node", "--input-type=module"]
    environment = "rudder-2.1.9" if "rudderstack" in text else "segment-2.4.0"
    return [BUILD / "python" / environment / "bin" / "python", "-"]


def test_documents_have_an_example_for_each_sdk() -> None:
    for name in ("segment.analytics", "rudderstack.analytics", "@segment/analytics-node", "rudder-sdk-node"):
        assert sum(name in text for _, text in EXAMPLES) >= 1


@pytest.mark.parametrize(("language", "text"), EXAMPLES, ids=itertools.count())
def test_example_delivers_its_event(gateway: Gateway, language: str, text: str) -> None:
    before = gateway.stats()["totals"]["accepted"]
    subprocess.run(
        interpreter_of(language, text),
        input=for_gateway(text, gateway).encode(),
        cwd=HERE / "node",  # where Node looks for packages
        capture_output=True,
        check=True,
        timeout=EXAMPLE_TIMEOUT_S,
    )
    assert gateway.stats()["totals"]["accepted"] == before + 1
