"""
Records what an event costs now: the one command after a change that is meant to cost more, or less.

    .venv/bin/python -m loadtests.guard
"""

from loadtests.guard.cost import OFF, REQUIRED, ways
from loadtests.guard.record import key_of, measured, write


def main() -> None:
    """Count in every way that this machine has, and write it down."""
    recorded = {}
    for native in (OFF, REQUIRED):
        for way in ways(native):
            key = key_of(way, native)
            recorded[key] = cost = measured(way, native=native)
            print(f"{key}: {cost.new:,.1f} a new event, {cost.again:,.1f} sent again", flush=True)
    write(recorded)


if __name__ == "__main__":
    main()
