"""`gateway config`: prints the settings of a gateway that is started here."""

from typing import Annotated

import typer

from app.cli.console import guarded
from app.cli.options import Output, print_rows


@guarded
def config(
    set_only: Annotated[
        bool, typer.Option("--set", help="Only settings of the environment, not defaults.")
    ] = False,
    output: Output = None,
) -> None:
    """
    Print every setting of a gateway that is started here, with its value and origin.

    The origin is `environment`, `default`, or `derived` from other settings. Values of secrets are not shown.
    It needs no running gateway, and changes nothing. Exit code 2: a gateway would refuse the settings.

    Example: `gateway config --set`, or `gateway config -o json`
    """

    from app.settings.effective import effective
    from app.settings.environment import refuse_unknown_variables
    from app.settings.model import Settings
    from app.settings.section import load

    refuse_unknown_variables()
    rows = [each._asdict() | {"origin": each.origin.value} for each in effective(load(Settings))]
    print_rows([row for row in rows if not set_only or row["origin"] == "environment"], output)
