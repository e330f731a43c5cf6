"""`gateway bench`: measures the throughput of a running gateway."""

import asyncio
from typing import Annotated, Any

import typer

from app.cli.admin_client import AdminClient
from app.cli.console import EXIT_ERROR, guarded
from app.cli.options import Output, print_document
from app.cli.progress import progress
from dedupe.model.errors import ConfigurationError


@guarded
def bench(
    seconds: Annotated[float, typer.Option(min=0.1, max=3600, help="How long to measure.")] = 10.0,
    batch: Annotated[int, typer.Option(min=1, max=2_500, help="Events of a request.")] = 100,
    duplicates: Annotated[
        float,
        typer.Option(
            "--duplicates",
            "--duplicate-ratio",
            min=0,
            max=1,
            help="Share of events that are sent again.",
        ),
    ] = 0.0,
    connections: Annotated[int, typer.Option(min=1, max=256, help="Concurrent requests.")] = 8,
    write_keys: Annotated[
        list[str] | None,
        typer.Option("--write-key", envvar="GATEWAY_WRITE_KEY", help="Write key; several are used in turn."),
    ] = None,
    url: Annotated[
        str, typer.Option("--url", envvar="GATEWAY_URL", help="Ingest URL of the running gateway.")
    ] = "http://127.0.0.1:8080",
    admin_url: Annotated[
        str | None, typer.Option(envvar="GATEWAY_ADMIN_URL", help="Its admin URL, to measure its CPU, too.")
    ] = None,
    output: Output = None,
) -> None:
    """
    Send events to a running gateway for some seconds, and print its throughput and latency.

    The generated events are stored: use a gateway or a write key whose events are not needed. Refused
    requests are not sent again, their connections wait for Retry-After, and quotas apply. `events_per_second`
    and `answer_ms` are those of answered requests. With `bench_cpu_cores` near 1, this command is the limit,
    not the gateway. The gateway's CPU of an event is right if it is in no group and has no other clients.
    Exit codes: 0 measured, 1 no request was answered.

    Example: `gateway bench --seconds 30 --duplicates 0.2 --admin-url http://127.0.0.1:9090`
    """
    from app.cli.load.measurement import Measurement, Plan

    plan = Plan(url, seconds, connections, batch, duplicates, write_keys or ["demo-1"])

    async def run() -> dict[str, Any]:
        with progress() as advance:
            measurement = Measurement(plan, lambda passed: advance(passed, round(seconds)))
            try:
                await measurement.warm_up()
                cpu_before_s = cpu_seconds(admin_url) if admin_url else 0.0
                await measurement.run()
            except asyncio.CancelledError:
                print_document(measurement.tally.summary(), output)
                raise
            finally:
                measurement.close()
        document = measurement.tally.summary()
        answered = measurement.tally.verdicts.total()
        if admin_url and answered:
            used_s = cpu_seconds(admin_url) - cpu_before_s
            document["gateway_cpu_us_per_event"] = round(used_s * 1e6 / answered, 1)
        return document

    document = asyncio.run(run())
    print_document(document, output)
    if document["answer_ms"]["max"] is None:
        raise typer.Exit(EXIT_ERROR)


def cpu_seconds(admin_url: str) -> float:
    """
    Return the CPU time that a gateway has used.

    Raises:
        ConfigurationError: it is in a group, where other workers do a part of its work.
        RetriableError: no gateway's admin port answers there.
    """
    metrics = AdminClient(admin_url).metrics()
    if metrics.get("gateway_group_workers", 1) > 1:
        raise ConfigurationError(
            f"the gateway at {admin_url} is one of several that share the events: leave --admin-url out"
        )
    return metrics["process_cpu_seconds_total"]
