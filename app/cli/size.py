"""`gateway size`: computes the resources for a number of events a day."""

import math
import re
from typing import Annotated

import typer

from app.cli.console import note
from app.cli.options import Output, print_document

_COUNT = re.compile(r"(\d+(?:\.\d+)?)([kMG]?)", re.ASCII)
_FACTORS = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9}
KEYS_HEADROOM = 1.5
"""For days with more events than the mean, which must not shorten the window."""
_WINDOW = re.compile(r"(\d+(?:\.\d+)?)([hd])", re.ASCII)


def _parse_count(text: str) -> float:
    match = _COUNT.fullmatch(text)
    if match is None or not float(match[1]):
        raise typer.BadParameter("must be a number such as 5000000, 800k, 100M or 1.5G")
    return float(match[1]) * _FACTORS[match[2]]


def _parse_window(text: str) -> float:
    match = _WINDOW.fullmatch(text)
    window_s = float(match[1]) * (86_400 if match[2] == "d" else 3_600) if match else 0
    if window_s < 86_400:
        raise typer.BadParameter("must be a duration of at least a day, such as 36h or 7d")
    return window_s


def size(
    events: Annotated[str, typer.Argument(help="New events a day: `800k`, `100M`, `1.5G`.")],
    window: Annotated[str, typer.Option(help="GATEWAY_WINDOW: how long ids are remembered.")] = "7d",
    event_bytes: Annotated[float, typer.Option(min=100, help="Bytes of a stored event.")] = 1_000,
    batch: Annotated[
        float,
        typer.Option(
            min=1, max=2_500, help="Events of a request: 100 for server SDKs, 1 for many web pages."
        ),
    ] = 100,
    peak: Annotated[
        float, typer.Option(min=1, help="The busiest minute, as a multiple of the day's mean.")
    ] = 4,
    duplicates: Annotated[float, typer.Option(min=0, help="Duplicates for each new event.")] = 0.05,
    copies: Annotated[int, typer.Option(min=1, help="Replication factor of the topics.")] = 3,
    standbys: Annotated[
        bool, typer.Option(help="Whether workers follow each other: GATEWAY_STANDBY.")
    ] = True,
    output: Output = None,
) -> None:
    """
    Compute the resources for a number of events a day: cores, gateways, partitions, memory, disk and
    settings.

    The figures are estimates from the measurements in docs/capacity.md; measure with your own events. It
    needs no running gateway.

    Example: `gateway size 100M`, or `gateway size 5M --window 14d --batch 1 -o yaml`
    """
    from app.cli.sizing import LANE_KEYS_MAX, Load, dollars_of, need_of

    load = Load(
        _parse_count(events), _parse_window(window), event_bytes, batch, duplicates, peak, copies, standbys
    )
    need = need_of(load)
    print_document(
        {
            "events_per_second": {"mean": round(load.mean_per_s, 1), "peak": round(load.peak_per_s, 1)},
            "gateways": need.gateways,
            "each_gateway": {
                "cores_at_peak": round(need.cores / need.gateways, 2),
                "memory_gib": round(need.memory_gib / need.gateways, 1),
                "disk_gb": round(need.disk_gb / need.gateways, 1),
            },
            "kafka": {
                "brokers": need.brokers,
                "cores": round(need.broker_cores, 1),
                "disk_gb": round(need.broker_gb, 1),
                "disk_zstd_gb": round(need.broker_zstd_gb, 1),
                "disk_tiered_gb": round(need.tiered_gb[0], 1),
                "bucket_tiered_gb": round(need.tiered_gb[1], 1),
            },
            "ids": {
                "millions": round(need.keys / 1e6, 1),
                "millions_a_partition": round(need.lane_keys / 1e6, 1),
            },
            "lost_index_minutes": {
                "from_log": round(need.rebuild_s / 60, 1),
                "from_log_without_native": round(need.rebuild_python_s / 60, 1),
                "from_snapshots": round(need.snapshot_s / 60, 1),
            },
            "dollars_a_month": {
                "raw": round(dollars_of(need)),
                "zstd": round(dollars_of(need, storage="zstd")),
                "zstd_tiered": round(dollars_of(need, storage="tiered")),
            },
            "settings": {
                "GATEWAY_PARTITIONS": need.partitions,
                "GATEWAY_WINDOW": window,
                "GATEWAY_INDEX_KEYS_MAX": math.ceil(load.keys * KEYS_HEADROOM / 1e6) * 1_000_000,
            },
        },
        output,
    )
    if need.lane_keys > LANE_KEYS_MAX:
        note(
            f"{need.lane_keys / 1e6:,.0f} million ids in each of {need.partitions} partitions, the most that "
            f"there can be, are more than the {LANE_KEYS_MAX / 1e6:.0f} million that were measured: take a "
            "shorter window, or several topics"
        )
