"""A client that keeps each event in a file until the gateway has it: none is lost, none is stored twice."""

from .aio import AsyncClient
from .client import Client
from .model import (
    VERSION,
    ClosedError,
    DamagedQueueError,
    DeadLetter,
    DeliveryError,
    NotDurableError,
    OtherSourceError,
    Place,
    QueueFullError,
    QueueInUseError,
)

__all__ = [
    "VERSION",
    "AsyncClient",
    "Client",
    "ClosedError",
    "DamagedQueueError",
    "DeadLetter",
    "DeliveryError",
    "NotDurableError",
    "OtherSourceError",
    "Place",
    "QueueFullError",
    "QueueInUseError",
]
