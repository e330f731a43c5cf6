"""
Claim: every setting, file, module, class, command, target and error code that the documents name exists.
"""

import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import typer.core
import typer.main

from app.admin.answers import ADMIN_PROBLEMS
from app.cli.commands import app as command_line
from app.http.body import BodyLimits
from app.http.problems import PROBLEMS
from app.ingest import event_limits, large_json, receipts
from app.ingest.event_limits import EventLimits
from app.ingest.receipts import REASONS
from app.ingest.routes.events import Ingest
from app.ingest.routes.paths import PATHS
from app.settings.environment import CLIENT_VARIABLES
from app.settings.limits import LimitSettings
from app.settings.model import Settings
from app.settings.replaced import REPLACED
from app.settings.section import secret_file_variables
from app.settings.units import MIB
from dedupe.decide.rejection import RETRIABLE_CODES
from tests.fault.test_reshard_kills import GROWTH, SHRINK, cells_of
from tests.support.generated import written_anew
from tests.support.settings import VARIABLES

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")] + sorted(
    path for folder in ("docs", "clients") for path in (ROOT / folder).rglob("*.md")
)
CODE = "\n".join(
    path.read_text(encoding="utf-8")
    for folder in ("app", "clients", "dedupe", "tests", "pipeline")
    for path in (ROOT / folder).rglob("*.py")
)
HTTP_API = (ROOT / "docs" / "http-api.md").read_text(encoding="utf-8")
ARCHITECTURE = (ROOT / "docs" / "ARCHITECTURE.md").read_text(encoding="utf-8")


def text_of(document: Path) -> str:
    return document.read_text(encoding="utf-8")


def code_spans(document: Path) -> list[str]:
    """Return what stands between single backticks."""
    prose = re.sub(r"^```.*?^```$", "", text_of(document), flags=re.DOTALL | re.MULTILINE)
    return re.findall(r"`([^`\n]+)`", prose)


def in_texts(pattern: str) -> set[tuple[str, Path]]:
    """Return what matches anywhere in the documents, and in which; a pattern that finds nothing is wrong."""
    found = {
        (name, document)
        for document in DOCUMENTS
        for name in re.findall(pattern, text_of(document), flags=re.MULTILINE)
    }
    assert found, pattern
    return found


def in_code_spans(pattern: str) -> list[tuple[re.Match[str], Path]]:
    """Return the code spans that match as a whole, and in which document; one that finds none is wrong."""
    found = [
        (match, document)
        for document in DOCUMENTS
        for span in code_spans(document)
        if (match := re.fullmatch(pattern, span))
    ]
    assert found, pattern
    return found


def test_generated_parts_are_what_make_docs_writes() -> None:
    for path, text in written_anew().items():
        assert text_of(path) == text, f"{path.name}: run `make docs`"


def test_settings_exist() -> None:
    known = CLIENT_VARIABLES.union(VARIABLES, secret_file_variables(Settings))
    named = {each for each in in_texts(r"GATEWAY_[A-Z_]*[A-Z]") if each[0] not in known}
    assert named <= {(name, ROOT / "CHANGELOG.md") for name in REPLACED}


def test_links_lead_to_files() -> None:
    links = in_texts(r"\]\((?!https?:)([^)#]+)")
    assert [(link, document) for link, document in links if not (document.parent / link).exists()] == []


def test_paths_lead_to_files() -> None:
    paths = in_code_spans(r"(app|clients|dedupe|tests|docs|pipeline)/\S+")
    assert [
        (path[0], document)
        for path, document in paths
        if not (list(ROOT.glob(path[0])) or list(ROOT.glob(f"{path[0]}.py")))
    ] == []


def test_classes_and_their_methods_exist() -> None:
    for span, document in in_code_spans(r"([A-Z]\w*[a-z]\w*)\.(\w+)|([A-Z]\w+Error)"):
        name, method, error = span.groups()
        assert re.search(rf"^class {name or error}\b", CODE, flags=re.MULTILINE), (span[0], document)
        assert not method or f"def {method}(" in CODE, (span[0], document)


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z0-9-]+):.*##", makefile, flags=re.MULTILINE))
    assert [named for named in in_texts(r"(?:^|`|\d )make ([a-z0-9-]+)") if named[0] not in targets] == []


def test_commands_exist() -> None:
    group = typer.main.get_command(command_line)
    assert isinstance(group, typer.core.TyperGroup)
    named = in_texts(r"(?:`|\.venv/bin/|-- )gateway ([a-z]+)")
    assert [command for command in named if command[0] not in group.commands] == []


def test_runbooks_say_how_their_commands_run_on_kubernetes() -> None:
    """In the pod, or for one whose start is refused, by its log."""
    silent = []
    for page in sorted((ROOT / "docs" / "runbooks").glob("*.md")):
        text = text_of(page)
        names_commands = re.search(r"(?:^|`)gateway [a-z]+", text, flags=re.MULTILINE)
        if names_commands and not re.search(r"kubectl exec POD -- gateway|kubectl logs POD --previous", text):
            silent.append(page.name)
    assert silent == []


