"""
The resources for a number of events a day, computed from measurements; docs/capacity.md has their origin.

`gateway size` and the table of docs/capacity.md use these numbers; a test compares the measured ones with the
recorded results.
"""

import math
from typing import NamedTuple

GB, GIB, MIB = 1e9, 2**30, 2**20
DAY_S = 86_400

# Measured.
SERVICE_US = {100: 20.9, 1: 295.1}
"""CPU of a new event in the gateway, in microseconds, by the events of a request."""
BROKER_US = {100: 3.5, 1: 50.3}
"""CPU of an event in Kafka, for each replica."""
GROUP_COST = {False: 1.5, True: 1.7}
"""CPU of an event in a group, relative to one gateway without a group: without and with standbys."""
INDEX_BYTES_A_KEY = 38
FILTER_BYTES_A_KEY = 5
BASE_MIB = 2 * 256 + 300
"""Twice GATEWAY_BODY_MEMORY, and the process."""
INDEX_MEMORY_MIB = 512
RESTORED_PER_S = {True: 190_000, False: 89_000}
"""Records a second that one core replays after an index was lost: with the native module, and without."""
SNAPSHOT_BYTES_PER_S = 200e6
"""Bytes a second that a worker fetches from a bucket, on a network of 2 Gbit/s."""

# Assumed.
PEAK = 4.0
DUPLICATES = 0.05
EVENT_BYTES = 1_000
COPIES = 3
BUSY = 0.5
"""The part of a core that is used at the peak: the rest is for the loss of a worker, and for restores."""
DISK_HEADROOM = 2.0
"""The factor of an index's disk for compactions and growth."""
DISK_BASE_GB = 2.0
"""The disk of a gateway for WALs and GATEWAY_DISK_FREE_MIN."""
BROKER_PEAK_BYTES = 20e6
"""The bytes that a small broker writes a second without effort."""
PARTITIONS_MIN, PARTITIONS_MAX = 8, 1024
LANE_KEYS_MAX = 100e6
"""More ids in one partition have thousands of files, and hours of a core for a rebuild."""
GATEWAY_GIB_MAX = 32
"""More memory in one gateway is a large machine that one core cannot use."""
ZSTD_PART = 0.25
"""The part of an event that zstd leaves: a tenth of generated events, a quarter to a third of real ones."""
TIERED_LOCAL_DAYS = 1.5
PARTITIONS_A_GATEWAY = 4
"""The number of partitions never changes, so there is room for four times as many gateways."""

CORE, GIB_RAM, GB_DISK, GB_BUCKET = 25.0, 3.5, 0.10, 0.023
"""Dollars a month, as large clouds' list prices are."""
BROKER_GIB, BROKER_HEADROOM = 4, 1.3


class Load(NamedTuple):
    """The load of a deployment."""

    events_a_day: float
    """New events, without duplicates."""
    window_s: float = 7 * DAY_S
    event_bytes: float = EVENT_BYTES
    batch_events: float = 100.0
    """Events of a request, on average."""
    duplicates: float = DUPLICATES
    peak: float = PEAK
    """The busiest minute, as a multiple of the day's mean."""
    copies: int = COPIES
    has_standbys: bool = True

    @property
    def mean_per_s(self) -> float:
        """Events a second, duplicates included."""
        return self.events_a_day * (1 + self.duplicates) / DAY_S

    @property
    def peak_per_s(self) -> float:
        """Events a second in the busiest minute."""
        return self.mean_per_s * self.peak

    @property
    def keys(self) -> float:
        """The number of remembered ids."""
        return self.events_a_day * self.window_s / DAY_S


class Need(NamedTuple):
    """The resources; sizes are totals of all gateways, or brokers."""

    cores: float  # of the gateways, used at the peak
    gateways: int
    partitions: int
    index_copies: int  # the owner's, and its standby's
    memory_gib: float
    disk_gb: float
    broker_cores: float
    brokers: int
    broker_gb: float  # of all replicas
    broker_zstd_gb: float
    tiered_gb: tuple[
        float, float
    ]  # with zstd and tiered storage: on the brokers' disks, and once in a bucket
    keys: float
    lane_keys: float
    rebuild_s: float  # of all indexes, by all gateways in parallel
    rebuild_python_s: float  # without the native module
    snapshot_s: float  # of all indexes, from a bucket


