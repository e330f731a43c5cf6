"""
What so many events a day need, computed from measured figures, whose origin docs/capacity.md names.

`gateway size` and the table of docs/capacity.md use these numbers, and a test compares the measured ones
with the results they were read from.
"""

import math
from typing import NamedTuple

GB, GIB, MIB = 1e9, 2**30, 2**20
DAY_S = 86_400

# Measured.
SERVICE_US = {100: 20.9, 1: 295.1}
"""CPU of a new event in the gateway, in microseconds, by the events of a request."""
BROKER_US = {100: 3.5, 1: 50.3}
"""The same in Kafka, of each copy."""
GROUP_COST = {False: 1.5, True: 1.7}
"""CPU of an event in a group of several gateways, to that of one alone: without and with standbys."""
INDEX_BYTES_A_KEY = 38
FILTER_BYTES_A_KEY = 5
BASE_MIB = 2 * 256 + 300
"""Twice GATEWAY_BODY_MEMORY, and the process."""
INDEX_MEMORY_MIB = 512
RESTORED_PER_S = 40_000
"""Records that one core reads back from the log after an index was lost."""

# Assumed.
PEAK = 4.0
DUPLICATES = 0.05
EVENT_BYTES = 1_000
COPIES = 3
BUSY = 0.5
"""How much of a core is used at the peak: the rest is for a worker that is gone, and for restores."""
DISK_HEADROOM = 2.0
"""Of an index: room for compactions and growth."""
DISK_BASE_GB = 2.0
"""Of a gateway: its indexes' write-ahead logs, and GATEWAY_DISK_FREE_MIN."""
BROKER_PEAK_BYTES = 20e6
"""A small broker's share of writes, which it takes with ease."""
PARTITIONS_MIN, PARTITIONS_MAX = 8, 1024
PARTITIONS_A_GATEWAY = 4
"""So that there can be four times as many gateways one day: the number of partitions never changes."""


class Load(NamedTuple):
    """What comes in."""

    events_a_day: float
    """New ones; duplicates come on top."""
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
        """The same in the busiest minute."""
        return self.mean_per_s * self.peak

    @property
    def keys(self) -> float:
        """How many ids are remembered."""
        return self.events_a_day * self.window_s / DAY_S


class Need(NamedTuple):
    """What it needs; sizes are of all gateways, or brokers, together."""

    cores: float  # of the gateways, used at the peak
    gateways: int
    partitions: int
    index_copies: int  # the owner's, and its standby's
    memory_gib: float
    disk_gb: float
    broker_cores: float
    brokers: int
    broker_gb: float
    rebuild_s: float  # of all indexes from the log, by all gateways side by side


def cost_us(measured: dict[int, float], batch_events: float) -> float:
    """Return the CPU of an event, of which a part is paid once a request, in microseconds."""
    a_request = (measured[1] - measured[100]) / (1 - 1 / 100)
    return measured[1] - a_request * (1 - 1 / batch_events)


def need_of(load: Load) -> Need:
    """Return what so many events need."""
    cores = load.peak_per_s * cost_us(SERVICE_US, load.batch_events) / 1e6
    if cores > BUSY:  # one is not enough, and those of a group do work for one another
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