def test_every_module_of_the_core_has_its_role() -> None:
    table = ARCHITECTURE.partition("## Modules")[2].partition("\n## ")[0]
    cells = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    named = {path.name for cell in cells for path in modules_of(cell)}
    modules = {
        path.name
        for room in ("", "model", "decide", "partition", "cluster")
        for path in (ROOT / "dedupe" / room).glob("*.py")
    }
    modules -= {"__init__.py"}
    assert modules <= named


def modules_of(cell: str) -> Iterator[Path]:
    """Yield the files of one cell; a name without a folder lies beside the first one."""
    folder = ROOT
    for name in re.findall(r"`([^`]+)`", cell):
        if "/" in name:
            folder = (ROOT / name).parent
        found = list(folder.glob(f"{Path(name).name}.py")) + list(folder.glob(Path(name).name))
        assert found, name
        yield from found


def test_error_codes_and_statuses_are_the_real_ones() -> None:
    rows = re.findall(r"^\| (\d{3}) \| `(\w+)` \|", HTTP_API, flags=re.MULTILINE)
    assert {code: int(status) for status, code in rows} == {
        code: problem.status for code, problem in PROBLEMS.items()
    }


def test_every_refusal_of_the_admin_port_is_documented() -> None:
    table = HTTP_API.partition("| code | status | when |")[2].partition("\n\n")[0]
    found: dict[str, int] = {}
    for codes, statuses in re.findall(r"^\| (`.+?`) \| ([\d, ]+?) \|", table, flags=re.MULTILINE):
        named, numbers = re.findall(r"`(\w+)`", codes), statuses.split(", ")
        found |= zip(named, map(int, numbers * len(named)), strict=False)
    assert found == {code: int(problem.status) for code, problem in ADMIN_PROBLEMS.items()}


def test_every_path_is_documented_with_its_users() -> None:
    table = HTTP_API.partition("## Paths")[2].partition("\n## ")[0]
    documented = {
        template: (method, who)
        for method, templates, who in re.findall(
            r"^\| ([A-Z]+) (.+?) \| .+? \| (.+) \|$", table, re.MULTILINE
        )
        for template in re.findall(r"`([^`]+)`", templates)
    }
    assert documented == {path.template: (path.methods[0], path.who) for path in PATHS}


def test_every_reason_for_quarantine_is_documented() -> None:
    table = HTTP_API.partition("## Quarantined events")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", table, flags=re.MULTILINE)) == set(REASONS)


def test_every_reason_has_what_an_operator_does_about_it() -> None:
    text = (ROOT / "docs" / "quarantine.md").read_text(encoding="utf-8")
    table = text.partition("## What lands there")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \|", table, flags=re.MULTILINE)
    told = [code for row in rows for code in re.findall(r"`(\w+)`", row)]
    assert sorted(told) == sorted(set(REASONS) - set(RETRIABLE_CODES.values()))


def test_documented_costs_of_one_request_are_the_bounds_of_the_code() -> None:
    text = (ROOT / "docs" / "http-api.md").read_text(encoding="utf-8")
    table = text.partition("## What one request may cost")[2].partition("\n## ")[0]
    limits = LimitSettings.model_validate({})
    body = BodyLimits(limits.body_bytes_max, limits.body_compressed_bytes_max)
    default: dict[str, Any] = {
        field.name: field.default for kind in (Ingest, EventLimits) for field in fields(kind)
    }
    for told in (
        f"above {large_json.SMALL_BYTES // 1024} KiB are counted",
        f"above {large_json.AT_ONCE_BYTES // MIB} MiB or {large_json.MARKS_AT_ONCE:,} colons",
        f"{large_json.EVENT_MARKS_MAX:,} colons and opening brackets, {large_json.EVENT_COMMAS_MAX:,} commas",
        f"up to {large_json.DOCUMENT_BYTES_MAX // MIB} MiB by the lower",
        f"{limits.request_events_max:,} a request",
        f"{receipts.LIST_BYTES_MAX // MIB} MiB of `receipts`",
        f"identified {event_limits.STEP_BYTES // 1024} KiB at a time",
        f"at most {default['growth_bytes_max'] // MIB} MiB of batch-level",
        f"{body.compressed_bytes_max // MIB} MiB compressed or",
        f"or {body.bytes_max // MIB} MiB plain",
        f"after {body.grace_s:g} s below {body.rate_min} bytes a second",
        f"{limits.request_bytes_max // MIB} MiB at most",
    ):
        assert told in table, told


def test_commit_document_has_each_crash_point_of_a_plan() -> None:
    rows = (ROOT / "docs" / "COMMIT.md").read_text().partition("## When a partition is divided")[2]
    steps = {cell.step for way in (GROWTH, SHRINK) for cell in cells_of(way)}
    assert {step for step in steps if f"(`{step}`" not in rows} == set()
