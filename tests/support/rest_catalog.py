"""A real REST catalog of Iceberg on loopback, its project's own for tests, which keeps tables in Postgres."""

import os
from pathlib import Path
from typing import Self

import httpx
import pyspark

from tests.support.postgres import USER, Postgres
from tests.support.processes import HOST, free_port, http_server

JARS = Path(__file__).resolve().parents[2] / "build" / "rest-catalog" / "jars"
SPARK_JARS = Path(pyspark.__file__).parent / "jars"


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
        self._server = http_server(
            words,
            self._folder / "rest-catalog.log",
            greet=lambda: httpx.get(f"{self.url}/v1/config"),
            env=self._environment,
        )
        self._server.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.__exit__(None, None, None)

    def tables(self, namespace: str) -> list[str]:
        """Return the names of a namespace's tables."""
        answer = httpx.get(f"{self.url}/v1/namespaces/{namespace}/tables").raise_for_status()
        return [each["name"] for each in answer.json()["identifiers"]]
