"""
Kubernetes' own control plane on loopback: etcd, API server, controllers and scheduler.

Nodes and pods are simulated (tests.deploy.cluster.kubelet), and everything that decides about them is real.
What a pod's container would do is not seen here.
"""

import json
import secrets
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import httpx
import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.deploy.cluster.kubelet import Kubelet
from tests.support.processes import HOST, free_port, kill_when_parent_dies
from tests.support.waiting import PATIENCE_S

ROOT = Path(__file__).parents[3]
BINARIES = ROOT / "build" / "go"
START_TIMEOUT_S = 2 * PATIENCE_S
POLL_S = 0.05
NODES, VOLUMES = 3, 8


class ControlPlane:
    """One cluster; leaving the context ends all of its processes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.kubeconfig = folder / "kubeconfig"
        self._token = secrets.token_hex(16)
        self._port = free_port()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._stack = ExitStack()
        self._kubelet: Kubelet | None = None
        self._http = httpx.Client(
            base_url=f"https://{HOST}:{self._port}",
            verify=False,
            headers={"Authorization": f"Bearer {self._token}"},
            timeout=30,
        )

    def __enter__(self) -> Self:
        try:
            self._start_all()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop_kubelets()
        for name in reversed(list(self._processes)):
            self._stop(name)
        self._stack.close()
        self._http.close()

    def _start_all(self) -> None:
        etcd, peers, config = free_port(), free_port(), self.folder / "etcd"
        urls = ("--listen-client-urls", "--advertise-client-urls")
        words = [word for name in urls for word in (name, f"http://{HOST}:{etcd}")]
        self._start(
            "etcd", "etcd", "--data-dir", config, *words, "--listen-peer-urls", f"http://{HOST}:{peers}"
        )
        key = self._make_key()
        (self.folder / "tokens.csv").write_text(f"{self._token},admin,admin,system:masters\n")
        self._start(
            "api",
            BINARIES / "kube-apiserver",
            *("--etcd-servers", f"http://{HOST}:{etcd}", "--bind-address", HOST, "--secure-port", self._port),
            *("--advertise-address", HOST, "--endpoint-reconciler-type", "none"),
            *("--cert-dir", self.folder / "certificates", "--token-auth-file", self.folder / "tokens.csv"),
            "--disable-admission-plugins=TaintNodesByCondition",  # its taint would stay: see the controllers
            *("--authorization-mode", "AlwaysAllow", "--service-cluster-ip-range", "10.96.0.0/24"),
            *("--service-account-issuer", "https://kubernetes.default.svc"),
            *("--service-account-key-file", key, "--service-account-signing-key-file", key),
        )
        self.wait_for(lambda: self._http.get("/readyz").status_code == httpx.codes.OK, "the API server")
        self._write_kubeconfig()
        client = ("--kubeconfig", self.kubeconfig, "--leader-elect=false")
        self._start(
            "controllers",
            BINARIES / "kube-controller-manager",
            *client,
            "--controllers=*,-node-lifecycle-controller",  # nobody tells it that nodes live
            *("--service-account-private-key-file", key),
            *("--secure-port", free_port(), "--bind-address", HOST),
        )
        self._start(
            "scheduler",
            BINARIES / "kube-scheduler",
            *client,
            *("--secure-port", free_port(), "--bind-address", HOST),
        )
        self.start_kubelets()
        for number in range(NODES):
            self.post("/api/v1/nodes", _node(number))
        for number in range(VOLUMES):
            self.post("/api/v1/persistentvolumes", _volume(number))

    def start_kubelets(self) -> None:
        """Let pods run, and go."""
        self._kubelet = Kubelet(self._http)
        self._kubelet.start()

    def stop_kubelets(self) -> None:
        """Leave all pods as they are."""
        kubelet, self._kubelet = self._kubelet, None
        if kubelet is not None:
            kubelet.stop()

    def _stop(self, name: str) -> None:
        process = self._processes.pop(name)
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def get(self, path: str) -> dict[str, Any]:
        """Return a document of the API."""
        found: dict[str, Any] = self._http.get(path).raise_for_status().json()
        return found

    def post(self, path: str, document: Mapping[str, Any]) -> httpx.Response:
        """Create something."""
        return self._http.post(path, json=document)

    def delete(self, path: str, *, propagation: str) -> httpx.Response:
        """Delete something, and what belongs to it as `propagation` says."""
        return self._http.delete(path, params={"propagationPolicy": propagation})

    def wait_for(self, is_so: Callable[[], bool], what: str, timeout_s: float = START_TIMEOUT_S) -> None:
        """Wait until something is so, or fail with the ends of all logs."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            try:
                if is_so():
                    return
            except httpx.TransportError:
                pass
            time.sleep(POLL_S)
        logs = {path.name: path.read_text(errors="replace")[-1500:] for path in self.folder.glob("*.log")}
        raise AssertionError(f"{what} took more than {timeout_s} s: {json.dumps(logs, indent=1)}")

    def _start(self, name: str, *words: object) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(list(map(str, words)), stdout=log, stderr=log)
        self._processes[name] = process
        watcher = kill_when_parent_dies(process.pid)
        self._stack.callback(watcher.wait)
        self._stack.callback(watcher.kill)
        if watcher.stdin is not None:
            self._stack.callback(watcher.stdin.close)

    def _make_key(self) -> Path:
        path = self.folder / "service-accounts.pem"
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        path.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.TraditionalOpenSSL,
                serialization.NoEncryption(),
            )
        )
        return path

    def _write_kubeconfig(self) -> None:
        cluster = {"server": f"https://{HOST}:{self._port}", "insecure-skip-tls-verify": True}
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": "admin", "user": {"token": self._token}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "admin"}}],
            "current-context": "test",
        }
        self.kubeconfig.write_text(yaml.safe_dump(document))


def _node(number: int) -> dict[str, Any]:
    name = f"node-{number}"
    room = {"cpu": "32", "memory": "256Gi", "pods": "110"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {"kubernetes.io/hostname": name, "topology.kubernetes.io/zone": f"zone-{number}"},
        },
        "status": {
            "allocatable": room,
            "capacity": room,
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
        },
    }


def _volume(number: int) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": f"volume-{number}"},
        "spec": {
            "capacity": {"storage": "1Ti"},
            "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Retain",
            "hostPath": {"path": f"/volumes/{number}"},
        },
    }
