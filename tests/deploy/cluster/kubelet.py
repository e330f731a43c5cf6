"""
All nodes' kubelets, as far as controllers can see: a pod that has a node runs and is ready at once, and one
that is to go is gone at once. Its containers do nothing.
"""

import threading
from typing import Any

import httpx

POLL_S = 0.05
PODS = "/api/v1/pods"
PATCH = {"Content-Type": "application/strategic-merge-patch+json"}
CONDITIONS = ("PodReadyToStartContainers", "Initialized", "ContainersReady", "Ready")


class Kubelet:
    """Looks after the pods of a cluster, in a thread of its own."""

    def __init__(self, http: httpx.Client) -> None:
        self._http = http
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._error: BaseException | None = None

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """Leave all pods as they are, and say what went wrong, if anything did."""
        self._is_over.set()
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            while not self._is_over.wait(POLL_S):
                for pod in self._http.get(PODS).raise_for_status().json()["items"]:
                    self._look_after(pod)
        except BaseException as err:
            self._error = err

    def _look_after(self, pod: dict[str, Any]) -> None:
        told = pod["metadata"]
        path = f"/api/v1/namespaces/{told['namespace']}/pods/{told['name']}"
        if "nodeName" not in pod["spec"]:
            return  # the scheduler's turn
        if "deletionTimestamp" in told:
            options = {"gracePeriodSeconds": 0, "preconditions": {"uid": told["uid"]}}
            self._check(self._http.request("DELETE", path, json=options))
        elif pod["status"]["phase"] == "Pending":
            patch = {"metadata": {"uid": told["uid"]}, "status": _running(pod)}
            self._check(self._http.patch(f"{path}/status", json=patch, headers=PATCH))

    def _check(self, answer: httpx.Response) -> None:
        """A pod that somebody else has changed or deleted meanwhile is looked at again."""
        if answer.status_code not in (httpx.codes.NOT_FOUND, httpx.codes.CONFLICT):
            answer.raise_for_status()


def _running(pod: dict[str, Any]) -> dict[str, Any]:
    since = pod["metadata"]["creationTimestamp"]
    return {
        "phase": "Running",
        "conditions": [{"type": name, "status": "True", "lastTransitionTime": since} for name in CONDITIONS],
        "containerStatuses": [
            {
                "name": container["name"],
                "image": container["image"],
                "imageID": "",
                "ready": True,
                "started": True,
                "restartCount": 0,
                "state": {"running": {"startedAt": since}},
            }
            for container in pod["spec"]["containers"]
        ],
    }
