"""
Claim: what README tells a newcomer to type works as printed, and answers what it shows.
"""

import re
import time
from pathlib import Path

import httpx
import orjson

from app.auth.key_file import KeyFile
from app.auth.quotas import Quota, QuotaPolicy
from tests.support.documents import README, blocks_of, typed
from tests.support.gateway import Gateway
from tests.support.waiting import until


def test_commands_of_the_quickstart_answer_what_is_shown(tmp_path: Path) -> None:
    with Gateway(tmp_path / "gateway") as gateway:

        def run(command: str) -> bytes:
            return typed(command, gateway, folder=tmp_path)

        _, sending, looking, *_ = blocks_of(README, "sh")
        first, second = (run(line).partition(b"\r\n\r\n") for line in sending.splitlines())
        assert first[2].decode() == second[2].decode() == blocks_of(README, "json")[0].rstrip("\n")
        assert b"\r\ngateway-accepted: 1\r\n" in first[0].lower()
        for line in (b"gateway-duplicates: 1", b"idempotent-replayed: true"):
            assert line in second[0].lower().split(b"\r\n")
        events, stats = (orjson.loads(run(line)) for line in looking.splitlines())
    (receipt,) = orjson.loads(first[2])["receipts"]
    assert {name: events[name] for name in receipt} == receipt
    assert (stats["totals"]["accepted"], stats["totals"]["duplicates"]) == (1, 1)


def test_banner_leads_to_the_console_and_its_command_works(tmp_path: Path) -> None:
    with Gateway(tmp_path / "gateway") as gateway:
        until(lambda: "  curl -i " in gateway.log_path.read_text())
        banner = gateway.log_path.read_text()
        (console,) = re.findall(r"^  console (\S+)$", banner, flags=re.MULTILINE)
        page = httpx.get(console)
        assert (page.status_code, page.headers["Content-Type"]) == (200, "text/html; charset=utf-8")
        (command,) = re.findall(r"^  (curl .*)$", banner, flags=re.MULTILINE)
        assert b'"messageId":"hello-1"' in typed(command, gateway, folder=tmp_path)


def test_key_file_is_one(tmp_path: Path) -> None:
    (shown,) = blocks_of(README, "yaml")
    path = tmp_path / "keys.yaml"
    path.write_text(shown)
    policy = QuotaPolicy(Quota(), index_keys_max=1, window_s=1, clock=time.monotonic)
    source = KeyFile(path, policy).source_of("my-write-key")
    assert (source.id, source.name, source.enabled) == ("web", "Web shop", True)
