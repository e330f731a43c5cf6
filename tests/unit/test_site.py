"""Claim: the site has every document, reaches each from its navigation, and no link of it leads nowhere."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.documents import ROOT


def build(root: Path, site: Path) -> subprocess.CompletedProcess[str]:
    """Build the site of a tree; `strict` in mkdocs.yml makes each warning an error."""
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(site)],
        cwd=root,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = build(ROOT, folder)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize("page", ["index", "http-api", "adr/0001-the-log-is-the-truth", "clients/PROTOCOL"])
def test_pages_and_search_are_there(site: Path, page: str) -> None:
    assert (site / f"{page}.html").exists()
    assert f'"{page}.html"' in (site / "search" / "search_index.json").read_text(encoding="utf-8")


def test_links_fit_the_site(site: Path) -> None:
    first_page = (site / "index.html").read_text(encoding="utf-8")
    assert 'href="http-api.html#client-sessions"' in first_page
    assert 'href="docs/' not in first_page


@pytest.mark.parametrize(
    ("document", "damage"),
    [
        ("docs/COMMIT.md", "\n[nowhere](nothing.md)\n"),
        ("docs/COMMIT.md", "\n[nowhere](ARCHITECTURE.md#nothing)\n"),
        ("docs/unlisted.md", "# A page that no navigation names\n"),
    ],
)
def test_what_leads_nowhere_fails(tmp_path: Path, document: str, damage: str) -> None:
    root = tmp_path / "tree"
    for name in ("docs", "clients", "helm", "loadtests/results", "tests", "deploy", "tools"):
        shutil.copytree(
            ROOT / name, root / name, ignore=shutil.ignore_patterns("node_modules", "__pycache__")
        )
    for file in ROOT.glob("*.*"):
        if file.is_file():
            shutil.copy(file, root)
    with (root / document).open("a", encoding="utf-8") as page:
        page.write(damage)
    assert build(root, tmp_path / "site").returncode != 0
