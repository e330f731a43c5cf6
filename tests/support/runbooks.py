"""The commands of a runbook, run as they stand there against a gateway of a test."""

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.support.documents import ROOT
from tests.support.gateway import Gateway
from tests.support.waiting import PATIENCE_S

RUNBOOKS = ROOT / "docs" / "runbooks"
HEADINGS = ("Meaning", "Impact", "Diagnosis", "Mitigation")
WATCHED_S = 10
"""Time for two looks, also on a machine that has other things to do."""


def commands(page: str, heading: str) -> list[str]:
    """Return the commands of the shell blocks below a heading."""
    text = (RUNBOOKS / f"{page}.md").read_text(encoding="utf-8")
    section = text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    blocks = re.findall(r"^```sh\n(.*?)^```", section, flags=re.MULTILINE | re.DOTALL)
    found = [line for block in blocks for line in block.splitlines()]
    assert found, f"{page} has no command below {heading}"
    return found


def run(
    page: str,
    heading: str,
    gateway: Gateway,
    *,
    codes: Mapping[str, int] | None = None,
    words: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """
    Run a page's commands on the gateway's machine, as its user would, and return what each prints.

    Args:
        page: its name, without the ending.
        heading: Diagnosis or Mitigation.
        gateway: whose settings and ports are meant; it need not run.
        codes: the exit code of a command that does not end with 0.
        words: what stands for a word of the page.
    """
    environment = gateway.environment | {
        "GATEWAY_ADMIN_URL": gateway.admin_url,
        "GATEWAY_URL": gateway.url,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    printed = {}
    for command in commands(page, heading):
        line = command.replace("127.0.0.1:9090", f"127.0.0.1:{gateway.admin_port}")
        for word, value in (words or {}).items():
            line = re.sub(rf"\b{word}\b", value, line)
        if " --watch" in line:
            line = f"timeout --preserve-status -s INT {WATCHED_S} {line}"
        done = subprocess.run(
            ["bash", "-c", line],
            cwd=gateway.folder,
            env=environment,
            capture_output=True,
            timeout=PATIENCE_S,
            check=False,
        )
        wanted = (codes or {}).get(command, 130 if " --watch" in line else 0)
        assert done.returncode == wanted, (
            f"{command}: {done.returncode}\n{done.stdout.decode()}\n{done.stderr.decode()[-1_500:]}"
        )
        printed[command] = done.stdout.decode()
    return printed
