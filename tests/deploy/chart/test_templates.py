"""
Claim: whatever sensible values say, the chart's manifests are valid, the pod runs under the restricted
profile, and its settings are the gateway's; what contradicts itself fails with one sentence.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from app.settings.model import Settings
from app.settings.section import load, secret_file_variables
from tests.deploy.chart.helm import (
    CASES,
    CHART,
    PROFILES,
    HelmError,
    documents_of,
    environment,
    helm,
    only,
    render,
    values,
)
from tests.deploy.chart.schemas import validate
from tests.support.chart import OPEN
from tests.support.documents import blocks_of
from tests.support.settings import VARIABLES

VERSIONS = ("1.29", "1.30", "1.37")

GROUP = {"GATEWAY_WORKER_ID", "GATEWAY_PEER_LISTEN", "GATEWAY_ZONE"}
PEER_FILES = {f"GATEWAY_PEER_TLS_{name}_FILE": name for name in ("CERT", "KEY", "CA")}
KAFKA = {"log": "kafka", "mode": "development", "kafka__bootstrapServers": "kafka:9092"}

MATRIX: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "development": (("development",), {}),
    "production": (("production",), {}),
    "strimzi": (("production", "strimzi"), {}),
    "managed": (("production", "managed-kafka"), {}),
    "group": (("production",), {"replicaCount": 3}),
    "group with tls": (("production",), {"replicaCount": 3, "peers__tls__existingSecret": "events-peers"}),
    "autoscaled": (("production",), {"autoscaling__enabled": True}),
    "ingress": (
        ("production",),
        {
            "ingress__enabled": True,
            "ingress__className": "nginx",
            "ingress__tls": [{"hosts": ["events.example.com"], "secretName": "events-tls"}],
        },
    ),
    "http route": (
        ("production",),
        {
            "httpRoute__enabled": True,
            "httpRoute__parentRefs": [{"name": "public", "sectionName": "https"}],
            "httpRoute__hostnames": ["events.example.com"],
        },
    ),
    "openshift": (("production", "openshift"), {}),
    **{path.stem: ((path.stem,), {}) for path in sorted(CASES.glob("*.yaml"))},
    "no volume": (("development",), {"persistence__enabled": False}),
    "plain kafka": ((), KAFKA),
    "tls client": (
        ("production",),
        {
            "kafka__securityProtocol": "SSL",
            "kafka__sasl__existingSecret": "",
            "kafka__tls__caSecret": "ca",
            "kafka__tls__clientSecret": "client",
            "kafka__tls__keyPasswordKey": "user.password",
        },
    ),
    "oauth": (
        ("production",),
        {
            "kafka__sasl__mechanism": "OAUTHBEARER",
            "kafka__sasl__username": "gateway",
            "kafka__sasl__oauth__tokenUrl": "https://idp.example.com/token",
            "kafka__sasl__oauth__scope": "kafka",
            "kafka__sasl__oauth__extensions": "logicalCluster=lkc-1,identityPoolId=pool-1",
            "kafka__sasl__oauth__caSecret": "idp-ca",
            "networkPolicy__egress__extra": [{"ports": [{"port": 443}]}],
        },
    ),
    "token file": (
        (),
        KAFKA
        | {
            "kafka__securityProtocol": "SASL_SSL",
            "kafka__sasl__mechanism": "OAUTHBEARER",
            "kafka__sasl__oauth__tokenUrl": "file:///var/run/secrets/kafka/token",
        },
    ),
    "aws": (
        (),
        KAFKA
        | {
            "kafka__securityProtocol": "SASL_SSL",
            "kafka__sasl__mechanism": "AWS_MSK_IAM",
            "networkPolicy__egress__enabled": False,
        },
    ),
    "everything": (
        ("production",),
        {
            "imagePullSecrets": [{"name": "registry"}],
            "podAnnotations": {"a": "b"},
            "podLabels": {"team": "events"},
            "nodeSelector": {"disk": "ssd"},
            "tolerations": [{"key": "dedicated", "operator": "Exists"}],
            "priorityClassName": "high",
            "extraEnv": [{"name": "TZ", "value": "UTC"}],
            "service__annotations": {"a": "b"},
            "networkPolicy__ingestFrom": [{"namespaceSelector": {}}],
            "image__digest": "sha256:" + "0" * 64,
            "persistence__storageClass": "fast",
            "volumes": [{"name": "more", "emptyDir": {}}],
            "volumeMounts": [{"name": "more", "mountPath": "/more"}],
            "config": {"GATEWAY_WINDOW": "14d", "GATEWAY_PARTITIONS": 16},
        },
    ),
}


@pytest.fixture(params=MATRIX)
def manifests(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    profiles, settings = MATRIX[request.param]
    return render(*profiles, **settings)


@pytest.mark.parametrize("version", VERSIONS)
def test_manifests_are_valid(version: str, manifests: list[dict[str, Any]]) -> None:
    for manifest in manifests:
        validate(manifest, version)


def test_every_manifest_carries_the_labels(manifests: list[dict[str, Any]]) -> None:
    for manifest in manifests:
        labels = manifest["metadata"]["labels"]
        assert labels["app.kubernetes.io/instance"] == "events", manifest["kind"]
        assert labels["app.kubernetes.io/managed-by"] == "Helm"


def test_pods_run_under_the_restricted_profile(manifests: list[dict[str, Any]]) -> None:
    for manifest in manifests:
        if manifest["kind"] not in ("StatefulSet", "Pod"):
            continue
        spec = manifest["spec"]["template"]["spec"] if manifest["kind"] == "StatefulSet" else manifest["spec"]
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert spec["automountServiceAccountToken"] is False
        assert spec["enableServiceLinks"] is False
        for container in spec["containers"]:
            context = container["securityContext"]
            assert context["allowPrivilegeEscalation"] is False
            assert context["capabilities"] == {"drop": ["ALL"]}
            assert context["readOnlyRootFilesystem"] is True
            assert "cpu" not in container["resources"]["limits"]
            assert container["resources"]["limits"]["memory"] == container["resources"]["requests"]["memory"]


def test_settings_are_the_gateways(manifests: list[dict[str, Any]]) -> None:
    known = {*VARIABLES, *secret_file_variables(Settings)}
    named = {name for name in environment(manifests) if name.startswith("GATEWAY_")}
    is_group = (
        only(manifests, "StatefulSet")["spec"].get("replicas", 2) > 1
    )  # others scale it, if it says nothing
    assert named - known <= GROUP
    assert bool(named & GROUP) == is_group


def test_settings_contradict_nothing(
    manifests: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, value in environment(manifests).items():
        if name in secret_file_variables(Settings):
            (tmp_path / name).write_text(f"the secret of {name}", encoding="utf-8")
            monkeypatch.setenv(name, str(tmp_path / name))
        elif name.startswith("GATEWAY_") and name not in GROUP:
            monkeypatch.setenv(name, value if isinstance(value, str) else f"the secret of {name}")
    settings = load(Settings)
    assert (settings.gateway.host, settings.gateway.port) == ("0.0.0.0", 8080)
    assert settings.admin.probe_listen is not None
    assert (settings.admin.host, settings.admin.probe_listen.host) == ("0.0.0.0", "0.0.0.0")


def test_selectors_select_the_pod_and_nothing_else(manifests: list[dict[str, Any]]) -> None:
    template = only(manifests, "StatefulSet")["spec"]["template"]["metadata"]["labels"]
    for manifest in manifests:
        spec = manifest.get("spec", {})
        selector = spec.get("selector") or spec.get("podSelector")
        if selector is None or manifest["kind"] == "ServiceMonitor":
            continue
        wanted = selector.get("matchLabels", selector)
        assert wanted.items() <= template.items(), manifest["kind"]
        test = only(manifests, "Pod")["metadata"]["labels"]
        assert not wanted.items() <= test.items(), "the test's pod must get no events"


def test_memory_is_shared_out_by_the_limit() -> None:
    told = environment(render("production"))
    assert (told["GATEWAY_INDEX_MEMORY"], told["GATEWAY_BODY_MEMORY"]) == ("1024MiB", "512MiB")
    small = environment(render("development", config={"GATEWAY_INDEX_MEMORY": "64MiB"}))
    assert (small["GATEWAY_INDEX_MEMORY"], small["GATEWAY_BODY_MEMORY"]) == ("64MiB", "64MiB")


def test_settings_restart_the_pods() -> None:
    sums = [
        only(render("development", config={"GATEWAY_WINDOW": window}), "StatefulSet")["spec"]["template"][
            "metadata"
        ]["annotations"]["checksum/config"]
        for window in ("7d", "8d")
    ]
    assert sums[0] != sums[1]


def test_worker_is_its_pod() -> None:
    told = environment(render("production", replicaCount=3))
    assert told["GATEWAY_WORKER_ID"] == {"fieldRef": {"fieldPath": "metadata.name"}}
    assert told["POD_IP"] == {"fieldRef": {"fieldPath": "status.podIP"}}
    assert told["GATEWAY_PEER_LISTEN"] == "$(POD_IP):7070"
    names = list(told)
    assert names.index("POD_IP") < names.index("GATEWAY_PEER_LISTEN"), "it is not known yet"


def test_clock_is_accepted_by_an_option() -> None:
    def arguments(**settings: str) -> list[str]:
        (container,) = only(render("development", **settings), "StatefulSet")["spec"]["template"]["spec"][
            "containers"
        ]
        found: list[str] = container["args"]
        return found

    assert arguments() == ["serve"]
    assert arguments(acceptClock="2026-01-31") == ["serve", "--accept-clock", "2026-01-31"]


def test_peers_speak_tls_by_the_names_of_the_documented_certificate() -> None:
    found = render("production", replicaCount=3, peers__tls__existingSecret="events-peers")
    told = environment(found)
    (certificate,) = (
        document
        for block in blocks_of(CHART.parents[1] / "docs" / "kubernetes.md", "yaml")
        if (document := yaml.safe_load(block))["kind"] == "Certificate"
    )
    (name,) = certificate["spec"]["dnsNames"]
    assert told["GATEWAY_PEER_ADDRESS"] == f"$(GATEWAY_WORKER_ID){name.removeprefix('*')}:7070"
    assert name.split(".")[1] == only(found, "StatefulSet")["spec"]["serviceName"]
    spec = only(found, "StatefulSet")["spec"]["template"]["spec"]
    names = [variable["name"] for variable in spec["containers"][0]["env"]]
    assert names.index("GATEWAY_WORKER_ID") < names.index("GATEWAY_PEER_ADDRESS"), "it is not known yet"
    (volume,) = (volume for volume in spec["volumes"] if volume["name"] == "peers")
    (mount,) = (mount for mount in spec["containers"][0]["volumeMounts"] if mount["name"] == "peers")
    assert volume["secret"]["secretName"] == certificate["spec"]["secretName"]
    files = {f"{mount['mountPath']}/{item['path']}" for item in volume["secret"]["items"]}
    assert {told[name] for name in PEER_FILES} == files
    assert {item["key"] for item in volume["secret"]["items"]} == {"tls.crt", "tls.key", "ca.crt"}


def test_peers_speak_no_tls_unless_told_to() -> None:
    assert not PEER_FILES.keys() & environment(render("production", replicaCount=3)).keys()


def test_monitoring_reaches_the_probes_and_nobody_the_admin_port_unless_named() -> None:
    found = render("production", ingress__enabled=True, replicaCount=3, serviceMonitor__enabled=True)
    policy = only(found, "NetworkPolicy")["spec"]
    by_port = {rule["ports"][0]["port"]: rule.get("from") for rule in policy["ingress"]}
    assert by_port["http"] is None
    assert by_port["probes"] is None, "metrics are for whichever namespace Prometheus is in"
    assert "admin" not in by_port
    (monitored,) = only(found, "ServiceMonitor")["spec"]["endpoints"]
    assert monitored["port"] == "probes"
    (container,) = only(found, "StatefulSet")["spec"]["template"]["spec"]["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    told = environment(found)
    assert (str(ports["probes"]), str(ports["admin"])) == (
        told["GATEWAY_PROBE_LISTEN"].removeprefix("0.0.0.0:"),
        told["GATEWAY_ADMIN_PORT"],
    )
    probes = [container[f"{name}Probe"]["httpGet"]["port"] for name in ("startup", "liveness", "readiness")]
    assert probes == ["probes"] * 3
    assert by_port["peers"][0]["podSelector"]["matchLabels"]["app.kubernetes.io/instance"] == "events"
    assert only(found, "Service", "events-gateway")["spec"]["ports"][0]["targetPort"] == "http"
    backends = only(found, "Ingress")["spec"]["rules"][0]["http"]["paths"]
    assert backends[0]["backend"]["service"] == {"name": "events-gateway", "port": {"name": "http"}}


def test_kafkas_ports_are_let_out() -> None:
    egress = only(render("production", "strimzi"), "NetworkPolicy")["spec"]["egress"]
    assert {port["port"] for rule in egress for port in rule["ports"]} == {53, 9093}


def test_traces_are_let_out_to_their_collector() -> None:
    rule = {"ports": [{"port": 4318, "protocol": "TCP"}], "to": [{"namespaceSelector": {}}]}
    found = render("production", config={"GATEWAY_TRACES": True}, networkPolicy__egress__extra=[rule])
    assert rule in only(found, "NetworkPolicy")["spec"]["egress"]


def test_volumes_are_kept() -> None:
    spec = only(render("production"), "StatefulSet")["spec"]
    assert spec["persistentVolumeClaimRetentionPolicy"] == {"whenDeleted": "Retain", "whenScaled": "Retain"}
    assert spec["podManagementPolicy"] == "Parallel"


@pytest.mark.parametrize(
    ("memory", "index"),
    [("4Gi", "1024MiB"), ("1.5Gi", "384MiB"), ("4G", "953MiB"), ("512Mi", "128MiB"), (2147483648, "512MiB")],
)
def test_any_quantity_of_memory_is_shared_out(memory: object, index: str) -> None:
    told = environment(render("production", resources={"limits": {"memory": memory}}))
    assert told["GATEWAY_INDEX_MEMORY"] == index


def test_spread_counts_by_the_selector_that_is_named() -> None:
    spec = only(render("platform-values"), "StatefulSet")["spec"]["template"]["spec"]
    (constraint,) = spec["topologySpreadConstraints"]
    assert constraint["labelSelector"] == {"matchLabels": {"team": "events"}}
    assert helm("template", "events", CHART, *values("platform-values")).count("labelSelector") == 1


def test_others_scale_a_group() -> None:
    found = render("keda-values")
    assert "replicas" not in only(found, "StatefulSet")["spec"]
    assert environment(found).keys() >= GROUP
    assert "HorizontalPodAutoscaler" not in {manifest["kind"] for manifest in found}
    assert only(found, "ConfigMap")["data"] == {"target": "events-gateway"}


def test_openshift_chooses_users_and_is_asked_for_names_on_its_port() -> None:
    def seen(*words: str) -> tuple[set[str], set[int]]:
        text = helm("template", "events", CHART, *values("production"), *words)
        found = documents_of(text)
        pod = only(found, "StatefulSet")["spec"]["template"]["spec"]
        egress = only(found, "NetworkPolicy")["spec"]["egress"]
        return set(pod["securityContext"]), {port["port"] for rule in egress for port in rule["ports"]}

    chosen, ports = {"runAsNonRoot", "seccompProfile"}, {53, 5353, 9093}
    assert seen(*values("openshift")) == (chosen, ports)
    assert seen("--api-versions", "security.openshift.io/v1") == (chosen, ports)
    fields, ports = seen()
    assert fields > chosen
    assert ports == {53, 9093}


def test_a_mirror_has_every_image_and_labels_are_everywhere() -> None:
    found = render("platform-values")
    for manifest in found:
        assert manifest["metadata"]["labels"]["cost-centre"] == "4711", manifest["kind"]
        assert manifest["metadata"].get("annotations", {}).get("owner") or manifest["kind"] == "Pod"
    pods = [only(found, "StatefulSet")["spec"]["template"]["spec"], only(found, "Pod")["spec"]]
    for pod in pods:
        assert pod["imagePullSecrets"] == [{"name": "mirror"}]
        assert {each["image"].partition("/")[0] for each in pod["containers"]} == {"mirror.example.com:5000"}
    (claim,) = only(found, "StatefulSet")["spec"]["volumeClaimTemplates"]
    assert claim["metadata"]["labels"] == {"backup": "false", "cost-centre": "4711"}
    other = render("production", global__imageRegistry="a.example.com", image__registry="b.example.com")
    (container,) = only(other, "StatefulSet")["spec"]["template"]["spec"]["containers"]
    assert container["image"].startswith("a.example.com/gateway:")


def test_one_label_of_two_values_is_there_once_and_selectors_stay() -> None:
    theirs = {"team": "all", "app.kubernetes.io/component": "theirs", "app.kubernetes.io/instance": "theirs"}
    own = {"team": "own", "app.kubernetes.io/name": "own"}
    labels = {name: own for name in ("podLabels", "service__labels", "serviceMonitor__labels")}
    labels |= {"prometheusRule__labels": own, "grafanaDashboard__labels": own, "persistence__labels": own}
    found = render("monitoring-values", commonLabels=theirs, serviceMonitor__kind="ServiceMonitor", **labels)
    template = only(found, "StatefulSet")["spec"]["template"]["metadata"]["labels"]
    assert only(found, "StatefulSet")["spec"]["selector"]["matchLabels"].items() <= template.items()
    assert template["team"] == "own"
    for kind in ("ServiceMonitor", "PrometheusRule", "ConfigMap"):
        assert only(found, kind)["metadata"]["labels"]["team"] == "own"
    monitored = only(found, "ServiceMonitor")["spec"]["selector"]["matchLabels"]
    services = {each["metadata"]["name"]: each for each in found if each["kind"] == "Service"}
    chosen = [
        name for name, each in services.items() if monitored.items() <= each["metadata"]["labels"].items()
    ]
    assert chosen == ["events-gateway-admin"]
    assert services["events-gateway"]["metadata"]["labels"]["team"] == "own"


def test_pods_wait_before_they_stop_on_older_clusters_too() -> None:
    def waits(version: str) -> Any:
        text = helm("template", "events", CHART, *values("production"), "--kube-version", version)
        found = documents_of(text)
        (container,) = only(found, "StatefulSet")["spec"]["template"]["spec"]["containers"]
        return container["lifecycle"]["preStop"]

    assert waits("1.29.0") == {"exec": {"command": ["sleep", "10"]}}
    assert waits("1.30.0") == {"sleep": {"seconds": 10}}


CONTRADICTIONS = [
    (("production",), {"resources": {"limits": {"memory": "much"}}}, "is no quantity"),
    (("vault-values",), {"secrets__existingSecret": "s"}, "secrets.existingSecret and secrets.files exclude"),
    (("vault-values",), {"secrets__files__adminToken": ""}, "mode: production needs secrets.existingSecret"),
    (("production",), {"kafka__sasl__passwordFile": "/f"}, "kafka.sasl.passwordFile exclude each other"),
    (
        ("keda-values",),
        {"autoscaling__enabled": True},
        "autoscaling.enabled and autoscaling.external exclude",
    ),
    (("keda-values",), {"autoscaling__maxReplicas": 9}, "9 pods for 8 partitions"),
    (("production",), {"command": ["sh"]}, "args must name what to run"),
    (("production",), {"service__loadBalancerClass": "x"}, "need service.type: LoadBalancer"),
    (("production",), {"service__nodePort": 30000}, "need service.type: LoadBalancer or NodePort"),
    (("development",), {"replicaCount": 2}, "replicaCount > 1 or autoscaling needs log: kafka"),
    (("development",), {"autoscaling__enabled": True}, "replicaCount > 1 or autoscaling needs log: kafka"),
    (("production",), {"log": "sqlite"}, "log: sqlite stores nothing on Kafka"),
    ((), {"mode": "development"}, "log: kafka needs kafka.bootstrapServers"),
    ((), {"kafka__bootstrapServers": "k:9092"}, "mode: production needs secrets.existingSecret"),
    (
        (),
        {"log": "sqlite", "secrets__existingSecret": "s", "persistence__enabled": False},
        "needs persistence.enabled: true",
    ),
    ((), KAFKA | {"kafka__securityProtocol": "SASL_SSL"}, "needs kafka.sasl.existingSecret"),
    (
        (),
        KAFKA | {"kafka__securityProtocol": "SASL_SSL", "kafka__sasl__existingSecret": "s"},
        "needs kafka.sasl.username or kafka.sasl.usernameKey",
    ),
    ((), KAFKA | {"kafka__sasl__existingSecret": "s"}, "kafka.sasl.existingSecret is not used with"),
    (
        (),
        KAFKA | {"kafka__securityProtocol": "SASL_SSL", "kafka__sasl__mechanism": "OAUTHBEARER"},
        "kafka.sasl.mechanism: OAUTHBEARER and kafka.sasl.oauth.tokenUrl need each other",
    ),
    (
        (),
        KAFKA | {"kafka__securityProtocol": "SASL_SSL", "kafka__sasl__mechanism": "AWS_MSK_IAM"},
        "kafka.sasl.mechanism: AWS_MSK_IAM needs networkPolicy.egress.extra",
    ),
    ((), KAFKA | {"kafka__tls__caSecret": "s"}, "kafka.tls is not used with"),
    (("production",), {"probes__port": 9090}, "admin.port, probes.port and peers.port must differ"),
    (
        ("production",),
        {"ingress__enabled": True, "httpRoute__enabled": True},
        "ingress.enabled and httpRoute.enabled exclude each other",
    ),
    (
        ("production",),
        {"ingress__enabled": True, "ingress__hosts": []},
        "ingress.enabled needs ingress.hosts",
    ),
    (
        ("production",),
        {"config": {"GATEWAY_TRACES": True}},
        "config.GATEWAY_TRACES needs networkPolicy.egress.extra",
    ),
    (("production",), {"httpRoute__enabled": True}, "httpRoute.enabled needs httpRoute.parentRefs"),
    (
        ("production",),
        {"terminationGracePeriodSeconds": 25},
        "must exceed preStopSeconds (10) by more than 15",
    ),
    (
        ("production",),
        {"replicaCount": 3, "terminationGracePeriodSeconds": 45},
        "must exceed preStopSeconds (10) by more than 35",
    ),
    (
        ("production",),
        {"config": {"GATEWAY_DRAIN_TIMEOUT": "0.75 M"}},
        "must exceed preStopSeconds (10) by more than 50",
    ),
    (
        ("production",),
        {"replicaCount": 3, "config": {"GATEWAY_DRAIN_TIMEOUT": 25}},
        "must exceed preStopSeconds (10) by more than 50",
    ),
    (
        ("production",),
        {"autoscaling__enabled": True, "autoscaling__minReplicas": 7},
        "autoscaling.minReplicas must not exceed",
    ),
    (("production",), {"config": {"GATEWAY_PORT": 80}}, "config.GATEWAY_PORT is set by the chart"),
    (("production",), {"replicaCount": 9}, "9 pods for 8 partitions"),
    (("production",), {"replicaCount": 17, "kafka__partitions": 16}, "17 pods for 16 partitions"),
]


@pytest.mark.parametrize(
    ("profiles", "settings", "sentence"), CONTRADICTIONS, ids=lambda value: str(value)[:60]
)
def test_contradiction_fails_with_one_sentence(
    profiles: tuple[str, ...], settings: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(HelmError) as caught:
        render(*profiles, **settings)
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "path"),
    [
        ({"replicaCont": 2}, "additional properties 'replicaCont' not allowed"),
        ({"kafka__bootstrapServer": "k:9092"}, "at '/kafka'"),
        ({"config": {"GATEWAY_WINDO": "7d"}}, "at '/config'"),
        ({"mode": "prod"}, "at '/mode'"),
        ({"replicaCount": 0}, "at '/replicaCount'"),
        ({"probes__port": 0}, "at '/probes/port'"),
        ({"persistence__size": "much"}, "at '/persistence/size'"),
        ({"kafka__bootstrapServers": "k"}, "at '/kafka/bootstrapServers'"),
    ],
)
def test_unknown_or_odd_values_are_refused_by_their_path(settings: dict[str, Any], path: str) -> None:
    with pytest.raises(HelmError) as caught:
        render("production", **settings)
    assert path in str(caught.value)


@pytest.mark.parametrize("profile", ["development", "production"])
def test_lint_finds_nothing(profile: str) -> None:
    assert "0 chart(s) failed" in helm("lint", "--strict", CHART, *values(profile))


def test_every_profile_is_tried() -> None:
    tried = {profile for profiles, _ in MATRIX.values() for profile in profiles}
    assert {path.stem for folder in (PROFILES, CASES) for path in folder.glob("*.yaml")} == tried


def leaves(value: object, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the paths of a case's values; what Kubernetes or the user names is a part of its value."""
    if isinstance(value, dict) and ".".join(path) not in OPEN - {"global"}:
        for name, item in value.items():
            yield from leaves(item, (*path, name))
    else:
        yield path


