"""Claim: a room is entered by its front door: what others use of a package, its `__init__` offers."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HOUSES = ("app", "dedupe", "pipeline")
ROOMS_WITHOUT_A_DOOR = {
    *HOUSES,
    "pipeline.jobs",  # one module a job, each named by the command line
}
ROOMS = sorted(
    ".".join(init.parent.relative_to(ROOT).parts)
    for house in HOUSES
    for init in (ROOT / house).rglob("__init__.py")
)


def room_of(module: str) -> str:
    """Return the innermost package that a module belongs to, or is."""
    return max((room for room in ROOMS if f"{module}.".startswith(f"{room}.")), key=len)


def imports_of(path: Path) -> Iterator[str]:
    """Yield what a file imports from, late imports included."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


@pytest.mark.parametrize("house", HOUSES)
def test_other_rooms_are_entered_by_their_front_doors(house: str) -> None:
    for path in (ROOT / house).rglob("*.py"):
        here = room_of(".".join(path.relative_to(ROOT).with_suffix("").parts))
        for module in imports_of(path):
            if not module.startswith(tuple(f"{name}." for name in HOUSES)):
                continue
            room = room_of(module)
            is_inside = f"{here}.".startswith(f"{room}.") or f"{room}.".startswith(f"{here}.")
            is_allowed = is_inside or module == room or room in ROOMS_WITHOUT_A_DOOR
            assert is_allowed, f"{path.relative_to(ROOT)}: from {module} import ... goes around {room}"
