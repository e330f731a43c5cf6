"""`gateway index`: rebuilds dedupe indexes while their gateway is stopped."""

from typing import TYPE_CHECKING, Annotated

import typer

from app.cli.console import guarded, run_quietly
from app.cli.options import Output, print_rows
from app.cli.progress import progress

if TYPE_CHECKING:
    from app.cli.rebuild import Rebuilt

index = typer.Typer(
    name="index", help="Rebuild the dedupe indexes of a gateway that is stopped.", no_args_is_help=True
)


@index.command()
@guarded
def rebuild(
    partitions: Annotated[
        list[int] | None, typer.Argument(min=0, help="Numbers of partitions; all by default.")
    ] = None,
    quarantine: Annotated[
        bool, typer.Option("--quarantine", help="Partitions of the quarantine topic, not of the clean one.")
    ] = False,
    output: Output = None,
) -> None:
    """
    Delete indexes and rebuild them from the log, while no gateway uses the data folder.

    A gateway rebuilds a damaged or missing index itself; this command does it before the gateway starts. It
    reads the window from the log, about 40,000 records a second, and needs the settings of the gateway. A
    line has topic, partition, records, keys and seconds. Exit codes: 2 a gateway uses the data folder, 3 the
    log was written under another identity secret or partition count.

    Example: `gateway index rebuild`, or `gateway index rebuild 3 5`
    """

    async def run() -> None:
        from app.cli.rebuild import rebuild_indexes
        from app.settings.model import Settings
        from app.settings.section import load

        settings = load(Settings)
        topic = settings.log.topics[quarantine].name
        with progress() as advance:
            rebuilt: list[Rebuilt] = await rebuild_indexes(settings, topic, partitions, advance)
        rows = [each._asdict() for each in rebuilt]
        print_rows([{name: row[name] for name in row if name != "snapshot"} for row in rows], output)

    run_quietly(run(), level="error")
