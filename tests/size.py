"""How much there is to read, and whether it is more than pyproject.toml allows: ``make size``.

    python -m tests.size [FOLDER ...]

Table ``[tool.ecorl.size]`` of pyproject.toml holds a folder's budgets by what is counted:

    code       lines with something on them that is neither comment nor docstring
    files      Python files with such a line
    records    classes that hold data: dataclass, attrs, NamedTuple, TypedDict, and a pydantic model
               outside of the rooms called config, whose tables have to be models
    words      of docstrings, and of the strings that explain constants
    templates  lines of Jinja, HTML, SQL, CSS and JavaScript that are not empty

One line on standard error for each budget that is passed, and exit code 1. Rooms of folders that
are named are told as well.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
KINDS = ("code", "files", "records", "words", "templates")
TEMPLATES = {".jinja", ".j2", ".html", ".sql", ".css", ".js"}

_LAYOUT = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
    tokenize.ENCODING, tokenize.ENDMARKER,
}  # fmt: skip
"""Kinds of tokens that make no line a code line."""
_DECORATORS = re.compile(r"dataclass|attrs\.|attr\.s|define")
_BASES = {"NamedTuple", "TypedDict"}


def size_of_source(text: str, *, is_config: bool = False) -> Counter[str]:
    """Count a Python file.

    Args:
        text: of the file.
        is_config: whether its pydantic models are tables of a config.
    """
    tree = ast.parse(text)
    documents = [node for body in _bodies(tree) for node in body if _is_text(node)]
    documented = {line for node in documents for line in _lines(node)}
    code = _code_lines(text) - documented
    return Counter(
        code=len(code),
        files=int(bool(code)),
        records=sum(_is_record(node, is_config) for node in ast.walk(tree)),
        words=sum(len(re.findall(r"\w+", node.value.value)) for node in documents),
    )


def _bodies(tree: ast.Module) -> Iterator[list[ast.stmt]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.body


def _is_text(node: ast.stmt) -> bool:
    """Whether a statement is a string that stands alone."""
    value = node.value if isinstance(node, ast.Expr) else None
    return isinstance(value, ast.Constant) and isinstance(value.value, str)


def _lines(node: ast.stmt) -> range:
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


def _code_lines(text: str) -> set[int]:
    return {
        line
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type not in _LAYOUT
        for line in range(token.start[0], token.end[0] + 1)
    }


def _is_record(node: ast.AST, is_config: bool) -> bool:
    if isinstance(node, ast.Call):
        return ast.unparse(node.func).rpartition(".")[2] == "namedtuple"
    if not isinstance(node, ast.ClassDef):
        return False
    bases = {ast.unparse(base).rpartition(".")[2] for base in node.bases}
    is_model = "BaseModel" in bases and not is_config
    decorators = map(ast.unparse, node.decorator_list)
    return bool(bases & _BASES) or is_model or any(map(_DECORATORS.search, decorators))


def sizes(folder: Path) -> dict[str, Counter[str]]:
    """Count the rooms of a folder by their names; what lies in the folder itself is room ``.``.

    Args:
        folder: searched with all below it, but for what begins with a dot.
    """
    rooms: dict[str, Counter[str]] = {}
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder).parts
        if any(part.startswith(".") for part in inside) or not path.is_file():
            continue
        room = rooms.setdefault(inside[0] if len(inside) > 1 else ".", Counter())
        if path.suffix == ".py":
            text = path.read_text("utf-8")
            room.update(size_of_source(text, is_config="config" in path.parts))
        elif path.suffix in TEMPLATES:
            lines = path.read_text("utf-8", "replace").splitlines()
            room["templates"] += sum(bool(line.strip()) for line in lines)
    return rooms


def total(rooms: dict[str, Counter[str]]) -> Counter[str]:
    """The sum over rooms."""
    return sum(rooms.values(), Counter())


def passed(folder: str, found: Counter[str], budget: dict[str, int]) -> list[str]:
    """A line for each budget of a folder that is passed.

    Raises:
        KeyError: for a budget of something that is not counted.
    """
    unknown = budget.keys() - set(KINDS)
    if unknown:
        raise KeyError(f"[tool.ecorl.size] {folder}: {', '.join(sorted(unknown))}")
    units = {"code": "code lines", "words": "docstring words", "templates": "template lines"}
    return [
        f"{folder}: {found[kind]:,} {units.get(kind, kind)}, budget {most:,}"
        for kind, most in budget.items()
        if found[kind] > most
    ]


def main(folders: list[str]) -> int:
    """Print the sizes; returns the exit code."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    budgets = project["tool"]["ecorl"]["size"]
    print(f"{'':28}" + "".join(f"{kind:>11}" for kind in KINDS))
    over: list[str] = []
    for folder in folders or budgets:
        rooms = sizes(ROOT / folder)
        if folders:
            for name, counts in sorted(rooms.items(), key=lambda item: -item[1]["code"]):
                _print(f"  {folder}/{name}", counts)
        found = total(rooms)
        _print(folder, found)
        over += passed(folder, found, budgets.get(folder, {}))
    for line in over:
        print(line, file=sys.stderr)
    return int(bool(over))


def _print(name: str, counts: Counter[str]) -> None:
    print(f"{name:28}" + "".join(f"{counts[kind]:11,}" for kind in KINDS))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
