"""What the product makes of recorded runs is what it made of them when they were recorded."""

from __future__ import annotations

import json
import sqlite3

import pytest

from ecorl.ledger.schema import SCHEMA_VERSION
from tests.recorded.convert import STEPS, convert
from tests.recorded.dump import dump, layout, rebuild
from tests.recorded.make import MOST_BYTES, RECIPES, SETS
from tests.recorded.outputs import OUTPUTS, differences, made, page_figures

DUMPS = sorted(SETS.rglob("*.sql"))


@pytest.mark.parametrize("name", RECIPES)
def test_outputs_are_as_recorded(name, tmp_path, recorded):
    texts = made(name, tmp_path)
    assert set(texts) == set(OUTPUTS)
    for file, text in texts.items():
        recorded(text, SETS / name / file)


@pytest.mark.parametrize("path", DUMPS, ids=lambda p: str(p.relative_to(SETS)))
def test_dumps_are_canonical_and_of_this_version(path, tmp_path):
    text = path.read_text("utf-8")
    rebuild(text, tmp_path / "ledger.sqlite")
    assert dump(tmp_path / "ledger.sqlite") == text
    assert len(text.encode()) <= MOST_BYTES
    assert layout(text) == layout(convert(text)), "run `python -m tests.recorded.convert`"


def test_a_dump_of_this_version_is_converted_to_itself():
    text = DUMPS[0].read_text("utf-8")
    assert convert(text) == text


def test_a_dump_of_an_earlier_version_is_carried_over(monkeypatch):
    text = (SETS / "plain" / "ledger.sql").read_text("utf-8")
    old = text.replace(f"user_version = {SCHEMA_VERSION}", f"user_version = {SCHEMA_VERSION - 1}")
    old = old.replace("name TEXT NOT NULL, value REAL,", "called TEXT NOT NULL, value REAL,")
    assert old.count("called") == 1
    with pytest.raises(ValueError, match="no place for called of metric"):
        convert(old)
    step = "ALTER TABLE metric RENAME COLUMN called TO name"
    monkeypatch.setitem(STEPS, SCHEMA_VERSION, lambda db: db.execute(step))
    assert convert(old) == text


def test_a_dump_keeps_every_value(tmp_path):
    values = [
        None,
        0.1 + 0.2,
        -1e-320,
        float("inf"),
        2**62,
        "it's\n(1);\n",
        "",
        b"\x00'",
        1795944224.0538359,
    ]
    with sqlite3.connect(tmp_path / "one.sqlite") as db:
        db.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, value)")
        db.executemany("INSERT INTO t (value) VALUES (?)", [(v,) for v in values])
    text = dump(tmp_path / "one.sqlite")
    rebuild(text, tmp_path / "two.sqlite")
    with sqlite3.connect(tmp_path / "two.sqlite") as db:
        assert [v for (v,) in db.execute("SELECT value FROM t ORDER BY id")] == values
    assert dump(tmp_path / "two.sqlite") == text


def test_each_kind_of_run_is_there():
    """What each set is for is in it."""
    told = {n: json.loads((SETS / n / "report.json").read_text("utf-8")) for n in RECIPES}
    assert {name: r["head"]["state"] for name, r in told.items()} == {
        name: "killed" if name == "killed" else "finished" for name in RECIPES
    }
    assert told["resumed"]["head"]["n_attempts"] == 2


def test_a_figure_that_differs_is_told():
    assert (
        differences('{"a": [1.0, {"b": 2}]}', '{"a": [1.0000000000000002, {"b": 2}]}', "x.json")
        == []
    )
    assert differences('{"a": [1.0, {"b": 2}]}', '{"a": [1.00000000001, {"b": 3}]}', "x.json") == [
        "x.json a 0: 1.0, was 1.00000000001", "x.json a 1 b: 2, was 3",
    ]  # fmt: skip
    assert differences('{"a": 1}', '{"b": 1}', "x.json") == ["x.json a: new", "x.json b: gone"]
    assert differences('{"a": 1}', '{"a": 1.0}', "x.json") == ["x.json a: 1, was 1.0"]
    assert differences("a,1\n", "a,2\n", "x.csv") == ["x.csv:1: 'a,1', was 'a,2'"]
    assert differences("a\nb\n", "a\n", "x.csv") == ["x.csv: 2 lines, were 1"]


def test_figures_of_a_page_are_those_that_a_reader_sees():
    page = (
        "<style>p {width: 7px}</style><h2>Energy</h2><p>at <b>3.1e-05</b> kWh, 1,200 J, "
        "2.5x, gpu0, \u22124 %</p>"
        "<svg width='9'><text>80</text></svg><h2>Notes</h2><p>none</p>"
    )
    assert page_figures(page) == {"Energy": "3.1e-05 1,200 2.5 \u22124 80"}
