"""Claim: the board's JSON is of the type that Grafana, at the version of compose.yaml, declares for it."""

import json
import subprocess
from pathlib import Path

import yaml

from tests.support.board import BOARD

ROOT = Path(__file__).parents[3]
HERE = Path(__file__).parent
OPTIONS = ("--noEmit", "--strict", "--target", "es2022", "--module", "preserve")


def test_types_are_of_the_version_that_compose_starts() -> None:
    services = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text())["services"]
    installed = json.loads((HERE / "package.json").read_text())["dependencies"]
    assert services["grafana"]["image"] == f"grafana/grafana:{installed['@grafana/schema']}"


def test_board_is_of_grafanas_type(tmp_path: Path) -> None:
    assert complaints(json.dumps(BOARD), tmp_path) == ""


def test_misspelt_field_is_noticed(tmp_path: Path) -> None:
    found = complaints(json.dumps(BOARD).replace("gridPos", "gridpos"), tmp_path)
    assert """'"gridpos"' does not exist in type 'Panel<""" in found


def complaints(board: str, folder: Path) -> str:
    """Return what TypeScript says of a board that is written as a literal, where no field is left unread."""
    (folder / "node_modules").symlink_to(HERE / "node_modules")
    text = f'import type {{ Dashboard }} from "@grafana/schema";\nexport const board: Dashboard = {board};\n'
    (folder / "board.ts").write_text(text)
    command = [str(folder / "node_modules" / ".bin" / "tsc"), *OPTIONS, "board.ts"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    assert not done.stderr
    return done.stdout
