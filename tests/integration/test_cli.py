"""Claim: commands print the same result as a table, JSON or YAML, and tell a failure in one sentence."""

import os
import signal
import subprocess
from pathlib import Path

import httpx
import orjson
import pytest
import yaml

from tests.support.forked import COMMAND
from tests.support.gateway import Gateway
from tests.support.http import cli, new_event, post
from tests.support.processes import HOST, free_port
from tests.support.waiting import PATIENCE_S


def test_result_is_the_same_in_every_format(client: httpx.Client, gateway: Gateway) -> None:
    event = new_event()
    (receipt,) = post(client, "/v1/events", event).json()["receipts"]
    asked = ("lookup", "web", event["messageId"], "--url", gateway.admin_url)
    document = orjson.loads(cli(gateway, *asked).stdout)
    assert (document["seen"], document["partition"]) == (True, receipt["partition"])
    as_yaml = yaml.safe_load(cli(gateway, *asked, "-o", "yaml").stdout)
    assert {name: as_yaml[name] for name in ("partition", "offset")} == {
        name: receipt[name] for name in ("partition", "offset")
    }
    lines = cli(gateway, *asked, "-o", "table").stdout.decode().splitlines()
    table = {name: value.strip() for name, _, value in (line.partition(" ") for line in lines)}
    assert (table["seen"], table["offset"]) == ("yes", str(receipt["offset"]))


def test_gateway_out_of_reach_is_one_sentence_and_exit_code_one(gateway: Gateway) -> None:
    url = f"http://{HOST}:{free_port()}"
    done = cli(gateway, "group", "--url", url)
    assert (done.returncode, done.stdout) == (1, b"")
    (line,) = done.stderr.decode().splitlines()
    assert line.startswith(f"gateway: no answer of a gateway's admin port at {url}: ")
    assert "GATEWAY_ADMIN_URL" in line


def test_wrong_usage_is_exit_code_two(gateway: Gateway) -> None:
    for arguments in (
        ("lookup", "web"),
        ("lookup", "web", "x", "-o", "xml"),
        ("lookup", "web", "x", "--nothing"),
    ):
        assert cli(gateway, *arguments, "--url", gateway.admin_url).returncode == 2


def test_settings_are_shown_with_their_origin_and_without_secrets(tmp_path: Path) -> None:
    secret = {
        "GATEWAY_IDENTITY_SECRET": "planted-identity-secret",
        "GATEWAY_ADMIN_TOKEN": "planted-admin-token",
    }
    gateway = Gateway(tmp_path, secret)
    shown = {name: cli(gateway, "config", "--set", "-o", name).stdout for name in ("json", "yaml", "table")}
    assert not [text for text in shown.values() if b"planted" in text]
    rows = [orjson.loads(line) for line in shown["json"].splitlines()]
    assert rows == yaml.safe_load(shown["yaml"])
    assert {row["origin"] for row in rows} == {"environment"}
    assert {row["variable"] for row in rows} == {
        name for name in gateway.environment if name.startswith("GATEWAY_")
    }
    everything = cli(gateway, "config").stdout.splitlines()
    assert len(everything) > len(rows)


def test_settings_that_a_start_refuses_are_not_shown(tmp_path: Path) -> None:
    done = cli(Gateway(tmp_path, {"GATEWAY_WINDOW": "1h", "GATEWAY_PARTITION": "3"}), "config")
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.decode() == (
        "gateway: GATEWAY_PARTITION is not a setting of the gateway; did you mean GATEWAY_PARTITIONS?\n"
    )


def test_statistics_are_a_screen_or_the_whole_document(client: httpx.Client, gateway: Gateway) -> None:
    post(client, "/v1/events", new_event())
    asked = ("--url", gateway.admin_url)
    assert orjson.loads(cli(gateway, "stats", *asked, "-o", "json").stdout).keys() == gateway.stats().keys()
    screen = cli(gateway, "stats", *asked).stdout.decode()
    rows = [orjson.loads(line) for line in cli(gateway, "partitions", "list", *asked).stdout.splitlines()]
    assert [row["topic"] for row in rows] == ["events"] * 4 + ["events.quarantine"]
    assert screen.count("active") == len(rows) == 5
    assert screen.startswith("gateway ")


def test_watching_goes_on_while_a_gateway_is_away(own_gateway: Gateway) -> None:
    command = [COMMAND, "stats", "--watch", "--interval", "0.1", "--url", own_gateway.admin_url]
    with subprocess.Popen(
        command, env=own_gateway.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as watching:
        assert watching.stdout is not None
        assert watching.stderr is not None
        assert watching.stderr.readline().startswith(b"gateway: no answer of a gateway's admin port")
        own_gateway.start()
        assert orjson.loads(watching.stdout.readline())["topic"] == "events"
        watching.send_signal(signal.SIGINT)
        watching.communicate(timeout=30)
    assert watching.returncode == 130


@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("gateway st", {"stats"}),
        ("gateway topics ", {"create", "check"}),
        ("gateway lookup --out", {"--output"}),
        ("gateway stats -o ", {"table", "json", "yaml"}),
    ],
)
def test_shell_completes_commands_options_and_values(typed: str, completed: set[str]) -> None:
    """As the function that `gateway --show-completion bash` prints asks for it."""
    words = typed.split(" ")
    asked = {"_GATEWAY_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": str(len(words) - 1)}
    environment = {"PATH": os.environ["PATH"], **asked}
    done = subprocess.run(
        [COMMAND], env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert set(done.stdout.split()) == completed


def test_completion_is_a_script_for_the_shell() -> None:
    environment = {"PATH": os.environ["PATH"], "_GATEWAY_COMPLETE": "source_bash"}
    script = subprocess.run(
        [COMMAND], env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert "complete -o default -F" in script.stdout
    checked = subprocess.run(["bash", "-n"], input=script.stdout, text=True, timeout=PATIENCE_S, check=False)
    assert checked.returncode == 0


@pytest.mark.regression("Commands listed nothing, and said nothing, where there was no log.")
@pytest.mark.parametrize("command", ["events", "quarantine list", "quarantine replay --dry-run"])
def test_log_that_does_not_exist_yet_is_said_to_be_missing(command: str, tmp_path: Path) -> None:
    gateway = Gateway(tmp_path / "never-started")
    done = cli(gateway, *command.split())
    assert (done.returncode, done.stdout) == (0, b"")
    assert f"gateway: there is no log in {gateway.data} yet" in done.stderr.decode()
    assert not gateway.data.exists()


def test_gateway_and_commands_read_the_token_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("a-token-in-a-file\n", encoding="utf-8")
    with Gateway(tmp_path / "gateway", {"GATEWAY_ADMIN_TOKEN_FILE": str(file)}) as gateway:
        assert httpx.get(f"{gateway.admin_url}/admin/v1/stats").status_code == 401
        assert cli(gateway, "stats", "--url", gateway.admin_url).returncode == 0
        file.unlink()
        refused = cli(gateway, "stats", "--url", gateway.admin_url)
        assert refused.returncode == 2
        assert b"GATEWAY_ADMIN_TOKEN_FILE" in refused.stderr
