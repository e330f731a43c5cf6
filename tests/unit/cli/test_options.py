"""
Claim: commands share their options and their ways of printing, each says how it is used by an example that
can be typed, and none needs more than a moment to say so.
"""

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import click
import orjson
import pytest
import typer.main
import yaml

from app.cli.commands import app
from app.cli.group import rows_of
from app.cli.options import Format, print_document, print_rows, table_of

ROWS: list[dict[str, Any]] = [
    {"worker": "a", "answers": True, "serves": [0, 1], "received": 12},
    {"worker": "b", "answers": False, "why": "no\x1banswer"},
]
SLOW = ("httpx", "aiokafka", "pydantic_settings", "rocksdict", "uvloop", "prometheus_client", "orjson")


def commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Yield every command that can be typed, by its name."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        else:
            yield " ".join((*path, name)), command


ROOT: Any = typer.main.get_command(app)
COMMANDS = dict(commands(ROOT))


def test_table_has_aligned_columns_and_no_control_characters() -> None:
    assert table_of(ROWS).splitlines() == [
        "WORKER  ANSWERS  SERVES  RECEIVED  WHY",
        "a           yes  0,1           12",
        "b            no                    no?answer",
    ]
    assert table_of([]) == ""


@pytest.mark.parametrize("output", [None, Format.JSON])
def test_json_is_a_line_each_also_where_there_is_no_terminal(
    capfdbinary: pytest.CaptureFixture[bytes], output: Format | None
) -> None:
    print_rows(ROWS, output)
    assert [orjson.loads(line) for line in capfdbinary.readouterr().out.splitlines()] == ROWS


def test_yaml_is_one_list(capfd: pytest.CaptureFixture[str]) -> None:
    print_rows(ROWS, Format.YAML)
    assert yaml.safe_load(capfd.readouterr().out) == ROWS


def test_document_is_a_line_each_field(capfd: pytest.CaptureFixture[str]) -> None:
    document = {"seen": True, "record": {"partition": 3, "offset": 17}, "age_seconds": 1.5}
    print_document(document, Format.TABLE)
    assert [line.split() for line in capfd.readouterr().out.splitlines()] == [
        ["seen", "yes"],
        ["record.partition", "3"],
        ["record.offset", "17"],
        ["age_seconds", "1.5"],
    ]
    print_document(document, Format.YAML)
    assert yaml.safe_load(capfd.readouterr().out) == document


def test_group_has_a_row_for_each_worker() -> None:
    def part(partition: int, state: str, *, caught_up: bool = False) -> dict[str, Any]:
        return {"partition": partition, "state": state, "caught_up": caught_up}

    stats = {
        "partitions": [part(0, "active"), part(1, "unassigned", caught_up=True), part(2, "restoring")],
        "group": {"leaving": False},
        "totals": {"received": 5},
    }
    assert rows_of({"silent": {"b": "gone"}, "workers": {"a": stats}}) == [
        {"worker": "b", "answers": False, "why": "gone"},
        {"worker": "a", "answers": True, "leaving": False, "serves": [0], "follows": [1], "received": 5},
    ]


@pytest.mark.parametrize("name", COMMANDS)
def test_examples_can_be_typed(name: str) -> None:
    text = COMMANDS[name].help.partition("Example:")[2]
    examples = [shlex.split(found) for found in re.findall(r"`(gateway .*?)`", text)]
    assert examples, f"gateway {name} --help has no example"
    for example in examples:
        words = [word.partition("<")[0] for word in example if word != "<"]
        command, arguments = ROOT, words[1:]
        while hasattr(command, "commands"):
            command, arguments = command.commands[arguments[0]], arguments[1:]
        if "<" in example:  # what a shell would open
            arguments = arguments[:-1]
        try:
            command.make_context(name, list(arguments))
        except click.ClickException as err:
            pytest.fail(f"{' '.join(example)}: {err.format_message()}")


def test_options_of_one_name_are_told_alike() -> None:
    told: dict[str, set[tuple[Any, ...]]] = {}
    for command in COMMANDS.values():
        for option in command.params:
            if option.name in {"admin_token", "output"}:
                told.setdefault(option.name, set()).add((tuple(option.opts), option.envvar, option.help))
            elif option.name == "url":
                told.setdefault(str(option.envvar), set()).add((tuple(option.opts), option.help))
    assert set(told) == {"admin_token", "output", "GATEWAY_ADMIN_URL", "GATEWAY_URL"}
    assert {name: len(ways) for name, ways in told.items()} == dict.fromkeys(told, 1)


def test_help_loads_nothing_that_takes_time() -> None:
    program = (
        "import sys; from app.cli import main\n"
        "sys.argv[1:] = ['lookup', '--help']\n"
        "try: main()\n"
        "finally: print(sorted(set(sys.argv[2:]) | {name for name in sys.modules if '.' not in name}))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = set(re.findall(r"'(\w+)'", done.stdout.splitlines()[-1]))
    assert "typer" in loaded
    assert loaded.isdisjoint(SLOW)
