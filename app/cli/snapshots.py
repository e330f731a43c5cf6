"""`gateway snapshots`: lists snapshots of indexes, makes, verifies and restores them, and tries a restore."""

from typing import Annotated, Any

import typer

from app.cli.admin_client import AdminClient
from app.cli.console import EXIT_ERROR, guarded, run_quietly
from app.cli.options import DEFAULT_URL, Output, Token, Url, print_rows
from app.cli.progress import progress

snapshots = typer.Typer(
    name="snapshots",
    help="List copies of dedupe indexes in GATEWAY_SNAPSHOTS_URL, make, verify and restore them.",
    no_args_is_help=True,
)

Partitions = Annotated[list[int] | None, typer.Argument(min=0, help="Numbers of partitions; all by default.")]
Quarantine = Annotated[
    bool, typer.Option("--quarantine", help="Partitions of the quarantine topic, not of the clean one.")
]
MAKE_TIMEOUT_S = 3_600.0


@snapshots.command("list")
@guarded
def list_snapshots(
    partitions: Partitions = None, quarantine: Quarantine = False, output: Output = None
) -> None:
    """
    Print one line for each snapshot in the bucket, the newest of a partition first.

    A line has topic, partition, snapshot, age_seconds, applied_offset, files, size_bytes and worker. What is
    in the bucket and cannot be used is told on stderr. It needs the settings of the gateway, which may run.

    Example: `gateway snapshots list`, or `gateway snapshots list 3 -o json`
    """

    async def run() -> None:
        from app.cli.snapshot_work import listed

        print_rows(await listed(partitions, is_quarantine=quarantine), output)

    run_quietly(run(), level="warning")


@snapshots.command()
@guarded
def make(
    partitions: Partitions = None,
    quarantine: Quarantine = False,
    url: Url = DEFAULT_URL,
    admin_token: Token = None,
    output: Output = None,
) -> None:
    """
    Have a running gateway make snapshots of the indexes that it serves, now.

    A line has topic, partition, snapshot, applied_offset, files, size_bytes and sent_bytes. Exit code 1: a
    snapshot could not be made.

    Example: `gateway snapshots make`, or `gateway snapshots make 3 --url http://10.0.0.7:9090`
    """
    admin = AdminClient(url, admin_token)
    numbers = partitions
    if not numbers:
        lanes = admin.ask("/admin/v1/stats")["quarantine" if quarantine else "partitions"]
        numbers = [lane["partition"] for lane in lanes if lane["state"] == "active"]
    made = []
    with progress() as advance:
        for done, number in enumerate(numbers):
            advance(done, len(numbers))
            path = f"/admin/v1/snapshots/{number}"
            made.append(
                admin.ask(path, method="POST", timeout_s=MAKE_TIMEOUT_S, quarantine=quarantine or None)
            )
    print_rows(made, output)


@snapshots.command()
@guarded
def verify(partitions: Partitions = None, quarantine: Quarantine = False, output: Output = None) -> None:
    """
    Fetch every file of the newest snapshot of each partition, and compare it with its hash.

    A line has topic, partition, snapshot, files, size_bytes, verified and error. Nothing is kept or changed.
    Exit code 1: a snapshot is missing or wrong.

    Example: `gateway snapshots verify`, or `gateway snapshots verify 3`
    """

    async def run() -> list[dict[str, Any]]:
        from app.cli.snapshot_work import verified

        with progress() as advance:
            return await verified(partitions, advance, is_quarantine=quarantine)

    rows = run_quietly(run(), level="warning")
    print_rows(rows, output)
    if not rows or not all(row["verified"] for row in rows):
        raise typer.Exit(EXIT_ERROR)


@snapshots.command()
@guarded
def restore(partitions: Partitions = None, quarantine: Quarantine = False, output: Output = None) -> None:
    """
    Restore indexes from their newest snapshots and the log, while no gateway uses the data folder.

    A gateway does this itself for a missing index when it starts; this command does it before. It deletes
    the index that is there. A line has topic, partition, snapshot (none: the index came from the log),
    records read from the log, keys and seconds. Exit codes: 2 a gateway uses the data folder, 3 the log was
    written under another identity secret or partition count.

    Example: `gateway snapshots restore`, or `gateway snapshots restore 3 5`
    """

    async def run() -> list[dict[str, Any]]:
        from app.cli.snapshot_work import restored

        with progress() as advance:
            return await restored(partitions, advance, is_quarantine=quarantine)

    print_rows(run_quietly(run(), level="error"), output)


@snapshots.command()
@guarded
def drill(
    partition: Annotated[
        int | None, typer.Argument(min=0, help="Number of a partition; by default one by chance.")
    ] = None,
    output: Output = None,
) -> None:
    """
    Restore the newest snapshot of one partition into a scratch folder, prove it against the log, delete it.

    Gateways may run. The time of the last drill that held is noted in the bucket, and the metric
    gateway_snapshot_drill_age_seconds of all gateways tells its age. Exit code 1: the index did not come from
    a snapshot.

    Example: `gateway snapshots drill`, once a day
    """

    async def run() -> dict[str, Any]:
        from app.cli.snapshot_work import drilled

        with progress() as advance:
            return await drilled(partition, advance)

    row = run_quietly(run(), level="warning")
    print_rows([row], output)
    if row["snapshot"] is None:
        raise typer.Exit(EXIT_ERROR)
