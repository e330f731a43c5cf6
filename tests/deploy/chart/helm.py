"""Runs the helm that the Makefile builds, and reads what it renders."""

import json
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tests.support.waiting import PATIENCE_S

ROOT = Path(__file__).parents[3]
CHART = ROOT / "helm" / "gateway"
PIPELINE = ROOT / "helm" / "pipeline"
PROFILES = CHART / "profiles"
CASES = CHART / "ci"
HELM = ROOT / "build" / "go" / "helm"
TIMEOUT_S = PATIENCE_S


class HelmError(Exception):
    """Helm refused; what it said."""


def helm(*words: str | Path) -> str:
    """Run one command of helm and return what it printed."""
    command = [str(HELM), *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    if done.returncode:
        raise HelmError(done.stdout + done.stderr)
    return done.stdout


def path_of(profile: str) -> Path:
    """Return the file of a profile, or of a case of the folder ci."""
    case = CASES / f"{profile}.yaml"
    return case if case.exists() else PROFILES / f"{profile}.yaml"


def values(*profiles: str, **settings: object) -> list[str]:
    """Return the options for profiles and single values; dots of names are written as two underscores."""
    words = [word for profile in profiles for word in ("--values", str(path_of(profile)))]
    for name, value in settings.items():
        words += ["--set-json", f"{name.replace('__', '.')}={json.dumps(value)}"]
    return words


def render(*profiles: str, **settings: object) -> list[dict[str, Any]]:
    """Return all manifests of a release called `events`."""
    return documents_of(_text(*values(*profiles, **settings)))


@cache
def _text(*words: str) -> str:
    return helm("template", "events", CHART, "--namespace", "ingest", *words)


def render_pipeline(**settings: object) -> list[dict[str, Any]]:
    """Return all manifests of a release of the jobs' chart called `events`."""
    text = helm("template", "events", PIPELINE, "--namespace", "ingest", *values(**settings))
    return documents_of(text)


class _EachKeyOnce(yaml.SafeLoader):
    """Refuses what an API server refuses: a field that is there twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        names = [key.value for key, _ in node.value]
        twice = {name for name in names if names.count(name) > 1}
        assert not twice, f"{node.start_mark}: {', '.join(sorted(twice))} twice"
        return super().construct_mapping(node, deep)


def documents_of(text: str) -> list[dict[str, Any]]:
    """Return the manifests of a text; a field that one of them has twice is an error."""
    return [document for document in yaml.load_all(text, _EachKeyOnce) if document]


def only(manifests: list[dict[str, Any]], kind: str, name: str | None = None) -> dict[str, Any]:
    """Return the one manifest of a kind, and of a name if several are of that kind."""
    found = [
        manifest
        for manifest in manifests
        if manifest["kind"] == kind and name in (None, manifest["metadata"]["name"])
    ]
    assert len(found) == 1, (kind, name, len(found))
    return found[0]


def environment(manifests: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the gateway's variables: a text, or where Kubernetes takes it from."""
    pod = only(manifests, "StatefulSet")["spec"]["template"]["spec"]
    return {item["name"]: item.get("value", item.get("valueFrom")) for item in pod["containers"][0]["env"]}
