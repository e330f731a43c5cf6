"""Claim: a command ends with the exit code of its error, and with one sentence of it on stderr."""

import pytest
import typer

from app.cli.console import guarded
from dedupe.model.errors import ConfigurationError, IdentityMismatchError, RetriableError


@pytest.mark.parametrize(
    ("error", "code", "says"),
    [
        (ConfigurationError("wrong"), 2, "gateway: wrong\n"),
        (IdentityMismatchError("another secret"), 3, "gateway: another secret\n"),
        (RetriableError("later\nor never"), 1, "gateway: later\ngateway: or never\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_error_raised_on_purpose_is_an_exit_code(
    error: BaseException, code: int, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    @guarded
    def command() -> None:
        raise error

    with pytest.raises(typer.Exit) as ended:
        command()
    assert (ended.value.exit_code, capsys.readouterr().err) == (code, says)


def test_other_error_is_not_hidden() -> None:
    @guarded
    def command() -> None:
        raise ValueError("a bug")

    with pytest.raises(ValueError, match="a bug"):
        command()
