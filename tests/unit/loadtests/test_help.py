"""Claim: each load test that takes options lists them, also where the Spark extra is not installed."""

import sys

import pytest

from tests.support.load_commands import COMMANDS, SPARK_COMMANDS, prints_its_options

SPARK_EXTRA = ("pandas", "pipeline", "psycopg", "pyarrow", "pyspark")


class NotInstalled:
    """Fails each import of the Spark extra, and of the package that needs it."""

    def find_spec(self, name: str, *_: object) -> None:
        if name.partition(".")[0] in SPARK_EXTRA:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


@pytest.fixture
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] in SPARK_EXTRA]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [NotInstalled(), *sys.meta_path])


@pytest.mark.usefixtures("no_spark")
@pytest.mark.filterwarnings("ignore:.*found in sys.modules:RuntimeWarning")
@pytest.mark.parametrize("command", sorted(set(COMMANDS) - SPARK_COMMANDS))
def test_command_tells_its_options(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    prints_its_options(command, monkeypatch, capsys)
