"""`python -m tests.support.generated` (`make docs`) writes what is generated in the documents anew."""

from pathlib import Path

from typer.testing import CliRunner

from app.cli.commands import app
from clients.python import single_file
from loadtests.capacity import table
from tests.support import chart, metrics_page, regressions, settings_page
from tests.support.documents import README, ROOT

CAPACITY = ROOT / "docs" / "capacity.md"
METRICS = ROOT / "docs" / "metrics.md"
OPERATIONS = ROOT / "docs" / "operations.md"
REGRESSIONS = ROOT / "tests" / "REGRESSIONS.md"
SETTINGS = ROOT / "docs" / "settings.md"


def written_anew() -> dict[Path, str]:
    """Return every document with a generated part, as the code says it now."""
    return {
        README: _between(README, "settings", settings_page.usual()),
        SETTINGS: _between(SETTINGS, "settings", settings_page.every()),
        CAPACITY: _between(CAPACITY, "capacity", table()),
        METRICS: _between(METRICS, "metrics", metrics_page.table()),
        OPERATIONS: _between(OPERATIONS, "size", _size("100M", "--window", "7d", "--output", "table")),
        REGRESSIONS: _between(REGRESSIONS, "regressions", regressions.table()),
        single_file.SINGLE_FILE: single_file.written_anew(),
        **chart.written_anew(),
    }


def _size(*arguments: str) -> str:
    """Return a call of `gateway size` and what it prints, as Markdown."""
    printed = CliRunner().invoke(app, ["size", *arguments]).stdout
    return f"```sh\ngateway size {' '.join(arguments)}\n```\n\n```text\n{printed}```"


def _between(document: Path, name: str, text: str) -> str:
    """Return a document with something else between two comments."""
    begin, end = f"<!-- {name} -->\n", f"\n<!-- /{name} -->"
    before, _, rest = document.read_text(encoding="utf-8").partition(begin)
    return f"{before}{begin}{text}{end}{rest.partition(end)[2]}"


def main() -> None:
    """Write what has changed, and name it."""
    for document, text in written_anew().items():
        if not document.exists() or document.read_text(encoding="utf-8") != text:
            document.write_text(text, encoding="utf-8")
            print(f"Written anew: {document.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
