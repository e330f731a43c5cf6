"""Claim: the commands of docs/operations.md do what it says; those about Kafka has test_kafka_rights.py."""

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import httpx
import pytest

from tests.support.documents import ROOT
from tests.support.forked import COMMAND
from tests.support.gateway import Gateway
from tests.support.http import AUTH, cli, new_event, post
from tests.support.waiting import PATIENCE_S

DOCUMENT = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")


def part(heading: str) -> str:
    text = DOCUMENT.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    assert text, heading
    return text


def block(heading: str) -> str:
    found: str = re.findall(r"^```sh\n(.*?)^```", part(heading), flags=re.MULTILINE | re.DOTALL)[0]
    return found


@pytest.mark.parametrize("heading", ["The command line", "Keys and secrets", "Measuring", "What to watch"])
def test_commands_work_on_a_gateway_that_runs(gateway: Gateway, heading: str) -> None:
    event = new_event(messageId="order-4711")
    httpx.post(f"{gateway.url}/v1/events", json=event, auth=AUTH).raise_for_status()
    client = {"GATEWAY_ADMIN_URL": gateway.admin_url, "GATEWAY_URL": gateway.url}
    for line in block(heading).splitlines():
        short = line.replace(" --watch", "").replace("--seconds 10", "--seconds 1")
        _, *arguments = shlex.split(short.replace("http://127.0.0.1:9090", gateway.admin_url))
        done = subprocess.run(
            [COMMAND, *arguments],
            env=gateway.environment | client,
            capture_output=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, b""), (line, done.stdout, done.stderr)


def test_copy_of_a_log_in_use_is_one_to_go_back_to(tmp_path: Path) -> None:
    gateway = Gateway(tmp_path, {"GATEWAY_PARTITIONS": "2"})
    early, late = [new_event() for _ in range(50)], [new_event() for _ in range(50)]
    with gateway, httpx.Client(base_url=gateway.url, auth=AUTH) as client:
        first = post(client, "/v1/events", {"batch": early})
        subprocess.run(["bash", "-ec", block("Backup")], cwd=tmp_path, env=dict(os.environ), check=True)
        post(client, "/v1/events", {"batch": late}).raise_for_status()
    for file in gateway.data.glob("log.sqlite*"):
        file.unlink()
    shutil.copyfile(tmp_path / "backup.sqlite", gateway.data / "log.sqlite")
    with gateway, httpx.Client(base_url=gateway.url, auth=AUTH) as client:
        again = post(client, "/v1/events", {"batch": early})
        assert (again.content, again.headers["Gateway-Duplicates"]) == (first.content, "50")
        assert post(client, "/v1/events", {"batch": late}).headers["Gateway-Accepted"] == "50"
        assert sum(part["rebuilds"] for part in gateway.stats()["partitions"]) == 2
    assert cli(gateway, "check").returncode == 0
