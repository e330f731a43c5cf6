"""Run the mutants: `python -m tests.mutants --help`."""

import argparse
import sys
from collections.abc import Sequence

from rich.console import Console
from rich.progress import Progress

from tests.mutants.catalogue import Mutant, MutantError, all_mutants, table_of
from tests.mutants.workshop import FAST_SUITE, Workshop, failures_in


def main() -> int:
    """Return the exit status: 0 if every mutant chosen was killed."""
    options = _options()
    mutants = [mutant for mutant in all_mutants() if options.words in mutant.path]
    if options.table:
        print(table_of(all_mutants()), end="")
        return 0
    if not mutants:
        print(f"no mutant's name has {options.words!r} in it", file=sys.stderr)
        return 2
    with Workshop() as workshop:
        return _try_all(workshop, mutants, every_test=options.all_tests)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("words", nargs="?", default="", help="only those with this in part/name")
    parser.add_argument(
        "--all-tests", action="store_true", help="run the whole fast suite on each, and say which tests fail"
    )
    parser.add_argument("--table", action="store_true", help="print docs/mutants.md, and run nothing")
    return parser.parse_args()


def _try_all(workshop: Workshop, mutants: Sequence[Mutant], *, every_test: bool) -> int:
    console = Console(highlight=False, soft_wrap=True)
    tests = FAST_SUITE if every_test else sorted({test for mutant in mutants for test in mutant.killed_by})
    console.print(f"{len(mutants)} mutants; first, their tests must pass without any")
    healthy = workshop.run(tests)
    if not healthy.has_passed:
        console.print(healthy.output, markup=False)
        return 2
    living = 0
    with Progress(console=console, transient=True) as progress:
        for mutant in progress.track(mutants, description="mutants"):
            living += not _try(workshop, mutant, console, tests if every_test else mutant.killed_by)
    console.print(f"{len(mutants) - living} killed, {living} alive")
    return int(living > 0)


def _try(workshop: Workshop, mutant: Mutant, console: Console, tests: Sequence[str]) -> bool:
    """Whether the mutant was killed, which is said in a line."""
    try:
        with workshop.changed(mutant):
            run = workshop.run(tests, first_failure_only=tests is mutant.killed_by)
    except MutantError as err:
        console.print(f"broken   {err}", markup=False)
        return False
    if run.has_failed:
        killers = "" if tests is mutant.killed_by else ": " + ", ".join(failures_in(run.output))
        console.print(f"killed   {mutant.path} ({run.seconds:.0f} s){killers}", markup=False)
        return True
    verdict = "ALIVE " if run.has_passed else "broken"
    console.print(f"{verdict}   {mutant.path}: {mutant.harm}", markup=False)
    if not run.has_passed:  # neither a pass nor a failure: the change could not even be imported
        console.print(run.output, markup=False)
    return False


if __name__ == "__main__":
    sys.exit(main())
