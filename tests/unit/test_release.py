"""Claim: a release is refused if a file says another version, and its parts name one another."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from app.peers.limits import OLDEST_VERSION, VERSION
from app.settings.version import VERSION as INSTALLED
from tests.support.documents import ROOT
from tools.release.__main__ import main, write_checksums
from tools.release.charts import CHARTS, name_image
from tools.release.sources import PLACES, problems, repository_problems

CURRENT = re.findall(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)[0]


def test_every_file_says_the_version() -> None:
    assert list(problems(ROOT, CURRENT)) == []
    assert INSTALLED == CURRENT


def test_another_version_is_refused_with_every_file_that_says_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["9.9.9", "--uncommitted"]) == 2
    told = capsys.readouterr().err
    assert [name for name in [*PLACES, "CHANGELOG.md", "docs/versions.md"] if name not in told] == []
    assert main(["", "--uncommitted"]) == 2
    assert main(["1.0.0-rc1", "--uncommitted"]) == 2


def test_what_is_not_committed_and_a_version_that_was_tagged_elsewhere_are_refused(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        identity = ("-c", "user.name=Test", "-c", "user.email=test@example.com")
        subprocess.run(["git", *identity, *words], cwd=tmp_path, check=True, capture_output=True)

    git("init")
    (tmp_path / "file").write_text("one")
    git("add", "file")
    git("commit", "-m", "One")
    git("tag", "-a", "v1.0.0", "-m", "One")
    assert list(repository_problems(tmp_path, "1.0.0")) == []
    (tmp_path / "file").write_text("two")
    (changed,) = repository_problems(tmp_path, "1.0.0")
    assert "file" in changed
    git("commit", "-a", "-m", "Two")
    (tagged,) = repository_problems(tmp_path, "1.0.0")
    assert "v1.0.0" in tagged
    assert list(repository_problems(tmp_path, "1.0.1")) == []


def test_checksums_are_what_sha256sum_checks(tmp_path: Path) -> None:
    (tmp_path / "b").write_bytes(b"2")
    (tmp_path / "a").write_bytes(b"1")
    write_checksums(tmp_path)
    write_checksums(tmp_path)
    check = ["sha256sum", "--check", "--strict", "SHA256SUMS"]
    done = subprocess.run(check, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "a: OK\nb: OK\n"
    (tmp_path / "a").write_bytes(b"3")
    assert subprocess.run(check, cwd=tmp_path, capture_output=True, check=False).returncode == 1


@pytest.mark.parametrize("chart", CHARTS)
def test_a_released_chart_installs_the_released_image(chart: str, tmp_path: Path) -> None:
    values = Path(shutil.copy(ROOT / "helm" / chart / "values.yaml", tmp_path))
    before = yaml.safe_load(values.read_text())
    name_image(values, "registry.example.com/team", CHARTS[chart])
    after = yaml.safe_load(values.read_text())
    image = after["image"]
    assert f"{image['registry']}/{image['repository']}" == f"registry.example.com/team/{CHARTS[chart]}"
    for name in ("registry", "repository"):
        before["image"].pop(name, None), image.pop(name, None)
    assert after == before


def test_the_page_says_which_versions_may_be_in_one_group() -> None:
    text = (ROOT / "docs" / "versions.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([\d.]+) \| (\d+) to (\d+) \|", text, flags=re.MULTILINE)
    assert rows[0] == (CURRENT, str(OLDEST_VERSION), str(VERSION))
