"""What the project's own files promise: declared dependencies, and `make help`."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
NOT_ON_PYPI = {"pyxrt", "roll"}
"""What comes with the card's own runtime, and the RLHF framework ROLL: asked for where it is used.
PyPI's project `roll` is another one."""


def imported(folder: Path) -> set[str]:
    """Top-level names of all imports below a folder, those inside functions too."""
    found = set()
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found.add(node.module.partition(".")[0])
    return found


def declared() -> set[str]:
    groups = [PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()]
    needs = [need for group in groups for need in group]
    return {re.match(r"[\w.-]+", need)[0].lower().replace("_", "-") for need in needs}


def test_every_package_that_is_imported_is_declared():
    own = {"ecorl", "roll_adapters", "hls_kernels"}
    names = imported(ROOT / "ecorl") | imported(ROOT / "roll_adapters")
    names -= own | set(sys.stdlib_module_names) | NOT_ON_PYPI
    assert {"pydantic", "torch", "jinja2"} <= names
    known = packages_distributions()
    missing = {
        name
        for name in names
        if not {d.lower().replace("_", "-") for d in known.get(name, [name])} & declared()
    }
    assert not missing
    assert not declared() & NOT_ON_PYPI


def test_make_help_tells_every_target_for_users():
    text = (ROOT / "Makefile").read_text()
    told = re.findall(r"^# make (\S+)  +\S", text, re.MULTILINE)
    assert {"demo", "test", "bench", "bench-long", "wheel", "clean"} <= set(told)
    for target in told:
        assert re.search(rf"^{target}:", text, re.MULTILINE), target
