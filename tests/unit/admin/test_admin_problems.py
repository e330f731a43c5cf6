"""Claim: a refusal names the limits of the port that it came from."""

import orjson

from app.build import ADMIN_HEAD_BYTES_MAX, build_admin_problems, build_problems
from app.http.errors import HeadTooLargeError
from app.http.port import HEAD_BYTES_MAX
from app.settings.units import format_size
from tests.support.settings import make_settings


def test_head_too_large_names_the_limit_of_its_port() -> None:
    settings = make_settings(mode="development")
    of_ingest = build_problems(settings).answer(HeadTooLargeError())
    of_admin = build_admin_problems().answer(HeadTooLargeError())

    assert format_size(HEAD_BYTES_MAX) in orjson.loads(of_ingest.body)["message"]
    assert format_size(ADMIN_HEAD_BYTES_MAX) in orjson.loads(of_admin.body)["detail"]
