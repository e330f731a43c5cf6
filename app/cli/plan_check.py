"""Whether the gateways that run can follow a plan now, as one of them knows."""

from collections.abc import Iterator, Mapping
from typing import Any

from app.cli.admin_client import AdminClient
from app.cli.group import RISKS, group_at, rows_of
from app.settings.version import VERSION
from dedupe.model.errors import ConfigurationError, RetriableError

WAY_OUT = "--force plans all the same"


def check_gateways(client: AdminClient) -> None:
    """
    Refuse a plan that gateways cannot follow at once and without harm.

    Raises:
        ConfigurationError: none answers, one is older than this command or does not answer, or it would do
            harm if one ended now: a partition has no standby that is near, for example.
    """
    try:
        document = group_at(client)
    except RetriableError as err:
        raise ConfigurationError(
            f"{err}: name a gateway that runs by --url, or, if none runs, plan with --force"
        ) from err
    if reasons := [*older_workers(document), *unsafe_workers(document)]:
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


def _numbers(version: str) -> tuple[int, ...]:
    """Return the numbers of a version, none of another text."""
    parts = version.partition("+")[0].split(".")
    return tuple(int(part) for part in parts if part.isdigit())
