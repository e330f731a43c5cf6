"""`gateway config`: prints the settings that a gateway started here would have."""

from typing import Annotated

import typer

from app.cli.console import guarded
from app.cli.options import Output, print_rows


@guarded
def config(
    set_only: Annotated[
        bool, typer.Option("--set", help="Only those that the environment sets, not defaults.")
    ] = False,
    output: Output = None,
) -> None:
    """
    Print every setting that a gateway started here would have: its value, and where that comes from.

    The origin is `environment`, `default`, or `derived` from other settings. Of secrets only whether they
    are set is shown. Asks no gateway, and changes nothing. Exit code 2: a gateway would refuse them.

    Example: `gateway config --set`, or `gateway config -o json`
    """

    from app.settings.effective import effective
    from app.settings.environment import refuse_unknown_variables
    from app.settings.model import Settings
    from app.settings.section import load

    refuse_unknown_variables()
    rows = [each._asdict() | {"origin": each.origin.value} for each in effective(load(Settings))]
    print_rows([row for row in rows if not set_only or row["origin"] == "environment"], output)
