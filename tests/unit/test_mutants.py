"""Claim: every mutant is still a change of the code, and its tests exist."""

import ast
import re

import pytest

from tools.mutants.catalogue import ROOT, Mutant, MutantError, all_mutants

MUTANTS = all_mutants()
MUTANT = Mutant("part", "name", "a.py", "old", "new", "harm", ["tests/unit/test_mutants.py"])


def functions_in(file: str) -> set[str]:
    return set(re.findall(r"def (\w+)\(", (ROOT / file).read_text(encoding="utf-8")))


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.path)
def test_mutant_fits_the_code_and_its_tests_exist(mutant: Mutant) -> None:
    ast.parse(mutant.applied_to((ROOT / mutant.file).read_text(encoding="utf-8")))
    for node in mutant.killed_by:
        file, *names = node.split("::")
        contracts = (
            [f"tests/contract/{kind}_contract.py" for kind in ("decision", "index", "log")]
            if names[1:]
            else []
        )
        named = names[-1].partition("[")[0]
        assert any(named in functions_in(place) for place in (file, *contracts)), node


def test_change_of_no_place_or_of_several_is_refused() -> None:
    assert MUTANT.applied_to("an old word") == "an new word"
    for text in ("nothing", "old and old"):
        with pytest.raises(MutantError, match=r"part/name: its old text stands \d times in a.py"):
            MUTANT.applied_to(text)