def without(document: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    """Return a copy that lacks a value."""
    name, *rest = path
    if not rest:
        return {key: item for key, item in document.items() if key != name}
    return document | {name: without(document[name], tuple(rest))}


@pytest.mark.parametrize("case", sorted(path.stem for path in CASES.glob("*.yaml")))
def test_each_value_of_a_case_changes_what_is_rendered(case: str, tmp_path: Path) -> None:
    document = yaml.safe_load((CASES / f"{case}.yaml").read_text(encoding="utf-8"))

    def rendered(path: tuple[str, ...] | None = None) -> str:
        file = tmp_path / "values.yaml"
        file.write_text(yaml.safe_dump(without(document, path) if path else document), encoding="utf-8")
        try:
            return helm("template", "events", CHART, "--namespace", "ingest", "--values", file)
        except HelmError as err:
            return str(err)

    whole = rendered()
    assert "kind: StatefulSet" in whole
    unused = [".".join(path) for path in leaves(document) if path != ("mode",) and rendered(path) == whole]
    assert unused == []


def test_cases_use_what_strangers_asked_for() -> None:
    used = {
        ".".join(path)
        for file in CASES.glob("*.yaml")
        for path in leaves(yaml.safe_load(file.read_text(encoding="utf-8")))
    }
    asked = """command args envFrom initContainers extraContainers extraObjects commonLabels commonAnnotations
        statefulSetAnnotations global.imageRegistry global.imagePullSecrets service.labels
        service.loadBalancerClass service.loadBalancerSourceRanges service.externalTrafficPolicy
        persistence.labels persistence.retention.whenDeleted zone serviceMonitor.namespace serviceMonitor.kind
        serviceMonitor.relabelings serviceMonitor.metricRelabelings autoscaling.behavior autoscaling.external
        platform topologySpreadConstraints resources networkPolicy.probesFrom secrets.files.identitySecret
        secrets.files.adminToken secrets.files.adminReadToken secrets.files.writeKeys
        kafka.sasl.passwordFile prometheusRule.severities.page prometheusRule.overrides
        prometheusRule.runbookBaseUrl"""
    assert set(asked.split()) - used == set()


def test_notes_show_a_first_curl_and_what_is_unsafe() -> None:
    words = values("development", persistence__enabled=False)
    told = helm("install", "events", CHART, "--dry-run=client", *words).partition("NOTES:")[2]
    assert "curl -i http://127.0.0.1:8080/v1/events" in told
    assert "open http://127.0.0.1:9090/console/" in told
    assert "WARNING: persistence is off: all events are lost with the pod." in told
    assert "WARNING: mode is development" in told
    assert "WARNING" not in helm("install", "events", CHART, "--dry-run=client", *values("production"))
