"""
What is generated for the Helm charts: their READMEs' tables, out of the comments of values.yaml, and
values.schema.json, out of their values, the rules below and the names of the settings.

A comment that begins with `# --` belongs to the key below it.
"""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

import yaml

from dedupe.login.settings import Mechanism
from tests.support.settings import VARIABLES

HELM = Path(__file__).parents[2] / "helm"
CHARTS = (HELM / "gateway", HELM / "pipeline")
TABLE, TABLE_END = "<!-- values -->\n", "\n<!-- /values -->"

OPEN = frozenset(
    (
        *("global", "config", "resources", "podAnnotations", "podLabels", "podSecurityContext"),
        *("securityContext", "nodeSelector", "affinity", "updateStrategy", "livenessProbe", "readinessProbe"),
        *("serviceAccount.annotations", "service.annotations", "ingress.annotations"),
        *("httpRoute.annotations", "persistence.annotations", "serviceMonitor.labels"),
        *("prometheusRule.labels", "grafanaDashboard.labels", "grafanaDashboard.annotations"),
        *("commonLabels", "commonAnnotations", "statefulSetAnnotations", "service.labels"),
        *("persistence.labels", "prometheusRule.overrides", "autoscaling.behavior", "dnsConfig"),
    )
)
"""Objects whose keys are Kubernetes' or the user's own."""

