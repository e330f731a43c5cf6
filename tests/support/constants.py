"""
Gateways with other constants: tests shorten times that operators cannot set.

A constant is named as MODULE:NAME, in the module that uses it, or as MODULE:CLASS.FIELD if it is the
default of a dataclass. `python -m tests.support.constants JSON ARGUMENT...` runs `gateway ARGUMENT...`.
"""

import dataclasses
import importlib
import json
import sys
from collections.abc import Mapping
from typing import TypeAlias

Constants: TypeAlias = Mapping[str, float]

NO_LINGER: Constants = {"app.main:DRAIN_LINGER_S": 0}
"""A gateway that stops at once: none of its clients waits for a last answer."""
NO_DELAY: Constants = {"app.round:DELAY_S": 0}
"""A gateway that answers refusals at once, to tests that cause many."""
IMPATIENT: Constants = {"dedupe.partition.context:LaneTimes.backoff_max_s": 0.3}
"""A gateway whose failed partitions try again soon."""


def command_with(constants: Constants) -> list[str]:
    """Return a command line that runs `gateway` with other constants."""
    return [sys.executable, "-m", __name__, json.dumps(constants)]


def change(constants: Constants) -> None:
    """Give constants of this process other values. Raises AttributeError: there is none of the name."""
    for path, value in constants.items():
        module_name, _, names = path.partition(":")
        name, _, field = names.partition(".")
        module = importlib.import_module(module_name)
        before = getattr(module, name)
        if field:
            _change_default(before, field, value)
        else:
            setattr(module, name, value)


def _change_default(kind: type, field: str, value: float) -> None:
    names = [each.name for each in dataclasses.fields(kind) if each.default is not dataclasses.MISSING]
    init = kind.__init__  # type: ignore[misc]
    defaults = dict(zip(names, init.__defaults__, strict=True))
    if field not in defaults:
        raise AttributeError(f"{kind.__name__} has no default of {field}")
    init.__defaults__ = tuple((defaults | {field: value}).values())


def main() -> None:
    """Run the command line with other constants."""
    change(json.loads(sys.argv[1]))
    from app.cli.commands import main as gateway

    sys.argv = ["gateway", *sys.argv[2:]]
    gateway()


if __name__ == "__main__":
    main()
