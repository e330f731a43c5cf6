"""Claim: a process without file descriptors says so once a minute, however often it looks."""

import errno
import os
from typing import Any

import pytest
from structlog.testing import capture_logs

from app.process.open_files import OpenFiles


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
def test_one_line_a_minute(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    files = OpenFiles(lambda: now)

    def refused(*_: Any) -> int:
        raise OSError(number, os.strerror(number))

    with capture_logs() as lines:
        files.look()
        with monkeypatch.context() as patch:
            patch.setattr(os, "open", refused)
            for second in range(180):
                now = float(second)
                files.look()
        assert files.is_out
        assert files.checks_out == 180
        files.look()
        files.look()
        assert not files.is_out
    said = [line["log_level"] for line in lines if line["event"].startswith("no file descriptor is left")]
    assert said == ["error"] * 3


def test_another_error_is_no_lack_of_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any) -> int:
        raise PermissionError(errno.EACCES, "denied")

    monkeypatch.setattr(os, "open", refused)
    files = OpenFiles(lambda: 0.0)
    files.look()
    assert (files.is_out, files.checks_out) == (False, 0)
