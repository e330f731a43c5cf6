"""`gateway bench`: what a running gateway takes, measured for some seconds."""

from typing import Annotated

import typer

from app.cli.console import EXIT_ERROR, guarded, run_async
from app.cli.options import (
    DEFAULT_INGEST_URL,
    DuplicateRatio,
    IngestUrl,
    Output,
    WriteKeys,
    print_document,
)
from app.cli.progress import progress


def bench(
    seconds: Annotated[float, typer.Option(min=0.1, max=3600, help="How long to measure.")] = 10.0,
    batch: Annotated[int, typer.Option(min=1, max=2_500, help="Events of a request.")] = 100,
    duplicates: DuplicateRatio = 0.0,
    connections: Annotated[int, typer.Option(min=1, max=256, help="Requests under way at once.")] = 8,
    write_keys: WriteKeys = None,
    url: IngestUrl = DEFAULT_INGEST_URL,
    admin_url: Annotated[
        str | None, typer.Option(envvar="GATEWAY_ADMIN_URL", help="Its admin URL, to tell its CPU, too.")
    ] = None,
    output: Output = None,
) -> None:
    """
    Keep a running gateway busy for some seconds, and print how many events a second it took and how fast.

    The made-up events are stored as any others: use a gateway or a write key whose events nobody needs. What
    is refused is not sent again, and its connection waits as long as the gateway says; quotas of the write
    key hold. `events_per_second` and `answer_ms` are those of answered requests. Where `bench_cpu_cores` is
    near 1, this command was the limit, not the gateway. The gateway's CPU an event holds if it is alone and
    has no other clients. Exit codes: 0 measured, 1 nothing was answered.

    Example: `gateway bench --seconds 30 --duplicates 0.2 --admin-url http://127.0.0.1:9090`
    """

    async def run() -> None:
        import asyncio

        from app.cli.ingest_client import IngestClient
        from app.cli.load import Load, LoadPlan, cpu_seconds

        plan = LoadPlan(seconds, connections, batch, duplicates, write_keys or ["demo-1"])
        async with IngestClient(url, connections) as client:
            with progress() as advance:
                load = Load(client, plan, lambda passed: advance(passed, round(seconds)))
                await load.warm_up()
                cpu_before_s = await cpu_seconds(admin_url) if admin_url else 0.0
                try:
                    await load.run()
                except asyncio.CancelledError:
                    print_document(load.tally.summary(), output)
                    raise
            document = load.tally.summary()
        answered = load.tally.verdicts.total()
        if admin_url and answered:
            used_s = await cpu_seconds(admin_url) - cpu_before_s
            document["gateway_cpu_us_per_event"] = round(used_s * 1e6 / answered, 1)
        print_document(document, output)
        if not answered:
            raise typer.Exit(EXIT_ERROR)

    guarded(lambda: run_async(run()))
