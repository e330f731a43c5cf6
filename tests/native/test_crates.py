"""Claim: the native module is of few crates of one registry, with allowed licences, and an image lists them."""

import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from deploy.sbom import python_packages
from tests.support.documents import ROOT

REGISTRY = "registry+https://github.com/rust-lang/crates.io-index"
ALLOWED = {
    "Apache-2.0",
    "MIT",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "Unicode-3.0",
    "Unlicense",
    "CC0-1.0",
    "MIT-0",
}
CRATES_MAX = 30
LOCK = tomllib.loads((ROOT / "native" / "Cargo.lock").read_text(encoding="utf-8"))
MANIFEST = tomllib.loads((ROOT / "native" / "Cargo.toml").read_text(encoding="utf-8"))


def is_allowed(expression: str) -> bool:
    """Whether a licence expression of SPDX can be met: by one side of an OR, by both of an AND."""
    words = re.sub(
        r"[\w.+-]+", lambda name: {"AND": "and", "OR": "or"}.get(name[0], str(name[0] in ALLOWED)), expression
    )
    assert re.fullmatch(r"(True|False|and|or|[() ])+", words), expression
    return bool(eval(words))


def crates() -> dict[str, dict[str, Any]]:
    """Return the crates that this environment's packages list, by name and version."""
    found = python_packages(Path(sys.prefix))
    return {
        f"{each['name']} {each['version']}": each for each in found if each["purl"].startswith("pkg:cargo/")
    }


def test_all_are_of_one_registry_and_of_a_fixed_content() -> None:
    (own,) = (crate for crate in LOCK["package"] if "source" not in crate)
    assert own["name"] == "gateway-native"
    for crate in LOCK["package"]:
        if crate is not own:
            assert crate["source"] == REGISTRY
            assert len(bytes.fromhex(crate["checksum"])) == 32
    assert len(LOCK["package"]) <= CRATES_MAX


def test_each_has_a_licence_that_is_allowed_and_stands_in_the_list_of_an_image() -> None:
    listed = crates()
    locked = {crate["name"]: f"{crate['name']} {crate['version']}" for crate in LOCK["package"]}
    assert {locked[name] for name in MANIFEST["dependencies"]} <= listed.keys()
    for crate in listed.keys() & locked.values():
        (told,) = listed[crate]["licenses"]
        assert is_allowed(told["expression"]), (crate, told)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [("MIT", True), ("GPL-3.0-only OR MIT", True), ("(MIT OR Apache-2.0) AND GPL-3.0-only", False)],
)
def test_a_licence_of_another_kind_is_refused(expression: str, expected: bool) -> None:
    assert is_allowed(expression) is expected
