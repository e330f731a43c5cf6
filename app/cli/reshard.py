"""`gateway reshard`: by which rules the events of a log are spread over its partitions."""

import typer

from app.cli.console import guarded, note, run_quietly

reshard = typer.Typer(
    name="reshard",
    help="Take over a log by whose notes this version does not know how it is partitioned.",
    no_args_is_help=True,
)


@reshard.callback()
def group() -> None:
    """Name the group, which has one command so far."""


@reshard.command()
@guarded
def adopt() -> None:
    """
    Take over a log of an older gateway, or one whose routing topic is lost.

    The first records of each partition prove GATEWAY_IDENTITY_SECRET, GATEWAY_PARTITIONS and
    GATEWAY_QUARANTINE_PARTITIONS; then these are written into the log, as a first start does. What an older
    gateway has noted is taken along, and older gateways do not start on this log any more. It fences nobody,
    and changes nothing of a log that this version has begun. On Kafka the routing topic must be there:
    `gateway topics create`. Exit codes: 0 taken over, 1 the log does not answer, 2 a topic is missing or has
    records in other partitions, 3 the log is of another secret or partition count.

    Example: `gateway reshard adopt`
    """

    async def run() -> None:
        from app.cli.adoption import adopt as adopt_log
        from app.settings.model import Settings
        from app.settings.section import load
        from app.stores import open_for_notes

        settings = load(Settings)
        async with open_for_notes(settings) as store:
            proved = await adopt_log(store, settings)
        if proved is None:
            note("nothing to do: the log says by which rules it is written")
        else:
            note(f"{proved} records prove these settings; the log says so from now on")

    run_quietly(run())
