"""Claim: whoever has only cloned the project can make any target: it installs what it runs."""

import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions

import pytest

from tests.support.documents import ROOT

RULES = re.compile(r"^([a-z0-9-]+): (.*?)##.*\n((?:\t.*\n)+)", flags=re.MULTILINE)


def lean_modules() -> list[tuple[str, str]]:
    """Return target and module of what runs without the test and check tools."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    return [
        (target, module)
        for target, needs, recipe in RULES.findall(makefile)
        if ".stamp-run" in needs and ".stamp-dev" not in needs
        for module in re.findall(r"exec \$\(BIN\)/python -m (\S+)", recipe)
    ]


def test_make_alone_lists_every_target() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (phony,) = re.findall(r"^\.PHONY: (.*)", makefile, flags=re.MULTILINE)
    listed = subprocess.run(["make", "--silent"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert re.findall(r"^  make ([a-z0-9-]+) ", listed, flags=re.MULTILINE) == re.findall(
        r"^([a-z0-9-]+):.*## ", makefile, flags=re.MULTILINE
    )
    assert set(re.findall(r"make (\S+)", listed)) >= set(phony.split())


def test_some_targets_are_lean() -> None:
    assert ("kafka", "tests.support.kafka") in lean_modules()


@pytest.mark.parametrize(("target", "module"), lean_modules())
def test_target_installs_what_it_imports(target: str, module: str) -> None:
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["dependency-groups"]
    tools = {re.split(r"\W*[>=]", tool)[0].lower() for tool in groups["test"]}
    missing = [
        name
        for name, owners in packages_distributions().items()
        if any(owner.lower() in tools for owner in owners)
    ]
    main = f"{module}.__main__" if (ROOT / module.replace(".", "/")).is_dir() else module
    code = f"import sys; sys.modules.update(dict.fromkeys({missing!r})); import {main}"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"make {target}: {done.stderr}"
