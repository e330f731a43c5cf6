"""`gateway partitions`: lists partitions, and allows one to skip foreign records."""

from typing import Annotated

import typer

from app.cli.console import guarded, note, run_quietly

partitions = typer.Typer(
    name="partitions",
    help="List partitions, or allow one to skip foreign records.",
    no_args_is_help=True,
)


@partitions.command()
@guarded
def skip(
    partition: Annotated[int, typer.Argument(min=0, help="Number of the partition.")],
    offset: Annotated[int, typer.Argument(min=0, help="Offset of the record, see `last_error`.")],
    through: Annotated[
        int | None, typer.Option(min=0, help="Last offset of a range that begins at OFFSET.")
    ] = None,
    topic: Annotated[
        str | None, typer.Option(help="GATEWAY_TOPIC (the default) or its quarantine topic.")
    ] = None,
) -> None:
    """
    Allow the gateways to skip records that no gateway wrote.

    Such a record stops its partition, since its meaning is unknown: read it first. Only foreign records in
    the range are skipped, so no event is lost. The decision is a note in the log, which running gateways read
    within seconds; they log each skipped record. It needs the settings of the gateway,
    GATEWAY_IDENTITY_SECRET and GATEWAY_PARTITIONS among them.

    Example: `gateway partitions skip 3 4711`, or `gateway partitions skip 3 4711 --through 4799`
    """
    last = offset if through is None else through
    if last < offset:
        raise typer.BadParameter("--through must not be less than OFFSET")

    async def run() -> None:
        from app.cli.record_skips import skip as skip_records
        from app.settings.model import Settings
        from app.settings.section import load
        from app.stores import open_for_notes
        from dedupe.model.errors import ConfigurationError

        settings = load(Settings)
        topics = {each.name: each for each in settings.log.topics}
        chosen = topics.get(topic or settings.log.topic)
        if chosen is None:
            raise ConfigurationError(f"--topic must be {' or '.join(topics)}")
        async with open_for_notes(settings) as store:
            span = range(offset, last + 1)
            records = await skip_records(store, settings, chosen, partition, span)
        note(
            f"{records} foreign record{'s' if records > 1 else ''} in partition {partition} of "
            f"{chosen.name} will be skipped"
        )

    run_quietly(run())
