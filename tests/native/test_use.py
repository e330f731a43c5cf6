"""Claim: metrics tell what share of the events the native module takes, and why others go without it."""

import json

import jsonschema
from prometheus_client import CollectorRegistry

from app.admin import native_metrics
from app.ingest.identified import Arrival
from app.ingest.large_json import AT_ONCE_BYTES
from app.ingest.parse import parse_batch, parse_event, parse_events
from tests.native.both_paths import RECEIVED_MS, Paths
from tests.support.documents import ROOT

ARRIVAL = Arrival("web", RECEIVED_MS)
PLAIN = b'{"messageId":"1","type":"track"}'
ODD = b'{"messageId":"2","type":"track","amount":10.0}'


def test_events_are_counted_by_path_and_bodies_by_reason() -> None:
    paths = Paths()
    paths.compare(b'{"batch":[%b,%b,%b]}' % (PLAIN, ODD, PLAIN), parse_batch, ARRIVAL)
    paths.compare(b"[%b,%b]" % (PLAIN, b" " * AT_ONCE_BYTES + PLAIN), parse_events, ARRIVAL)
    paths.compare(b"[%b" % PLAIN, parse_events, ARRIVAL)
    paths.compare(b"[%b]" % PLAIN, parse_event, ARRIVAL)
    use = paths.native.use
    told = native_metrics.native_document(use)
    assert told == {
        "version": use.version,
        "events": 2,
        "odd_events": 1,
        "other_events": 3,
        "other_bodies": {"large": 1, "unreadable": 1, "form": 1},
        "panics": use.panics,
    }
    schema = json.loads((ROOT / "app/admin/stats.schema.json").read_text(encoding="utf-8"))
    jsonschema.validate(told, schema["properties"]["native"])
    registry = CollectorRegistry()
    registry.register(native_metrics.NativeCollector(use))
    events = ("native_events", "native_odd_events", "native_other_events")
    assert [registry.get_sample_value(f"gateway_{name}_total") for name in events] == [2, 1, 3]
    by_reason = {
        reason: registry.get_sample_value("gateway_native_other_bodies_total", {"reason": reason})
        for reason in told["other_bodies"]
    }
    assert by_reason == told["other_bodies"]
