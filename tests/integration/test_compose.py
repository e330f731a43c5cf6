"""Claim: the files that deploy/compose.yaml names exist and fit; its gateway takes events on its Kafka."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.support.gateway import Gateway
from tests.support.http import new_event
from tests.support.kafka import KafkaBroker
from tests.support.settings import VARIABLES

FOLDER = Path(__file__).parents[2] / "deploy"
PLACES = (
    "LISTENERS",
    "ADVERTISED_LISTENERS",
    "CONTROLLER_QUORUM_VOTERS",
    "LOG_DIRS",
    "NODE_ID",
    "PROCESS_ROLES",
)
"""Settings of the broker that say where it is: a test has ports and folders of its own."""


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((FOLDER / "compose.yaml").read_text())["services"]
    return found


def test_mounted_files_are_there(services: dict[str, Any]) -> None:
    mounts = [volume for service in services.values() for volume in service.get("volumes", ())]
    files = [volume.partition(":")[0] for volume in mounts if volume.startswith(".")]
    assert len(files) == 5
    assert [name for name in files if not (FOLDER / name).is_file()] == []
    assert all(volume.endswith(":ro") for volume in mounts if volume.startswith("."))


def test_nothing_is_open_to_the_network(services: dict[str, Any]) -> None:
    ports = [port for service in services.values() for port in service.get("ports", ())]
    assert len(ports) == 4
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_images_are_pinned(services: dict[str, Any]) -> None:
    images = [service["image"] for service in services.values() if "build" not in service]
    assert all(re.fullmatch(r"[a-z]+/[a-z]+:v?\d+\.\d+\.\d+", image) for image in images), images


def test_services_name_one_another(services: dict[str, Any]) -> None:
    gateway = services["gateway"]["environment"]
    assert gateway["GATEWAY_KAFKA_BOOTSTRAP_SERVERS"] == "kafka:9092"
    scraped = yaml.safe_load((FOLDER / "prometheus.yaml").read_text())["scrape_configs"]
    assert scraped[0]["static_configs"][0]["targets"] == ["gateway:9090"]
    assert gateway["GATEWAY_ADMIN_HOSTS"] == "gateway", "or the admin port refuses Prometheus"
    (source,) = yaml.safe_load((FOLDER / "grafana/datasources.yaml").read_text())["datasources"]
    assert source["url"] == "http://prometheus:9090"
    (board,) = yaml.safe_load((FOLDER / "grafana/dashboards.yaml").read_text())["providers"]
    mounted = [volume.split(":")[1] for volume in services["grafana"]["volumes"]]
    assert any(path.startswith(board["options"]["path"]) for path in mounted)


def test_settings_are_the_gateways(services: dict[str, Any]) -> None:
    named = set(services["gateway"]["environment"])
    assert named <= set(VARIABLES)


@pytest.fixture
def broker(services: dict[str, Any], tmp_path: Path) -> Iterator[KafkaBroker]:
    told = services["kafka"]["environment"]
    assert all(name.startswith("KAFKA_") for name in told)
    properties = {
        name.removeprefix("KAFKA_").lower().replace("_", "."): value
        for name, value in told.items()
        if name.removeprefix("KAFKA_") not in PLACES
    }
    with KafkaBroker(tmp_path / "kafka", properties=properties) as running:
        yield running


@pytest.mark.kafka
def test_gateway_takes_events_on_that_kafka(
    services: dict[str, Any], broker: KafkaBroker, tmp_path: Path
) -> None:
    settings = dict(services["gateway"]["environment"])
    settings["GATEWAY_KAFKA_BOOTSTRAP_SERVERS"] = broker.bootstrap_servers
    with Gateway(tmp_path / "gateway", settings) as gateway:
        event = new_event()
        answers = [httpx.post(f"{gateway.url}/v1/events", json=[event], auth=("any", "")) for _ in range(2)]
        assert answers[0].content == answers[1].content
        assert gateway.stats()["log"] == "kafka"
        named = httpx.get(f"{gateway.admin_url}/metrics", headers={"Host": "gateway:9090"})
        assert named.status_code == httpx.codes.OK
        other = httpx.get(f"{gateway.admin_url}/metrics", headers={"Host": "elsewhere:9090"})
        assert other.status_code == httpx.codes.FORBIDDEN
