"""No text of the package itself has a second name for where the framework computes."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import ecorl
import roll_adapters
from ecorl.config import Config

SECOND_NAMES = re.compile(r"\b(?:GPU|host|exact|FPGA) path\b|guards leave")
ROOTS = [Path(package.__path__[0]) for package in (ecorl, roll_adapters)]


def texts(path):
    """The strings of a module that are no docstrings."""
    tree = ast.parse(path.read_text("utf-8"))
    notes = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in notes:
            yield node.value


def test_no_string_of_a_module_has_them():
    modules = [p for root in ROOTS for p in root.rglob("*.py")]
    assert len(modules) > 500
    found = [
        f"{p}: {text}"
        for p in modules
        if "/bench/" not in p.as_posix()
        for text in texts(p)
        if SECOND_NAMES.search(text)
    ]
    assert found == []


def test_no_template_has_them():
    templates = [p for root in ROOTS for p in root.rglob("templates/*.html")]
    assert len(templates) > 3
    assert [p for p in templates if SECOND_NAMES.search(p.read_text("utf-8"))] == []


def descriptions(schema):
    """All descriptions of the config's fields and tables."""
    if isinstance(schema, dict):
        told = schema.get("description")
        yield from [told] if isinstance(told, str) else []
        schema = list(schema.values())
    if isinstance(schema, list):
        for part in schema:
            yield from descriptions(part)


def test_the_config_names_no_path_and_no_formula_of_the_paper():
    fields = Config.model_json_schema(by_alias=True)
    own = [
        told
        for model in fields["$defs"].values()
        for told in descriptions(model.get("properties", {}))
    ]
    assert len(own) > 50
    assert [
        t for t in own if SECOND_NAMES.search(t) or re.search(r"\bEq\. ?\d|\ba[123]\b", t)
    ] == []
