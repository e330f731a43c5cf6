"""`python -m clients.python.single_file` writes the package as one file, to be copied into a project."""

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

HERE = Path(__file__).parent
PACKAGE = HERE / "src" / "gateway_client"
SINGLE_FILE = HERE / "gateway_client.py"

HEAD = '''"""
A client that keeps each event in a file until the gateway has it: none is lost, none is stored twice.

Copy this file into your project; it needs Python 3.11 and httpx. It is written by single_file.py from the
package in src: change that. README.md says what an application must know.
"""
'''


def written_anew() -> str:
    """Return the file as the package says it now."""
    imports, parts, seen = defaultdict[str, set[str]](set), list[str](), dict[str, str]()
    for path in _in_order():
        source = path.read_text(encoding="utf-8")
        tree = ast.parse(source)
        lines = source.splitlines()
        first = next(node for node in tree.body[1:] if not isinstance(node, ast.Import | ast.ImportFrom))
        for node in tree.body:
            if isinstance(node, ast.Import):
                for alias in node.names:
                    imports.setdefault(alias.name, set())
            elif isinstance(node, ast.ImportFrom) and not node.level:
                imports[node.module or ""] |= {alias.name for alias in node.names}
            for name in _names_of(node):
                text = ast.unparse(node)
                if seen.setdefault(name, text) != text:
                    raise ValueError(f"{name} of {path.name} is another one in a module before")
        about = f"---- {path.stem}: {ast.get_docstring(tree)}"
        parts.append("".join(f"# {line}".rstrip() + "\n" for line in about.splitlines()))
        parts.append("\n".join(lines[_begin_of(first) - 1 :]) + "\n")
    return f"{HEAD}\n{_as_text(imports)}\n" + "\n\n".join(parts)


def _in_order() -> list[Path]:
    """Return the modules, each behind those that it imports."""
    done: list[Path] = []

    def visit(path: Path) -> None:
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ImportFrom) and node.level:
                visit(PACKAGE / f"{node.module}.py")
        if path not in done:
            done.append(path)

    visit(PACKAGE / "__init__.py")
    return done[:-1]


def _as_text(imports: Mapping[str, set[str]]) -> str:
    """Return import statements in the order of the linter."""
    plain = [f"import {module}\n" for module, names in sorted(imports.items()) if not names]
    named = [
        f"from {module} import {', '.join(sorted(names, key=_rank))}\n"
        for module, names in sorted(imports.items())
        if names
    ]
    return "".join([*(line for line in plain if "httpx" not in line), *named, "\n", "import httpx\n"])


def _rank(name: str) -> tuple[bool, bool, str]:
    """Constants, then classes, then functions, without regard to case."""
    return not name.isupper(), not name[0].isupper(), name.lower()


def _names_of(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, ast.ClassDef | ast.FunctionDef):
        yield node.name
    elif isinstance(node, ast.Assign | ast.AnnAssign):
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            yield from (name.id for name in ast.walk(target) if isinstance(name, ast.Name))


def _begin_of(node: ast.stmt) -> int:
    """Return the line of a statement or of its first decorator; comments above it are left out."""
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(decorator.lineno for decorator in decorators)])


def main() -> None:
    """Write the file."""
    SINGLE_FILE.write_text(written_anew(), encoding="utf-8")


if __name__ == "__main__":
    main()