QUANTITY = {"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)?([KMGTP]i?)?$"}
PORT = {"type": "integer", "minimum": 1, "maximum": 65535}
POSITIVE = {"type": "integer", "minimum": 1}
RULES: Mapping[str, dict[str, Any]] = {
    "replicaCount": {"type": "integer", "minimum": 1, "maximum": 1024},
    "mode": {"enum": ["production", "development"]},
    "log": {"enum": ["kafka", "sqlite"]},
    "image.pullPolicy": {"enum": ["Always", "IfNotPresent", "Never"]},
    "image.digest": {"type": "string", "pattern": "^(sha256:[0-9a-f]{64})?$"},
    "kafka.bootstrapServers": {"type": "string", "pattern": r"^([^,:\s]+:[0-9]+(,[^,:\s]+:[0-9]+)*)?$"},
    "kafka.partitions": {"type": "integer", "minimum": 0, "maximum": 1024},
    "kafka.securityProtocol": {"enum": ["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]},
    "kafka.sasl.mechanism": {"enum": [*get_args(Mechanism)]},
    "kafka.sasl.oauth.tokenUrl": {"type": "string", "pattern": "^((https?|file)://.*)?$"},
    "topic": {"type": "string", "pattern": "^[A-Za-z0-9._-]{1,249}$"},
    "archive.format": {"enum": ["delta", "iceberg", "parquet"]},
    "erasures.path": {"type": "string", "pattern": r"^(/(data|erasures)(/.*)?|[a-z][a-z0-9+.-]*://.+)?$"},
    "erasures.secretKey": {"type": "string", "minLength": 1},
    "archive.operator": {"enum": ["", "apache", "kubeflow"]},
    "activeDeadlineSeconds": POSITIVE,
    "service.type": {"enum": ["ClusterIP", "NodePort", "LoadBalancer"]},
    "service.port": PORT,
    "service.nodePort": {"type": "integer", "minimum": 0, "maximum": 65535},
    "service.externalTrafficPolicy": {"enum": ["", "Cluster", "Local"]},
    "service.ipFamilyPolicy": {"enum": ["", "SingleStack", "PreferDualStack", "RequireDualStack"]},
    "platform": {"enum": ["auto", "kubernetes", "openshift"]},
    "persistence.retention.whenDeleted": {"enum": ["Retain", "Delete"]},
    "persistence.retention.whenScaled": {"enum": ["Retain", "Delete"]},
    "serviceMonitor.kind": {"enum": ["ServiceMonitor", "PodMonitor"]},
    "prometheusRule.runbookBaseUrl": {"type": "string", "pattern": "^(https?://.*/)?$"},
    "admin.port": PORT,
    "probes.port": PORT,
    "peers.port": PORT,
    "persistence.size": QUANTITY,
    "startup.seconds": {"type": "integer", "minimum": 60},
    "preStopSeconds": {"type": "integer", "minimum": 1},
    "terminationGracePeriodSeconds": POSITIVE,
    "podDisruptionBudget.maxUnavailable": {
        "anyOf": [POSITIVE, {"type": "string", "pattern": "^[1-9][0-9]?%$"}],
    },
    "podDisruptionBudget.minAvailable": {
        "anyOf": [{"const": ""}, POSITIVE, {"type": "string", "pattern": "^[1-9][0-9]?%$"}],
    },
    "autoscaling.minReplicas": POSITIVE,
    "autoscaling.maxReplicas": POSITIVE,
    "autoscaling.targetCPUUtilizationPercentage": {"type": "integer", "minimum": 1, "maximum": 100},
    "acceptClock": {"type": "string", "pattern": r"^(\d{4}-\d{2}-\d{2})?$"},
    "tests.writeKey": {"type": "string", "minLength": 1, "pattern": "^[^:]+$"},
}


def written_anew() -> dict[Path, str]:
    """Return what is generated of each chart."""
    found = {}
    for chart in CHARTS:
        found[chart / "README.md"] = readme_text(chart)
        found[chart / "values.schema.json"] = schema_text(chart)
    return found


def schema_text(chart: Path) -> str:
    """Return a chart's values.schema.json."""
    schema = _schema_of("", yaml.safe_load((chart / "values.yaml").read_text(encoding="utf-8")))
    return json.dumps({"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}, indent=1) + "\n"


def _schema_of(path: str, value: object) -> dict[str, Any]:
    if path in RULES:
        return RULES[path]
    if path == "config":
        names = sorted(VARIABLES)
        scalar = {"type": ["string", "number", "boolean"]}
        return {"type": "object", "additionalProperties": False, "properties": dict.fromkeys(names, scalar)}
    if path in OPEN:
        return {"type": "object"}
    if isinstance(value, dict):
        properties = {name: _schema_of(f"{path}.{name}".lstrip("."), item) for name, item in value.items()}
        return {"type": "object", "additionalProperties": False, "properties": properties}
    if isinstance(value, list):
        return {"type": "array"}
    kinds = {bool: "boolean", int: "integer", str: "string"}
    return {"type": kinds[type(value)]}


def readme_text(chart: Path) -> str:
    """Return the chart's README with its table written anew."""
    before, _, rest = (chart / "README.md").read_text(encoding="utf-8").partition(TABLE)
    after = rest.partition(TABLE_END)[2]
    return f"{before}{TABLE}{_table((chart / 'values.yaml').read_text(encoding='utf-8'))}{TABLE_END}{after}"


def _table(text: str) -> str:
    comments = dict(_comments(text))
    values = yaml.safe_load(text)
    rows = ["| value | default | meaning |", "|---|---|---|"]
    for path, default in _leaves("", values, comments):
        rows.append(f"| `{path}` | `{json.dumps(default)}` | {comments.get(path, '')} |")
    return "\n".join(rows)


def _leaves(path: str, value: object, comments: Mapping[str, str]) -> Iterator[tuple[str, object]]:
    is_closed = path not in OPEN or any(name.startswith(f"{path}.") for name in comments)
    if isinstance(value, dict) and value and is_closed:
        for name, item in value.items():
            yield from _leaves(f"{path}.{name}".lstrip("."), item, comments)
    else:
        yield path, value


def _comments(text: str) -> Iterator[tuple[str, str]]:
    """Yield the comment of each key that has one, by the key's path."""
    above: list[str] = []
    stack: list[tuple[int, str]] = []
    for line in text.splitlines():
        if comment := re.match(r"\s*# -- (.*)", line):
            above = [comment[1]]
        elif above and (more := re.match(r"\s*#\s*(.*)", line)):
            above.append(more[1])
        elif key := re.match(r"( *)([A-Za-z_][\w/.-]*):", line):
            indent = len(key[1])
            stack = [(depth, name) for depth, name in stack if depth < indent] + [(indent, key[2])]
            if above:
                yield ".".join(name for _, name in stack), " ".join(above)
            above = []
        else:
            above = []
