"""Claim: what docs/http-api.md tells a reader to type works as printed, and answers what it shows."""

import itertools
from pathlib import Path

import httpx

from tests.support.documents import HTTP_API, Block, blocks_in, typed
from tests.support.gateway import Gateway

GIF_BEGINNING = b"GIF89a"


def test_commands_answer_what_is_shown(tmp_path: Path) -> None:
    blocks = [*blocks_in(HTTP_API), Block("", "")]
    with Gateway(tmp_path / "gateway") as gateway:
        for command, shown in itertools.pairwise(blocks):
            if command.language == "sh":
                written = typed(command.text, gateway, folder=tmp_path).decode()
                assert written == (shown.text.rstrip("\n") if shown.language == "json" else "")
        metrics = httpx.get(f"{gateway.admin_url}/metrics").text
        totals = gateway.stats()["totals"]
    assert (tmp_path / "pixel.gif").read_bytes().startswith(GIF_BEGINNING)
    assert "gateway_http_discarded_total{" not in metrics
    assert (totals["accepted"], totals["duplicates"], totals["received"]) == (10, 1, 11)
