"""
Changes of a write key file as text, so that comments and the order of entries stay.
"""

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, NamedTuple

import yaml

from app.auth.key_entries import check_key_file
from dedupe.model.errors import ConfigurationError

Entry = Mapping[str, Any]


class Listed(NamedTuple):
    """An entry of a file, and its lines, from the first on, without the end."""

    fields: Entry
    first_line: int
    end_line: int


class KeyText:
    """The text of a key file that a gateway would read."""

    def __init__(self, path: Path) -> None:
        """Read a file. Raises ConfigurationError: a gateway could not start with it."""
        check_key_file(path)
        self.path = path
        self.text = path.read_text(encoding="utf-8")
        self._root = yaml.compose(self.text, yaml.SafeLoader)
        self._list = _list_in(self._root)
        fields = yaml.safe_load(self.text)
        entries = fields["keys"] if isinstance(fields, dict) else fields
        self.entries = [
            Listed(entry, node.start_mark.line, _last_line(node) + 1)
            for entry, node in zip(entries, self._list.value, strict=True)
        ]

    def changed(self, places: Mapping[int, Entry | None], added: Sequence[Entry] = ()) -> str:
        """
        Return the changed text.

        Args:
            places: by number, from 0 on: what an entry becomes, None: it is removed.
            added: further entries, which become the last ones.
        """
        if self._list.flow_style:  # entries may share a line, as in JSON
            kept = [places.get(number, listed.fields) for number, listed in enumerate(self.entries)]
            return self._written([*(entry for entry in kept if entry is not None), *added])
        lines = self.text.splitlines(keepends=True)
        end = self.entries[-1].end_line
        if not lines[end - 1].endswith("\n"):
            lines[end - 1] += "\n"
        lines[end:end] = [line for entry in added for line in self._lines_of(entry)]
        for number in sorted(places, reverse=True):
            entry, listed = places[number], self.entries[number]
            lines[listed.first_line : listed.end_line] = [] if entry is None else self._lines_of(entry)
        return "".join(lines)

    def _written(self, entries: Sequence[Entry]) -> str:
        document: Any = yaml.safe_load(self.text)
        document = {**document, "keys": list(entries)} if isinstance(document, dict) else list(entries)
        if self.path.suffix == ".json":
            return json.dumps(document, indent=2, ensure_ascii=False) + "\n"
        return yaml.safe_dump(document, sort_keys=False, allow_unicode=True)

    def _lines_of(self, entry: Entry) -> list[str]:
        first = self.text.splitlines()[self.entries[0].first_line]
        indent = first[: len(first) - len(first.lstrip())]
        written = yaml.safe_dump([dict(entry)], sort_keys=False, allow_unicode=True)
        return [f"{indent}{line}\n" for line in written.splitlines()]


def replace_file(path: Path, text: str) -> None:
    """
    Replace a key file by another text at once, if a gateway could use that.

    Raises:
        ConfigurationError: it could not; nothing is changed.
        OSError: the file cannot be written; nothing is changed.
    """
    target = path.resolve()
    with NamedTemporaryFile(
        "w", encoding="utf-8", dir=target.parent, suffix=path.suffix, delete=False
    ) as file:
        draft = Path(file.name)
    try:
        draft.write_text(text, encoding="utf-8")
        check_text(draft)
        shutil.copymode(target, draft)
        owner = target.stat()
        if owner.st_uid != draft.stat().st_uid or owner.st_gid != draft.stat().st_gid:
            os.chown(draft, owner.st_uid, owner.st_gid)
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)


def check_text(draft: Path) -> None:
    """Raise ConfigurationError if a gateway could not use a changed file."""
    try:
        check_key_file(draft)
    except ConfigurationError as err:
        raise ConfigurationError(str(err).replace(f" {draft}", ", once changed")) from None


def patch_of(path: Path, text: str) -> str:
    """Return the patch of a Kubernetes Secret that has the file as an entry."""
    return json.dumps({"stringData": {path.name: text}}, ensure_ascii=False)


def _list_in(root: Any) -> yaml.SequenceNode:
    if isinstance(root, yaml.MappingNode):
        root = next(value for name, value in root.value if name.value == "keys")
    assert isinstance(root, yaml.SequenceNode)
    return root


def _last_line(node: yaml.Node) -> int:
    """Return the line on which an entry ends; the mark of a block is behind blanks and comments."""
    if isinstance(node, yaml.MappingNode) and not node.flow_style:
        return _last_line(node.value[-1][1])
    if isinstance(node, yaml.SequenceNode) and not node.flow_style:
        return _last_line(node.value[-1])
    return node.end_mark.line
