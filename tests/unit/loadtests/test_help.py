"""Claim: whatever of the load tests takes options says which, and what they are for."""

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
COMMANDS = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__main__")
    for path in sorted((ROOT / "loadtests").rglob("*.py"))
    if "ArgumentParser" in (text := path.read_text()) and "__main__" in text
]


@pytest.mark.filterwarnings("ignore:.*found in sys.modules:RuntimeWarning")
@pytest.mark.parametrize("command", COMMANDS)
def test_command_tells_its_options(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", [command, "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module(command, run_name="__main__", alter_sys=True)
    assert not ended.value.code
    assert "--" in capsys.readouterr().out.partition("--help")[2]
