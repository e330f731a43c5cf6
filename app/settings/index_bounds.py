"""How much the index of one lane remembers, of what the settings allow in all."""

from app.settings.model import Settings
from app.settings.units import DAY
from dedupe.decide.layout import Layout


def index_bounds(settings: Settings, layout: Layout, now_ms: int) -> tuple[int, int]:
    """
    Return how many ids, and how many sessions, a lane remembers.

    A topic that was divided remembers as many in each lane as before, until what it had then is too old:
    nothing is forgotten early.
    """

    def part_of(most: int, seconds: float) -> int:
        return most // layout.partitions_since(now_ms - round(seconds * 1000))

    keys_max = part_of(settings.index.keys_max, settings.index.window)
    return keys_max, max(1, part_of(settings.index.sessions_max, settings.index.session_lease + DAY))
