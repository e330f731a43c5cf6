"""Claim: what the SDKs of CloudEvents send is stored once, in whichever mode, and is what they say it is."""

import subprocess
from collections.abc import Sequence
from pathlib import Path

import httpx
import orjson
import pytest

from tests.e2e.sdks.server_sdks import BUILD, HERE
from tests.support.gateway import Gateway
from tests.support.http import stored
from tests.support.waiting import PATIENCE_S

PATH = "/v1/cloudevents"
SDKS = {
    "cloudevents-python-2.2.0": (
        BUILD / "python" / "cloudevents-2.2.0" / "bin" / "python",
        HERE / "python" / "cloudevents_driver.py",
    ),
    "cloudevents-node-10.0.0": (
        HERE / "node" / "node_modules" / ".bin" / "node",
        HERE / "node" / "cloudevents_driver.mjs",
    ),
}


@pytest.mark.parametrize("command", SDKS.values(), ids=SDKS)
def test_events_of_an_sdk_are_stored_once(command: Sequence[Path], tmp_path: Path) -> None:
    with Gateway(tmp_path / "gateway") as gateway:
        url = f"{gateway.url}{PATH}?access_token=web"
        runs = [
            orjson.loads(
                subprocess.run([*command, url], check=True, capture_output=True, timeout=PATIENCE_S).stdout
            )
            for _ in range(2)
        ]
        records = stored(gateway)
        totals = gateway.stats()["totals"]
    sent = len(runs[0]["statuses"])
    assert runs[0] == runs[1]
    assert set(runs[0]["statuses"]) <= {200, 0}
    assert {record["source"] for record in records} == {"web"}
    assert sorted(map(orjson.dumps, (record["value"] for record in records))) == sorted(
        orjson.dumps(event, option=orjson.OPT_SORT_KEYS) for event in runs[0]["events"]
    )
    assert (totals["accepted"], totals["duplicates"]) == (len(records), 2 * sent - len(records))
    assert totals["conflicts"] == 0


@pytest.mark.parametrize("mode", ["structured", "binary"])
def test_events_of_the_specification_are_accepted(mode: str, tmp_path: Path) -> None:
    """The examples of the HTTP binding and of the JSON format."""
    attributes = {
        "specversion": "1.0",
        "type": "com.example.someevent",
        "time": "2018-04-05T17:31:00Z",
        "id": "A234-1234-1234",
        "source": "/mycontext",
        "comexampleextension1": "value",
    }
    with (
        Gateway(tmp_path / "gateway") as gateway,
        httpx.Client(base_url=gateway.url, auth=("web", "")) as client,
    ):
        if mode == "structured":
            event = {
                **attributes,
                "comexampleothervalue": 5,
                "datacontenttype": "application/vnd.apache.thrift.binary",
            }
            event["data_base64"] = "dGhyaWZ0"
            answer = client.post(PATH, json=event, headers={"Content-Type": "application/cloudevents+json"})
        else:
            event = {**attributes, "datacontenttype": "application/vnd.apache.thrift.binary"}
            event["data_base64"] = "dGhyaWZ0"
            headers = {f"ce-{name}": value for name, value in attributes.items()}
            headers["Content-Type"] = str(event["datacontenttype"])
            answer = client.post(PATH, content=b"thrift", headers=headers)
        assert [each["messageId"] for each in answer.json()["receipts"]] == ["/mycontext A234-1234-1234"]
        assert [record["value"] for record in stored(gateway)] == [event]
