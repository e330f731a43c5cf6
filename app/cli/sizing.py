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
RESTORED_PER_S = 40_000
"""Records a second that one core replays after an index was lost."""

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
PARTITIONS_A_GATEWAY = 4
"""The number of partitions never changes, so there is room for four times as many gateways."""


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
    broker_gb: float
    rebuild_s: float  # of all indexes, by all gateways in parallel


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
    partitions = max(PARTITIONS_MIN, 2 ** math.ceil(math.log2(PARTITIONS_A_GATEWAY * gateways)))
    index_copies = 2 if gateways > 1 and load.has_standbys else 1
    bytes_a_day = load.events_a_day * load.event_bytes * load.copies
    return Need(
        cores=cores,
        gateways=gateways,
        partitions=min(PARTITIONS_MAX, partitions),
        index_copies=index_copies,
        memory_gib=load.keys * index_copies * FILTER_BYTES_A_KEY / GIB
        + gateways * (INDEX_MEMORY_MIB + BASE_MIB) * MIB / GIB,
        disk_gb=load.keys * index_copies * INDEX_BYTES_A_KEY * DISK_HEADROOM / GB + gateways * DISK_BASE_GB,
        broker_cores=load.peak_per_s * cost_us(BROKER_US, load.batch_events) / 1e6 * load.copies / BUSY,
        brokers=max(3, math.ceil(load.peak_per_s * load.event_bytes * load.copies / BROKER_PEAK_BYTES)),
        broker_gb=bytes_a_day * (load.window_s / DAY_S + 1) / GB,
        rebuild_s=load.keys / RESTORED_PER_S / gateways,
    )
