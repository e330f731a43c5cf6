"""Holds manifests against what Kubernetes, and the operators of custom resources, say of their fields."""

from functools import cache
from typing import Any

import jsonschema
import kubernetes_validate
import yaml

from tests.deploy.chart.helm import ROOT

DEFINITIONS = ROOT / "build" / "crds"
UNPUBLISHED = "spark.apache.org/v1"
"""Apache's Spark operator keeps its definitions in its repository alone; these fields were read there."""

Schema = dict[str, Any]


@cache
def _schemas() -> dict[tuple[str, str], Schema]:
    """Return each definition's schema by `apiVersion` and `kind`."""
    found = {}
    for path in DEFINITIONS.glob("*.yaml"):
        for definition in filter(None, yaml.load_all(path.read_text(), yaml.CSafeLoader)):
            spec = definition["spec"]
            for version in spec["versions"]:
                api_version = f"{spec['group']}/{version['name']}"
                found[api_version, spec["names"]["kind"]] = _strict(version["schema"]["openAPIV3Schema"])
    return found


def _strict(schema: Any) -> Any:
    """Return a schema that refuses fields that it does not name, as `kubectl apply` does."""
    if isinstance(schema, list):
        return [_strict(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    strict = {name: _strict(part) for name, part in schema.items()}
    is_open = {"additionalProperties", "x-kubernetes-preserve-unknown-fields"} & schema.keys()
    if schema.get("type") == "object" and "properties" in schema and not is_open:
        strict["additionalProperties"] = False
    return strict


def validate(manifest: dict[str, Any], kubernetes: str) -> None:
    """
    Hold a manifest against its definition, fields that it does not name included.

    Raises:
        jsonschema.ValidationError: A custom resource that its operator's API would not take.
        kubernetes_validate.ValidationError: The same of Kubernetes' own, in this version.

    """
    custom = _schemas().get((manifest["apiVersion"], manifest["kind"]))
    if custom is not None:
        # Not jsonschema.validate: that compiles all patterns first, and some are Go's.
        jsonschema.Draft202012Validator(custom).validate(manifest)
    elif manifest["apiVersion"] != UNPUBLISHED:
        kubernetes_validate.validate(manifest, kubernetes, strict=True)
