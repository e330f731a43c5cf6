"""A real REST catalog of Iceberg on loopback, its project's own for tests, which keeps tables in Postgres."""

import os
import subprocess
import time
from pathlib import Path
from typing import Self

import httpx
import pyspark

from tests.support.postgres import USER, Postgres
from tests.support.processes import HOST, free_port, kill_when_parent_dies

JARS = Path(__file__).resolve().parents[2] / "build" / "rest-catalog" / "jars"
SPARK_JARS = Path(pyspark.__file__).parent / "jars"
START_TIMEOUT_S = 60.0
POLL_INTERVAL_S = 0.05


class RestCatalog:
    """One server; a context. The process also ends when the parent dies."""

    def __init__(self, postgres: Postgres, folder: Path) -> None:
        """Take a database that runs, and where tables and log shall lie."""
        self._folder = folder
        self._port = free_port()
        self.url = f"http://{HOST}:{self._port}"
        self._environment = os.environ | {
            "CATALOG_REST_PORT": str(self._port),
            "CATALOG_URI": postgres.jdbc_url,
            "CATALOG_JDBC_USER": USER,
            "CATALOG_WAREHOUSE": str(folder / "warehouse"),
        }

    def __enter__(self) -> Self:
        classes = ":".join([f"{JARS}/*", *map(str, SPARK_JARS.glob("hadoop-client-*.jar"))])
        words = [
            "java",
            "-XX:TieredStopAtLevel=1",
            "-cp",
            classes,
            "org.apache.iceberg.rest.RESTCatalogServer",
        ]
        with (self._folder / "rest-catalog.log").open("wb") as log:
            self._process = subprocess.Popen(
                words, env=self._environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        self._watcher = kill_when_parent_dies(self._process.pid)
        try:
            self._wait_until_it_answers()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in (self._process, self._watcher):
            process.kill()
            process.communicate()

    def tables(self, namespace: str) -> list[str]:
        """Return the names of a namespace's tables."""
        answer = httpx.get(f"{self.url}/v1/namespaces/{namespace}/tables").raise_for_status()
        return [each["name"] for each in answer.json()["identifiers"]]

    def _wait_until_it_answers(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                httpx.get(f"{self.url}/v1/config").raise_for_status()
                return
            except httpx.HTTPError as err:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError((self._folder / "rest-catalog.log").read_text()) from err
            time.sleep(POLL_INTERVAL_S)
