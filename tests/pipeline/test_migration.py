"""Claim: the way of docs/operations.md to another secret or partition count forgets no event of a window."""

import re
import shlex
from pathlib import Path

import httpx

from tests.pipeline.conftest import JobRunner
from tests.support.documents import ROOT
from tests.support.gateway import Gateway
from tests.support.http import AUTH, new_event, post

COMMAND = re.search(
    r"^ +python -m pipeline (replay .*)$", (ROOT / "docs" / "operations.md").read_text(), re.MULTILINE
)
KEYS = "- {key: web, source: web}\n- {key: KEY, source: web, scopes: [ingest, replay]}\n"


def test_events_of_the_window_move_to_another_secret_and_partition_count(
    job: JobRunner, tmp_path: Path
) -> None:
    keys = tmp_path / "keys.yaml"
    keys.write_text(KEYS)
    settings = {"GATEWAY_WRITE_KEYS_FILE": str(keys)}
    old = Gateway(
        tmp_path / "old",
        settings | {"GATEWAY_IDENTITY_SECRET": "the first secret of tests", "GATEWAY_PARTITIONS": "2"},
    )
    new = Gateway(
        tmp_path / "new",
        settings | {"GATEWAY_IDENTITY_SECRET": "the second secret of tests", "GATEWAY_PARTITIONS": "3"},
    )
    assert COMMAND is not None
    words = shlex.split(COMMAND[1])
    mine = {
        "--source": f"log://{old.data}",
        "--gateway": new.url,
        "--checkpoint": str(tmp_path / "migration"),
    }
    for option, value in mine.items():
        words[words.index(option) + 1] = value

    early, meanwhile = [new_event() for _ in range(60)], [new_event() for _ in range(15)]
    with new, httpx.Client(base_url=new.url, auth=AUTH) as client:
        with old, httpx.Client(base_url=old.url, auth=AUTH) as former:
            post(former, "/v1/batch", {"batch": early}).raise_for_status()
            copied = job(*words)
            post(former, "/v1/batch", {"batch": meanwhile}).raise_for_status()
        rest = job(*words)
        late = post(client, "/v1/batch", {"batch": [*early, *meanwhile]})
    assert (copied.exit_code, copied.stdout) == (0, "60 accepted, 0 duplicates, 0 conflicts, 0 rejected\n"), (
        copied
    )
    assert (rest.exit_code, rest.stdout) == (0, "15 accepted, 0 duplicates, 0 conflicts, 0 rejected\n"), rest
    assert (late.headers["Gateway-Accepted"], late.headers["Gateway-Duplicates"]) == ("0", "75")
