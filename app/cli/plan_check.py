"""Whether the gateways that run can follow a plan now, as one of them knows."""

from collections.abc import Iterator, Mapping
from typing import Any

from app.cli.admin_client import AdminClient
from app.cli.group import RISKS, group_at, rows_of
from app.settings.units import format_duration, parse_duration
from app.settings.version import VERSION
from dedupe.model.errors import ConfigurationError, RetriableError

WAY_OUT = "--force plans all the same"
MEMORIES = frozenset({"GATEWAY_WINDOW", "GATEWAY_SESSION_LEASE"})
"""The settings that say for how long anything is remembered."""


def check_gateways(client: AdminClient, remembered_s: float) -> None:
    """
    Refuse a plan that gateways cannot follow at once and without harm.

    Args:
        client: of one of them.
        remembered_s: what is older is forgotten by the plan, in seconds.

    Raises:
        ConfigurationError: none answers, one is older than this command or does not answer, it would do
            harm if one ended now (a partition has no standby that is near, for example), or the gateway
            remembers for longer.
    """
    try:
        document, configured = group_at(client), client.ask("/admin/v1/config")
    except RetriableError as err:
        raise ConfigurationError(
            f"{err}: name a gateway that runs by --url, or, if none runs, plan with --force"
        ) from err
    reasons = [
        *older_workers(document),
        *unsafe_workers(document),
        *longer_memories(configured, remembered_s),
    ]
    if reasons:
        raise ConfigurationError(f"{'; '.join(reasons)}: mend that first, or {WAY_OUT}")


def older_workers(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield one sentence for each worker that may not know what this command plans."""
    for name, stats in document["workers"].items():
        version = stats.get("version", "")
        if _numbers(version) < _numbers(VERSION):
            yield f"{name} runs version {version or 'unknown'}, and this command is of {VERSION}"


def unsafe_workers(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield one sentence for each worker that does not answer, or must not end now."""
    for row in rows_of(document):
        if not row["answers"]:
            yield f"{row['worker']} does not answer ({row['why']})"
        elif risks := row["restart_risks"]:
            yield f"{row['worker']}: {', '.join(RISKS[risk] for risk in risks)}"


def longer_memories(configured: Mapping[str, Any], remembered_s: float) -> Iterator[str]:
    """Yield one sentence for each setting by which a gateway remembers what a plan has forgotten."""
    for each in configured["settings"]:
        if each["variable"] in MEMORIES and parse_duration(each["value"]) > remembered_s:
            yield (
                f"{each['variable']} is {each['value']} there, by this command's settings all is forgotten "
                f"after {format_duration(remembered_s)}: give it the gateways' settings"
            )


def _numbers(version: str) -> tuple[int, ...]:
    """Return the numbers of a version, none of another text."""
    parts = version.partition("+")[0].split(".")
    return tuple(int(part) for part in parts if part.isdigit())