def cost_us(measured: dict[int, float], batch_events: float) -> float:
    """Return the CPU of an event in microseconds; a part is spent once for each request."""
    a_request = (measured[1] - measured[100]) / (1 - 1 / 100)
    return measured[1] - a_request * (1 - 1 / batch_events)


def need_of(load: Load) -> Need:
    """Return the resources for a load."""
    cores = load.peak_per_s * cost_us(SERVICE_US, load.batch_events) / 1e6
    if cores > BUSY:  # one gateway is not enough, and a group costs more
        cores *= GROUP_COST[load.has_standbys]
    gateways = max(1, math.ceil(cores / BUSY))
    filters_gib = load.keys * FILTER_BYTES_A_KEY / GIB
    base_gib = (INDEX_MEMORY_MIB + BASE_MIB) * MIB / GIB
    if filters_gib + base_gib > GATEWAY_GIB_MAX:  # memory decides, and not the processor
        copies = 1 + load.has_standbys
        gateways = max(gateways, math.ceil(copies * filters_gib / (GATEWAY_GIB_MAX - base_gib)))
    parts = max(PARTITIONS_A_GATEWAY * gateways, load.keys / LANE_KEYS_MAX)
    partitions = min(PARTITIONS_MAX, max(PARTITIONS_MIN, 2 ** math.ceil(math.log2(parts))))
    index_copies = 2 if gateways > 1 and load.has_standbys else 1
    bytes_a_day = load.events_a_day * load.event_bytes * load.copies
    days = load.window_s / DAY_S + 1
    zstd_gb_a_day = bytes_a_day * ZSTD_PART / GB
    return Need(
        cores=cores,
        gateways=gateways,
        partitions=partitions,
        index_copies=index_copies,
        memory_gib=filters_gib * index_copies + gateways * base_gib,
        disk_gb=load.keys * index_copies * INDEX_BYTES_A_KEY * DISK_HEADROOM / GB + gateways * DISK_BASE_GB,
        broker_cores=load.peak_per_s * cost_us(BROKER_US, load.batch_events) / 1e6 * load.copies / BUSY,
        brokers=max(3, math.ceil(load.peak_per_s * load.event_bytes * load.copies / BROKER_PEAK_BYTES)),
        broker_gb=bytes_a_day * days / GB,
        broker_zstd_gb=zstd_gb_a_day * days,
        tiered_gb=(
            zstd_gb_a_day * min(days, TIERED_LOCAL_DAYS),
            zstd_gb_a_day / load.copies * max(0, days - TIERED_LOCAL_DAYS),
        ),
        keys=load.keys,
        lane_keys=load.keys / partitions,
        rebuild_s=load.keys / RESTORED_PER_S[True] / gateways,
        rebuild_python_s=load.keys / RESTORED_PER_S[False] / gateways,
        snapshot_s=load.keys * INDEX_BYTES_A_KEY / SNAPSHOT_BYTES_PER_S / gateways,
    )


def dollars_of(need: Need, *, storage: str = "raw") -> float:
    """
    Return what it costs a month, without traffic, load balancers and people.

    Args:
        need: the resources.
        storage: of the topic: `raw`, `zstd`, or `tiered` (zstd, with older segments in a bucket).
    """
    local_gb, bucket_gb = {
        "raw": (need.broker_gb, 0.0),
        "zstd": (need.broker_zstd_gb, 0.0),
        "tiered": need.tiered_gb,
    }[storage]
    return (
        (need.gateways + max(need.brokers, need.broker_cores)) * CORE
        + (need.memory_gib + need.brokers * BROKER_GIB) * GIB_RAM
        + (need.disk_gb + local_gb * BROKER_HEADROOM) * GB_DISK
        + bucket_gb * GB_BUCKET
    )
