"""The load tests that are run as `python -m`, and what their `--help` must print."""

import runpy

import pytest

from tests.support.documents import ROOT

COMMANDS = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__main__")
    for path in sorted((ROOT / "loadtests").rglob("*.py"))
    if "ArgumentParser" in (text := path.read_text()) and "__main__" in text
]
SPARK_COMMANDS = {f"loadtests.bench.{name}" for name in ("audit_cost", "spark_cold", "spark_jobs")}
"""These import the Spark extra: their help is tested beside the pipeline."""


def prints_its_options(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Assert that a command lists options besides `--help`."""
    monkeypatch.setattr("sys.argv", [command, "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module(command, run_name="__main__", alter_sys=True)
    assert not ended.value.code
    assert "--" in capsys.readouterr().out.partition("--help")[2]
