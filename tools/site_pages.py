"""
What the site takes beside docs/, and how links of documents fit it: a hook of mkdocs, named in mkdocs.yml.

Documents link to one another by their places in the repository. On the site a document of docs/ stands at
the top, the README is the first page, and every other document stands at its place in the repository. What a
document links to and is no document (a test, a manifest) is served as it is; a link to a folder becomes its
name.
"""

import re
from pathlib import Path
from posixpath import dirname, join, normpath, relpath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
DOCUMENTS = (
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "clients/**/*.md",
    "helm/*/README.md",
    "loadtests/results/**/*.md",
    "tests/REGRESSIONS.md",
)
LINK = re.compile(
    r"\[(?P<text>[^\[\]]*(?:\[[^\]]*\]\([^)]*\))?[^\[\]]*)\]\((?![a-z]+:|#)(?P<path>[^)#\s]+)(?P<anchor>#[^)\s]*)?\)"
)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """List in the navigation what grows by itself: runbooks, decisions and measurements."""
    lists = {
        "RUNBOOKS": ["runbooks/README.md", *_sorted("docs/runbooks/[!R]*.md")],
        "DECISIONS": ["adr/README.md", *_sorted("docs/adr/0*.md")],
        "MEASUREMENTS": _sorted("loadtests/results/**/*.md"),
    }
    _fill(config.nav, lists)
    return config


def _fill(nav: object, lists: dict[str, list[str]]) -> None:
    """Replace each name of a list by its pages, in place."""
    for entry in nav if isinstance(nav, list) else []:
        for title, below in entry.items() if isinstance(entry, dict) else ():
            if isinstance(below, str):
                entry[title] = lists.get(below, below)
            else:
                _fill(below, lists)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the documents outside docs/, and what any document links to."""
    for source in [
        ROOT / "README.md",
        *(path for pattern in DOCUMENTS for path in sorted(ROOT.glob(pattern))),
    ]:
        if "node_modules" not in source.parts:
            _add(files, source, config)
    for page in list(files.documentation_pages()):
        for link in LINK.finditer(page.content_string):
            source = ROOT / _in_repository(page.src_uri, link["path"])
            if source.is_file() and files.get_file_from_path(_on_site(source)) is None:
                _add(files, source, config)
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Return a page's text with its links as the site has them."""
    here = page.file.src_uri

    def moved(link: re.Match[str]) -> str:
        target = ROOT / _in_repository(here, link["path"])
        if target.is_dir():
            return link["text"]
        return f"[{link['text']}]({relpath(_on_site(target), dirname(here) or '.')}{link['anchor'] or ''})"

    return LINK.sub(moved, markdown)


def _sorted(pattern: str) -> list[str]:
    return [_on_site(path) for path in sorted(ROOT.glob(pattern))]


def _add(files: Files, source: Path, config: MkDocsConfig) -> None:
    files.append(File.generated(config, _on_site(source), abs_src_path=str(source)))


def _in_repository(page: str, link: str) -> str:
    """Return where a link of a page of the site leads to, below the root of the repository."""
    if page == "index.md":
        return normpath(link)
    inside_docs = (ROOT / "docs" / page).exists()
    return normpath(join("docs" if inside_docs else "", dirname(page), link))


def _on_site(source: Path) -> str:
    """Return the place on the site of a file of the repository."""
    place = source.relative_to(ROOT).as_posix()
    return "index.md" if place == "README.md" else place.removeprefix("docs/")
