"""
Claim: what README tells a newcomer to type works as printed, and answers what it shows.
"""

import re
import shutil
import subprocess
import time
from pathlib import Path

import orjson
import pytest

from app.key_file import KeyFile
from app.quotas import Quota, QuotaPolicy
from tests.support.gateway import Gateway
from tests.support.http import COMMAND

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")


def blocks_of(language: str) -> list[str]:
    """Return README's code blocks of a language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```$", README, flags=re.DOTALL | re.MULTILINE)


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_commands_of_the_quickstart_answer_what_is_shown(tmp_path: Path) -> None:
    with Gateway(tmp_path / "gateway") as gateway:

        def run(command: str) -> bytes:
            for printed, real in (
                ("127.0.0.1:8080", f"127.0.0.1:{gateway.port}"),
                ("127.0.0.1:9090", f"127.0.0.1:{gateway.admin_port}"),
                (".venv/bin/gateway", COMMAND),
            ):
                command = command.replace(printed, real)
            done = subprocess.run(
                command, shell=True, env=gateway.environment, capture_output=True, check=True, timeout=30
            )
            return done.stdout

        _, sending, looking, *_ = blocks_of("sh")
        first, second = (run(line).partition(b"\r\n\r\n") for line in sending.splitlines())
        assert first[2].decode() == second[2].decode() == blocks_of("json")[0].rstrip("\n")
        assert b"\r\ngateway-accepted: 1\r\n" in first[0].lower()
        assert b"\r\ngateway-duplicates: 1\r\nidempotent-replayed: true" in second[0].lower()
        events, stats = (orjson.loads(run(line)) for line in looking.splitlines())
    (receipt,) = orjson.loads(first[2])["receipts"]
    assert {name: events[name] for name in receipt} == receipt
    assert (stats["totals"]["accepted"], stats["totals"]["duplicates"]) == (1, 1)


def test_key_file_is_one(tmp_path: Path) -> None:
    (shown,) = blocks_of("yaml")
    path = tmp_path / "keys.yaml"
    path.write_text(shown)
    policy = QuotaPolicy(Quota(), index_keys_max=1, window_s=1, clock=time.monotonic)
    source = KeyFile(path, policy).source_of("my-write-key")
    assert (source.id, source.name, source.enabled) == ("web", "Web shop", True)
