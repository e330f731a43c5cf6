"""Claim: what real SDKs sent, byte for byte, is taken once and answered twice with the same bytes."""

import base64
import http.client
import json
from pathlib import Path
from typing import Any

from tests.support.gateway import Gateway
from tests.support.http import stored
from tests.support.processes import HOST
from tests.support.waiting import PATIENCE_S

CAPTURED = Path(__file__).parents[1] / "fixtures" / "sdk_requests.jsonl"
REQUESTS: list[dict[str, Any]] = [json.loads(line) for line in CAPTURED.read_text().splitlines()]


def send(gateway: Gateway, request: dict[str, Any], *, is_chunked: bool = False) -> tuple[int, bytes, Any]:
    """Send a captured request with its own headers and nothing added but the framing."""
    connection = http.client.HTTPConnection(HOST, gateway.port, timeout=PATIENCE_S)
    body = base64.b64decode(request["body_b64"])
    connection.putrequest(request["method"], request["target"], skip_accept_encoding=True)
    for name, value in request["headers"]:
        connection.putheader(name, value)
    if is_chunked:
        connection.putheader("Transfer-Encoding", "chunked")
        connection.endheaders([body[:100], body[100:]], encode_chunked=True)
    else:
        connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body)
    answer = connection.getresponse()
    try:
        return answer.status, answer.read(), answer.headers
    finally:
        connection.close()


def test_captured_requests_are_taken_once_and_answered_alike(tmp_path: Path) -> None:
    with Gateway(tmp_path, {"GATEWAY_PARTITIONS": "4"}) as gateway:
        for request in REQUESTS:
            sdk, count = request["sdk"], str(len(request["message_ids"]))
            status, first, headers = send(gateway, request)
            assert (sdk, status, json.loads(first)) == (sdk, 200, {"success": True})
            assert (headers["Gateway-Accepted"], headers["Gateway-Duplicates"]) == (count, "0")
            for is_chunked in (False, True):
                status, again, headers = send(gateway, request, is_chunked=is_chunked)
                assert (sdk, status, again) == (sdk, 200, first)
                assert (headers["Gateway-Accepted"], headers["Gateway-Duplicates"]) == ("0", count)
        sent = [message_id for request in REQUESTS for message_id in request["message_ids"]]
        assert sorted(line["messageId"] for line in stored(gateway)) == sorted(sent)
