"""Claim: the list of what an image holds names the crates of the native module, and their licences."""

import sys
import tomllib
from importlib.metadata import distribution
from pathlib import Path

from deploy.sbom import bundled, python_packages
from tests.support.documents import ROOT


def test_list_names_the_crates_at_their_locked_versions() -> None:
    locked, manifest = (
        tomllib.loads((ROOT / "native" / name).read_text(encoding="utf-8"))
        for name in ("Cargo.lock", "Cargo.toml")
    )
    expected = {
        f"pkg:cargo/{crate['name']}@{crate['version']}"
        for crate in locked["package"]
        if crate["name"] in manifest["dependencies"]
    }
    listed = {each["purl"]: each for each in python_packages(Path(sys.prefix))}
    assert len(expected) == len(manifest["dependencies"])
    assert expected <= listed.keys()
    assert all(listed[purl]["licenses"] for purl in expected)
    assert "pkg:pypi/gateway-native@0.1.0" in listed
    own = {each["purl"] for each in bundled(distribution("gateway-native"))}
    assert expected <= own
    assert not any("target-lexicon" in purl for purl in own), "only builds need it"
