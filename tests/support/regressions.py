"""The table of every bug that was found: the mark of the test that keeps it away says what was wrong."""

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.support.documents import ROOT

TESTS = ROOT / "tests"
MARK = "regression"


def table() -> str:
    """Return the tests that are marked, file by file, as Markdown."""
    rows = [row for path in sorted(TESTS.rglob("test_*.py")) for row in _rows_of(path)]
    return "\n".join([f"{len(rows)} bugs.", "", "| what went wrong | test |", "|---|---|", *rows])


def _rows_of(path: Path) -> Iterator[str]:
    where = path.relative_to(TESTS).as_posix()
    source = path.read_text(encoding="utf-8")
    if f"mark.{MARK}(" not in source:
        return
    for function in ast.walk(ast.parse(source)):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            for what in _marks_of(function):
                yield f"| {what} | [{function.name}]({where}) |"


def _marks_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    for decorator in function.decorator_list:
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == f"pytest.mark.{MARK}":
            (what,) = decorator.args
            yield str(ast.literal_eval(what))
