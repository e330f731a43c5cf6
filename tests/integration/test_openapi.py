"""
Claim: the OpenAPI document names every path and is true: what it calls valid is taken, what it calls
invalid is refused, and every answer is one of those it describes.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from app.http.problems import PROBLEMS
from app.ingest.openapi import openapi_document
from app.ingest.receipts import REASONS
from app.ingest.routes.paths import PATHS
from tests.support import openapi_hooks
from tests.support.gateway import Gateway

ROOT = Path(__file__).parents[2]
SCHEMATHESIS = str(Path(sys.executable).with_name("st"))
EVENTS_MAX = 20
EXAMPLES_MAX = 6
"""Per operation, besides some hundred cases that follow from the document itself."""


def test_document_holds_every_path_method_code_and_limit() -> None:
    document = openapi_document(PATHS, request_events_max=17)
    assert {path.template: [path.methods[0].lower()] for path in PATHS} == {
        template: list(operations) for template, operations in document["paths"].items()
    }
    schemas, responses = document["components"]["schemas"], document["components"]["responses"]
    assert "beyond the first 17;" in schemas["Batch"]["properties"]["batch"]["description"]
    assert schemas["Rejected"]["properties"]["code"]["enum"] == list(REASONS)
    codes = {
        code: int(status)
        for status, response in responses.items()
        for code in response["content"]["application/json"]["schema"]["properties"]["code"]["enum"]
    }
    elsewhere = {"method_not_allowed": 405}
    assert codes | elsewhere == {code: problem.status for code, problem in PROBLEMS.items()}


def test_operations_have_names_of_their_own() -> None:
    document = openapi_document(PATHS, request_events_max=1)
    names = [operation["operationId"] for item in document["paths"].values() for operation in item.values()]
    assert len(set(names)) == len(PATHS)


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A gateway that no busy machine makes answer 503."""
    with Gateway(
        tmp_path_factory.mktemp("gateway"),
        {
            "GATEWAY_PARTITIONS": "2",
            "GATEWAY_REQUEST_EVENTS_MAX": str(EVENTS_MAX),
            "GATEWAY_ANSWER_TIMEOUT": "60s",
        },
    ) as running:
        yield running


@pytest.mark.slow
def test_document_is_true(gateway: Gateway, tmp_path: Path) -> None:
    done = subprocess.run(
        [
            SCHEMATHESIS,
            "run",
            f"{gateway.url}/openapi.json",
            "--auth=web:",
            "--checks=all",
            "--phases=examples,coverage,fuzzing",
            f"--max-examples={EXAMPLES_MAX}",
            "--generation-deterministic",
            "--no-color",
        ],
        cwd=tmp_path,
        env={**os.environ, "SCHEMATHESIS_HOOKS": openapi_hooks.__name__, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout.decode()
    assert f"Tested: {len(PATHS) - 1}" in done.stdout.decode()  # all but the document itself


def test_document_is_served_with_the_limits_of_this_gateway(gateway: Gateway) -> None:
    answer = httpx.get(f"{gateway.url}/openapi.json")
    assert answer.headers["Content-Type"] == "application/json"
    assert answer.json() == openapi_document(PATHS, request_events_max=EVENTS_MAX)
