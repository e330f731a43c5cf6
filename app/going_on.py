"""Goes on with a log that is open when a plan ends a round: only what a plan changes is looked at anew."""

from collections.abc import Sequence

import structlog

from app.settings.model import Settings
from app.stores import OpenLog, divided, layout_of
from dedupe.model.clock import Clock
from dedupe.model.identity import Identity
from dedupe.storage.dividing import Division
from dedupe.storage.settling import Settling

logger = structlog.get_logger(__name__)


async def go_on_with(opened: OpenLog, settings: Settings, clock: Clock, owned: Sequence[int]) -> OpenLog:
    """
    Settle the plan, and return the same log with its new layout.

    Args:
        opened: the log, which must be on Kafka.
        settings: the gateway's settings.
        clock: this machine's clock.
        owned: clean partitions that this process served last, see Settling.settle.

    Raises as open_log does, at the first failure.
    """
    store, _ = divided(opened.store)
    identity = Identity(settings.gateway.identity_key)
    await Settling(store, settings.log.topics[0], identity, clock, logger.info).settle(owned)
    layout = await layout_of(store, settings)
    return opened._replace(
        division=Division(layout, await store.routing_topic.seal()),
    )
