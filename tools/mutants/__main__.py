"""Break the code on purpose, one mutant at a time, and see that its tests fail."""

import argparse
import signal
import sys
from collections.abc import Sequence

from rich.console import Console
from rich.progress import Progress

from tools.mutants.catalogue import Mutant, MutantError, all_mutants
from tools.mutants.workshop import FAST_SUITE, Workshop, failures_in


def main() -> int:
    """Return the exit status: 0 if every mutant chosen was killed, 1 if not, 2 if none could be tried."""
    options = _options()
    mutants = [mutant for mutant in all_mutants() if any(word in mutant.path for word in options.words)]
    if not mutants:
        print("no mutant has such a name", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that no test goes on, and no copy stays
    with Workshop() as workshop:
        return Trial(workshop, all_tests=options.all_tests).of(mutants)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.mutants", description=__doc__)
    parser.add_argument("words", nargs="*", default=[""], help="only those with one of these in part/name")
    parser.add_argument(
        "--all-tests", action="store_true", help="run the fast suite on each, and say which of its tests fail"
    )
    return parser.parse_args()


class Trial:
    """Tries mutants, and prints a line with the result of each."""

    def __init__(self, workshop: Workshop, *, all_tests: bool) -> None:
        self._workshop = workshop
        self._all_tests = all_tests
        self._console = Console(highlight=False, markup=False, soft_wrap=True)

    def of(self, mutants: Sequence[Mutant]) -> int:
        """Return the exit status."""
        say = self._console.print
        say(f"{len(mutants)} mutants; first, their tests must pass without any")
        healthy = self._workshop.run(self._tests_of(mutants))
        if not healthy.has_passed:
            say(healthy.output)
            return 2
        with Progress(console=self._console, transient=True) as progress:
            killed = sum(map(self._is_killed, progress.track(mutants, description="mutants")))
        say(f"{killed} killed, {len(mutants) - killed} not")
        return int(killed < len(mutants))

    def _tests_of(self, mutants: Sequence[Mutant]) -> list[str]:
        if self._all_tests:
            return FAST_SUITE
        return sorted({test for mutant in mutants for test in mutant.killed_by})

    def _is_killed(self, mutant: Mutant) -> bool:
        say = self._console.print
        try:
            with self._workshop.changed(mutant):
                run = self._workshop.run(self._tests_of([mutant]), until_first_failure=not self._all_tests)
        except MutantError as err:
            say(f"broken  {err}")
            return False
        if run.has_failed:
            killers = f": {', '.join(failures_in(run.output))}" if self._all_tests else ""
            say(f"killed  {mutant.path} ({run.seconds:.0f} s){killers}")
        elif run.has_passed:
            say(f"ALIVE   {mutant.path}: {mutant.harm}")
        else:
            say(f"broken  {mutant.path}, which cannot even be imported:\n{run.output}")
        return run.has_failed


if __name__ == "__main__":
    sys.exit(main())
