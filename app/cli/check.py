"""`gateway check`: checks whether a gateway would start here. It changes nothing."""

import logging

import typer

from app.cli.console import EXIT_ERROR, EXIT_USAGE, guarded, run_quietly
from app.cli.options import Output, print_rows


@guarded
def check(output: Output = None) -> None:
    """
    Check everything that a gateway needs to start here, and print one line for each finding.

    It checks settings, files, data folder, disk, clock, log, brokers, topics, ACLs as far as Kafka shows
    them, and the identity secret. A line has result (`ok`, `warning`, `wrong`, `unknown`), about, and says:
    the finding and its remedy. Checks that depend on a wrong setting are `unknown`. It may run while a
    gateway runs, and changes nothing.

    Exit codes: 0 nothing is wrong, 1 something could not be checked, such as brokers that do not answer, 2
    something is wrong: a gateway would refuse to start, or refuse events.

    Example: `gateway check`, or `gateway check -o json`
    """

    async def run() -> None:
        from app.cli.checks import Result, all_checks

        logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # its errors are findings
        findings = [finding async for finding in all_checks()]
        print_rows([{**finding._asdict(), "result": finding.result.value} for finding in findings], output)
        results = {finding.result for finding in findings}
        if Result.WRONG in results:
            raise typer.Exit(EXIT_USAGE)
        if Result.UNKNOWN in results:
            raise typer.Exit(EXIT_ERROR)

    run_quietly(run(), level="error")
