"""What the sources say of the version that is to be released."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

VERSION = re.compile(r"(?:0|[1-9]\d*)(?:\.(?:0|[1-9]\d*)){2}")
"""A release's: no suffixes, so that Python, Cargo, npm and Helm agree on its order."""

PLACES = {
    "pyproject.toml": r'^version = "(.+)"$',
    "pipeline/pyproject.toml": r'^version = "(.+)"$',
    "native/Cargo.toml": r'^version = "(.+)"$',
    "native/Cargo.lock": r'^name = "gateway-native"\nversion = "(.+)"$',
    "helm/gateway/Chart.yaml": r'^version: (\S+)\nappVersion: "\1"$',
    "helm/pipeline/Chart.yaml": r'^version: (\S+)\nappVersion: "\1"$',
    "deploy/compose.yaml": r"/gateway:(\S+?)\}?$",
    "deploy/jobs/spark-application.yaml": r"gateway-pipeline:(\S+)$",
    "deploy/jobs/sparkoperator-application.yaml": r"gateway-pipeline:(\S+)$",
    "deploy/jobs/databricks.yaml": r"gateway_pipeline-(\S+?)-py3",
    "README.md": r"docker run .*/gateway:(\S+)$",
}
"""Each file that names the version, and the pattern that finds it there."""


def problems(root: Path, version: str) -> Iterator[str]:
    """Yield a sentence for each thing that forbids a release of this version."""
    if not VERSION.fullmatch(version):
        yield f"VERSION={version} is not of the form 1.2.3."
        return
    for name, pattern in PLACES.items():
        found = re.search(pattern, (root / name).read_text(encoding="utf-8"), flags=re.MULTILINE)
        told = found[1] if found else "no version"
        if told != version:
            yield f"{name} says {told}."
    for name in ("CHANGELOG.md", "docs/versions.md"):
        if not re.search(
            rf"^##+ {re.escape(version)}\b", (root / name).read_text(encoding="utf-8"), re.MULTILINE
        ):
            yield f"{name} has no section {version}."


def repository_problems(root: Path, version: str) -> Iterator[str]:
    """Yield a sentence for each way in which what would be built is not what is committed."""
    if changed := _git(root, "status", "--porcelain"):
        yield f"{len(changed.splitlines())} files are not committed, {changed.split()[1]} among them."
    tagged = _git(root, "tag", "--list", f"v{version}", "--format", "%(objectname) %(*objectname)")
    if tagged and _git(root, "rev-parse", "HEAD") not in tagged.split():
        yield f"the tag v{version} is on another commit: a version is released once."


def committed_at(root: Path) -> str:
    """Return when HEAD was committed, in seconds, which builds take for the time of their files."""
    return _git(root, "log", "-1", "--format=%ct")


def _git(root: Path, *words: str) -> str:
    done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=True)
    return done.stdout.strip()
