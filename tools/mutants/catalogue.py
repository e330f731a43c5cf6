"""
The mutants: changes of the code that would break a promise, and the tests that must notice each.

They are data, one TOML file for each part of the project, one table for each mutant: `file`, the exact text
`old` and `new`, the `harm` it would do in production, and `killed_by`, the tests that fail with it.
"""

import tomllib
from pathlib import Path
from typing import Any, NamedTuple, Self

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent


class MutantError(Exception):
    """A mutant does not fit the code any more, or lacks a field."""


class Mutant(NamedTuple):
    """One change of one file."""

    part: str
    name: str
    file: str
    old: str
    new: str
    harm: str  # one line
    killed_by: list[str]  # pytest node ids

    @classmethod
    def of(cls, part: str, name: str, fields: dict[str, Any]) -> Self:
        """Read one table. Raises MutantError."""
        try:
            mutant = cls(part, name, **fields)
        except TypeError as err:
            raise MutantError(f"{part}/{name}: {err}") from err
        if mutant.old == mutant.new or not mutant.killed_by:
            raise MutantError(f"{mutant.path} changes nothing, or has no test")
        return mutant

    @property
    def path(self) -> str:
        """What it is called on the command line."""
        return f"{self.part}/{self.name}"

    def applied_to(self, text: str) -> str:
        """Return its file's text with the change. Raises MutantError: the place is not there exactly once."""
        if (times := text.count(self.old)) != 1:
            raise MutantError(f"{self.path}: its old text stands {times} times in {self.file}")
        return text.replace(self.old, self.new)


def all_mutants() -> list[Mutant]:
    """Return every mutant, part by part. Raises MutantError."""
    return [
        Mutant.of(path.stem, name, fields)
        for path in sorted(HERE.glob("*.toml"))
        for name, fields in tomllib.loads(path.read_text(encoding="utf-8")).items()
    ]
