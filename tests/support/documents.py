"""What stands in the project's documents, and how tests do what they tell a reader to do."""

import re
import subprocess
from pathlib import Path
from typing import NamedTuple

from tests.support.forked import COMMAND
from tests.support.gateway import Gateway
from tests.support.waiting import PATIENCE_S

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
HTTP_API = ROOT / "docs" / "http-api.md"

_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


class Block(NamedTuple):
    """One block of code."""

    language: str
    text: str


def blocks_in(document: Path, section: str | None = None) -> list[Block]:
    """Return the code blocks of a document, or of a section with its subsections, in order."""
    text = document.read_text(encoding="utf-8")
    if section is not None:
        text = text.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    return [Block(*found) for found in _BLOCK.findall(text)]


def blocks_of(document: Path, language: str, section: str | None = None) -> list[str]:
    """Return the code blocks of one language; see blocks_in."""
    return [block.text for block in blocks_in(document, section) if block.language == language]


def for_gateway(text: str, gateway: Gateway) -> str:
    """Return a printed command or program with the addresses of a gateway under test."""
    for printed, real in (
        ("127.0.0.1:8080", f"127.0.0.1:{gateway.port}"),
        ("127.0.0.1:9090", f"127.0.0.1:{gateway.admin_port}"),
        (".venv/bin/gateway", COMMAND),
    ):
        text = text.replace(printed, real)
    return text


def typed(command: str, gateway: Gateway, *, folder: Path) -> bytes:
    """Return what a printed command writes, typed into a shell in a folder."""
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", for_gateway(command, gateway)],
        env=gateway.environment,
        cwd=folder,
        capture_output=True,
        check=True,
        timeout=PATIENCE_S,
    )
    return done.stdout
