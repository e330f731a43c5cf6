"""Claim: commands print the same result as a table, JSON or YAML, and tell a failure in one sentence."""

import httpx
import orjson
import yaml

from tests.support.gateway import Gateway
from tests.support.http import cli, new_event, post
from tests.support.processes import HOST, free_port


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
    table = dict(
        line.split(maxsplit=1) for line in cli(gateway, *asked, "-o", "table").stdout.decode().splitlines()
    )
    assert (table["seen"], table["offset"]) == ("yes", str(receipt["offset"]))


def test_gateway_out_of_reach_is_one_sentence_and_exit_code_one(gateway: Gateway) -> None:
    url = f"http://{HOST}:{free_port()}"
    done = cli(gateway, "group", "--url", url)
    assert (done.returncode, done.stdout) == (1, b"")
    (line,) = done.stderr.decode().splitlines()
    assert line.startswith(f"gateway: no answer of a gateway's admin port at {url}: ")


def test_wrong_usage_is_exit_code_two(gateway: Gateway) -> None:
    for arguments in (
        ("lookup", "web"),
        ("lookup", "web", "x", "-o", "xml"),
        ("lookup", "web", "x", "--nothing"),
    ):
        assert cli(gateway, *arguments, "--url", gateway.admin_url).returncode == 2
