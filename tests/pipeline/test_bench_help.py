"""Claim: the benches of Spark jobs list their options."""

import pytest

from tests.support.load_commands import SPARK_COMMANDS, prints_its_options


@pytest.mark.filterwarnings("ignore:.*found in sys.modules:RuntimeWarning")
@pytest.mark.parametrize("command", sorted(SPARK_COMMANDS))
def test_command_tells_its_options(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    prints_its_options(command, monkeypatch, capsys)
