"""The table of docs/metrics.md: every metric, asked of the collectors themselves."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import yaml
from prometheus_client.core import Metric

from app.admin.certificate_metrics import CertificateCollector
from app.admin.clock_metrics import ClockCollector
from app.admin.edge_metrics import EdgeCollector
from app.admin.group import GroupCollector
from app.admin.ingest_loop import LoopCollector
from app.admin.inputs import InputCollector
from app.admin.lane_metrics import LaneCollector
from app.admin.limit_metrics import LimitCollector
from app.admin.native_metrics import NativeCollector
from app.admin.observed import ObservedCollector, SampleCollector
from app.admin.reshard import ReshardCollector
from app.admin.setting_metrics import SettingCollector
from app.admin.snapshot_metrics import SnapshotCollector
from app.admin.sources import SourceCollector
from app.build import build_ingress_limits
from app.http.request_metrics import RequestMetrics
from app.http.source_use import SourceUse
from app.peers.limits import PeerMetrics
from app.process.plan_progress import PlanProgress
from app.telemetry.native_use import NativeUse
from dedupe.model.clock import SystemClock
from tests.sim.world import World
from tests.support.settings import make_settings

SUFFIXES = {"counter": "_total"}


def families() -> Iterator[Metric]:
    """Yield every metric that a worker of a group with a key file has; what they count is nothing."""
    with tempfile.TemporaryDirectory() as folder:
        keys = Path(folder) / "keys.yaml"
        keys.write_text(yaml.safe_dump([{"key": "k", "source": "s"}]))
        settings = make_settings(mode="development", log="sqlite", write_keys_file=keys, data_dir=folder)
        secondary_keys = build_ingress_limits(settings, SystemClock(), index_files=0)
        manager = SimpleNamespace(
            generation=0,
            moves=0,
            claims=0,
            worker="",
            assignment=SimpleNamespace(addresses={}),
            hand_overs=SimpleNamespace(slow=SimpleNamespace(commit_ms={"leader": 0}, is_slow=False)),
        )
        side_topic = SimpleNamespace(appended=0, dropped=0)
        group: Any = SimpleNamespace(
            manager=manager,
            can_follow=True,
            peers=SimpleNamespace(metrics=PeerMetrics()),
            membership=SimpleNamespace(silence_s=0.0, joining_s=0.0),
        )
        for collector in (
            RequestMetrics(),
            LaneCollector(World().build()),
            EdgeCollector(secondary_keys),
            LimitCollector(settings),
            CertificateCollector(settings),
            ClockCollector(SystemClock()),
            LoopCollector(cast("Any", SimpleNamespace(lag_s=0.0))),
            GroupCollector(cast("Any", group)),
            SourceCollector(SourceUse()),
            ObservedCollector(cast("Any", SimpleNamespace(topic=side_topic))),
            SampleCollector(cast("Any", SimpleNamespace(topic=side_topic, left_out=0))),
            ReshardCollector(PlanProgress(SystemClock())),
            SettingCollector(cast("Any", SimpleNamespace(problems=()))),
            NativeCollector(NativeUse("", lambda: (0, ""))),
            InputCollector(cast("Any", SimpleNamespace(inputs=()))),
            SnapshotCollector(cast("Any", SimpleNamespace(lanes=(), drill_age_s=0.0))),
        ):
            yield from collector.collect()


def table() -> str:
    """Return the Markdown table of all metrics, by name."""
    rows = ["| metric | type | labels | meaning |", "|---|---|---|---|"]
    for family in sorted(families(), key=lambda family: family.name):
        labels = ", ".join(f"`{label}`" for label in getattr(family, "_labelnames", ()))
        name = family.name + SUFFIXES.get(family.type, "")
        rows.append(f"| `{name}` | {family.type} | {labels} | {family.documentation} |")
    return "\n".join(rows)
