"""
Claim: commands share their options and their ways of printing, each says how it is used by an example that
can be typed, and none needs more than a moment to say so.
"""

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
import typer.main
import yaml

from app.cli.commands import app
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


ROOT_FOLDER = Path(__file__).parents[3]
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


def type_in(words: list[str]) -> None:
    """Parse a command line as the command would, and run nothing. Raises what typer does of wrong ones."""
    command, arguments = ROOT, words[1:]
    while hasattr(command, "commands") and arguments:
        command, arguments = command.commands[arguments[0]], arguments[1:]
    if "<" in arguments:  # what a shell would open
        arguments = arguments[: arguments.index("<")]
    if not hasattr(command, "commands") and "--help" not in arguments:
        command.make_context(" ".join(words), list(arguments))


@pytest.mark.parametrize("name", COMMANDS)
def test_examples_can_be_typed(name: str) -> None:
    text = COMMANDS[name].help.partition("Example")[2]
    examples = re.findall(r"`(gateway .*?)`|^ +(gateway .*)$", text, flags=re.MULTILINE)
    assert examples, f"gateway {name} --help has no example"
    for span, line in examples:
        type_in(shlex.split(span or line))


def test_commands_of_the_documents_can_be_typed() -> None:
    """Those with all their arguments; a name such as `gateway lookup` alone is none."""
    wrong = []
    for document in (*ROOT_FOLDER.glob("docs/**/*.md"), ROOT_FOLDER / "README.md"):
        text = document.read_text(encoding="utf-8")
        spans = re.findall(r"`(gateway [a-z]+ [^`\n]+)`", text)
        blocks = "\n".join(re.findall(r"^```sh\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL))
        lines = re.findall(r"^ *(?:\.venv/bin/)?(gateway [a-z]+ .+)$", blocks, flags=re.MULTILINE)
        for command in (*spans, *lines):
            alone = re.split(r" [|>] ", command)[0]
            words = shlex.split(alone.replace("$(date -u +%F)", "2026-01-31"), comments=True)
            if words[1] not in ROOT.commands:
                continue  # a sentence
            try:
                type_in(words)
            except Exception as err:
                if not (words[-1].startswith("--") and "requires an argument" in str(err)):  # its name alone
                    wrong.append((document.name, command, str(err)))
    assert wrong == []


def test_options_of_one_name_are_told_alike() -> None:
    told: dict[str, set[tuple[Any, ...]]] = {}
    for command in COMMANDS.values():
        for option in command.params:
            if option.name == "output":
                told.setdefault(option.name, set()).add(tuple(sorted(option.opts)))
            elif option.name == "admin_token":
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
