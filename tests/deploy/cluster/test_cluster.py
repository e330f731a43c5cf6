"""
Claim: a real API server takes the chart under the restricted profile, and its controllers do with it what
docs/kubernetes.md says: one pod after the other is replaced, volumes stay, and one eviction at a time passes.
"""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.deploy.chart.helm import CHART, HelmError, helm, values
from tests.deploy.cluster.control_plane import ControlPlane

NAMESPACE = "ingest"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
STATEFULSETS = f"/apis/apps/v1/namespaces/{NAMESPACE}/statefulsets"
STATEFULSET = f"{STATEFULSETS}/events-gateway"
CLAIMS = f"/api/v1/namespaces/{NAMESPACE}/persistentvolumeclaims"
BUDGET = f"/apis/policy/v1/namespaces/{NAMESPACE}/poddisruptionbudgets/events-gateway"
NO_OPERATORS = {"serviceMonitor__enabled": False, "prometheusRule__enabled": False}
"""Their custom resources are not installed."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with ControlPlane(tmp_path_factory.mktemp("cluster")) as running:
        labels = {"pod-security.kubernetes.io/enforce": "restricted"}
        running.post("/api/v1/namespaces", {"metadata": {"name": NAMESPACE, "labels": labels}})
        yield running


def release(cluster: ControlPlane, *words: str | Path, **settings: Any) -> str:
    """Run a command of helm that waits until the cluster has done it."""
    where = ("--kubeconfig", cluster.kubeconfig, "--namespace", NAMESPACE)
    options = values("production", **NO_OPERATORS, **settings) if CHART in words else []
    return helm(*words, *where, *options, "--wait", "--timeout", "50s")


def pods(cluster: ControlPlane) -> dict[str, dict[str, Any]]:
    """Return the gateway's pods by name, those that are being deleted left out."""
    found = cluster.get(PODS)["items"]
    return {pod["metadata"]["name"]: pod for pod in found if "deletionTimestamp" not in pod["metadata"]}


def is_ready(pod: dict[str, Any]) -> bool:
    conditions = pod["status"].get("conditions", [])
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)


def checksums(cluster: ControlPlane) -> set[str]:
    return {pod["metadata"]["annotations"]["checksum/config"] for pod in pods(cluster).values()}


@pytest.fixture
def three(cluster: ControlPlane) -> ControlPlane:
    """The release with three pods, all of them ready; whatever a test before did to it is undone."""
    release(cluster, "upgrade", "--install", "events", CHART, replicaCount=3)
    cluster.wait_for(
        lambda: (
            sorted(pods(cluster)) == [f"events-gateway-{n}" for n in range(3)]
            and all(map(is_ready, pods(cluster).values()))
        ),
        "three pods",
    )
    return cluster


class Watch:
    """Notes in which order pods are replaced, and how few of them were ready meanwhile."""

    def __init__(self, cluster: ControlPlane) -> None:
        self.order: list[str] = []
        self.fewest_ready = 3
        self._cluster = cluster
        self._uids = {name: pod["metadata"]["uid"] for name, pod in pods(cluster).items()}
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._is_over.wait(0.02):
            found = pods(self._cluster)
            self.fewest_ready = min(self.fewest_ready, sum(map(is_ready, found.values())))
            for name, pod in found.items():
                if self._uids.get(name) != pod["metadata"]["uid"]:
                    self._uids[name] = pod["metadata"]["uid"]
                    self.order.append(name)


def test_pods_start_side_by_side_on_nodes_of_their_own(three: ControlPlane) -> None:
    found = pods(three)
    assert len({pod["spec"]["nodeName"] for pod in found.values()}) == 3, "spread over the zones"
    assert {pod["spec"]["volumes"][0]["persistentVolumeClaim"]["claimName"] for pod in found.values()} == {
        f"data-events-gateway-{n}" for n in range(3)
    }


def test_upgrade_replaces_one_pod_after_the_other_and_rollback_undoes_it(three: ControlPlane) -> None:
    before = checksums(three)
    with Watch(three) as watch:
        release(three, "upgrade", "events", CHART, replicaCount=3, config={"GATEWAY_WINDOW": "8d"})
    assert watch.order == [f"events-gateway-{n}" for n in (2, 1, 0)]
    assert watch.fewest_ready >= 2
    changed = checksums(three)
    assert len(changed) == 1
    assert changed != before
    release(three, "rollback", "events")
    assert checksums(three) == before


def test_scaling_keeps_the_volumes(three: ControlPlane) -> None:
    release(three, "upgrade", "events", CHART, replicaCount=5)
    assert len(pods(three)) == 5
    release(three, "upgrade", "events", CHART, replicaCount=2)
    three.wait_for(lambda: sorted(pods(three)) == ["events-gateway-0", "events-gateway-1"], "two pods")
    claims = {claim["metadata"]["name"] for claim in three.get(CLAIMS)["items"]}
    assert claims == {f"data-events-gateway-{n}" for n in range(5)}


def test_another_storage_class_needs_another_statefulset_and_stops_no_pod(three: ControlPlane) -> None:
    before = {name: pod["metadata"]["uid"] for name, pod in pods(three).items()}
    changed = ("upgrade", "events", CHART)
    with pytest.raises(HelmError, match="updates to statefulset spec"):
        release(three, *changed, replicaCount=3, persistence__storageClass="fast")
    orphan_the_pods(three)
    try:
        release(three, *changed, replicaCount=3, persistence__storageClass="fast")
        (claim,) = three.get(STATEFULSET)["spec"]["volumeClaimTemplates"]
        assert claim["spec"]["storageClassName"] == "fast"
        assert {name: pod["metadata"]["uid"] for name, pod in pods(three).items()} == before
    finally:
        orphan_the_pods(three)


def orphan_the_pods(cluster: ControlPlane) -> None:
    """Delete the StatefulSet without its pods, as `--cascade=orphan` does; Helm makes the next one."""
    assert cluster.delete(STATEFULSET, propagation="Orphan").status_code == httpx.codes.OK
    cluster.wait_for(lambda: not cluster.get(STATEFULSETS)["items"], "the end of the StatefulSet")


def test_one_eviction_passes_at_a_time(three: ControlPlane) -> None:
    three.wait_for(lambda: three.get(BUDGET)["status"].get("disruptionsAllowed") == 1, "the budget")
    three.stop_kubelets()  # so that the evicted pod cannot come back meanwhile
    try:
        assert evict(three, 0).status_code == httpx.codes.CREATED
        assert evict(three, 1).status_code == httpx.codes.TOO_MANY_REQUESTS
    finally:
        three.start_kubelets()
    three.wait_for(lambda: all(map(is_ready, pods(three).values())) and len(pods(three)) == 3, "its return")
    three.wait_for(lambda: evict(three, 1).status_code == httpx.codes.CREATED, "the second eviction")


def evict(cluster: ControlPlane, number: int) -> httpx.Response:
    name = f"events-gateway-{number}"
    document = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
    return cluster.post(f"{PODS}/{name}/eviction", document)


def test_a_pod_without_the_restricted_profile_is_refused(cluster: ControlPlane) -> None:
    pod = {"metadata": {"name": "root"}, "spec": {"containers": [{"name": "c", "image": "gateway"}]}}
    refused = cluster.post(PODS, pod)
    assert refused.status_code == httpx.codes.FORBIDDEN
    assert "restricted" in refused.json()["message"]
