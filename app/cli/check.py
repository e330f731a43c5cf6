"""`gateway check`: whether a gateway would start here and keep its promise. It changes nothing."""

import logging

import typer

from app.cli.console import EXIT_ERROR, EXIT_USAGE, guarded, run_quietly
from app.cli.options import Output, print_rows


@guarded
def check(output: Output = None) -> None:
    """
    Look at all that a gateway started here would need, and print all findings at once, one line each.

    Settings, files, data folder, disk, clock, log, brokers, topics, ACLs as far as Kafka shows them, and the
    identity secret against the log. A line has result (`ok`, `warning`, `wrong`, `unknown`), about and says:
    the finding, and what mends it. What depends on a wrong setting is `unknown`; all else is looked at. Runs
    beside a gateway, and changes nothing.

    Exit codes: 0 nothing is wrong, 1 something could not be looked at, such as brokers that do not answer,
    2 something is wrong: a gateway would refuse to start, or refuse events.

    Example: `gateway check`, or `gateway check -o json`
    """

    async def run() -> None:
        from app.cli.checks import Result, all_checks

        logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # what it cannot reach is a finding
        findings = [finding async for finding in all_checks()]
        print_rows([{**finding._asdict(), "result": finding.result.value} for finding in findings], output)
        results = {finding.result for finding in findings}
        if Result.WRONG in results:
            raise typer.Exit(EXIT_USAGE)
        if Result.UNKNOWN in results:
            raise typer.Exit(EXIT_ERROR)

    run_quietly(run(), level="error")
