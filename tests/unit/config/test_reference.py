"""The reference of a config's keys: whole, in words that a stranger reads, and to be looked up."""

from __future__ import annotations

import re
from typing import get_args

import pytest
from pydantic import BaseModel

from ecorl.config import Config
from ecorl.config.reference import (
    NOT_SET,
    REQUIRED,
    config_reference,
    matching,
)
from ecorl.errors import UserError

TABLES = config_reference()
KEYS = [key for table in TABLES for key in table.keys]
BY_NAME = {key.name: key for key in KEYS}

SIZES = re.compile(
    r"\b(share|factor|tokens|batches|number|numbers|percent|seed|calls|rows|ratio|weight)\b"
)
"""Words of which a number's meaning has one where the key's name ends with no unit."""


def models_below(annotation, seen):
    """Every model that a type can lead to."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        if annotation not in seen:
            seen.add(annotation)
            for field in annotation.model_fields.values():
                models_below(field.annotation, seen)
    else:
        for part in get_args(annotation):
            models_below(part, seen)


def value_keys(model):
    """The keys of a model that hold values, not tables."""
    keys = set()
    for name, field in model.model_fields.items():
        below = set()
        models_below(field.annotation, below)
        if name != "type" and not below:
            keys.add(name)
    return keys


def test_it_has_every_key_of_every_table():
    seen = set()
    models_below(Config, seen)
    assert len(seen) > 25
    told = [{key.name.rpartition(".")[2] for key in table.keys} for table in TABLES]
    for model in seen:
        assert value_keys(model) in told, model


@pytest.mark.parametrize(
    ("name", "kind", "default", "unit"),
    [
        ("seed", "whole number from 0 to 4,294,967,295", "42", ""),
        ("name", "text that matches ^[A-Za-z0-9._-]+$", '"run"', ""),
        ("run_dir", "path", '"runs/{name}-{seed}"', ""),
        ("task.type", '"arithmetic" or "files"', '"arithmetic"', ""),
        ("task.policy", "path", REQUIRED, ""),
        ("placement.deadline_s", "number above 0 and at most 3,600", "60.0", "s"),
        ("placement.energy_margin", "number of at least 0", NOT_SET, ""),
        ("placement.policy.reward", '"gpu", "fpga" or "concurrent"', '"gpu"', ""),
        ("trainer.widths", "list of whole numbers, each from 1 to 64, not empty", "[1]", ""),
        ("engine.offload.options", "table with keys of any name", "{}", ""),
        ("engine.faults.rows", "list of whole numbers, each of at least 0, not empty", "[0]", ""),
        ("gears.allowed", 'list of "FP32", "FP16", "BF16" or "FP8"', "[]", ""),
        ("accounting.embodied_kg", "number above 0", NOT_SET, "kgCO2e"),
        ("accounting.lifetime_h", "number above 0", "43800.0", "h"),
        ("carbon.threshold_g_per_kwh", "number above 0 and at most 3,000", NOT_SET, "gCO2e/kWh"),
        ("carbon.control.base_w", "number from 0 to 1,000,000,000", "0.0", "W"),
        ("carbon.control.tokens", "number above 0 and at most 1e18", NOT_SET, ""),
        ("carbon.feeds.type", None, REQUIRED, ""),
        ("carbon.soft_deadline", "date and time with offset", NOT_SET, ""),
        ("places.<role>.count", "whole number from 1 to 4,096", NOT_SET, ""),
    ],
)  # fmt: skip
def test_a_key_has_type_limits_default_and_unit(name, kind, default, unit):
    key = BY_NAME[name]
    assert (key.default, key.unit) == (default, unit)
    assert kind is None or key.type == kind


def test_each_number_has_a_unit_in_its_name_or_its_meaning():
    numbers = [key for key in KEYS if re.search(r"\bnumbers?\b", key.type)]
    assert len(numbers) > 50
    without = [key.name for key in numbers if not key.unit and not SIZES.search(key.meaning)]
    assert without == []


RIDDLES = re.compile(r"\b(GPU path|host path|exact path|a[123]|Eq\. \d|EDI matrix|Algorithm 1)\b")


def test_meanings_are_sentences_without_terms_of_the_inside():
    for key in KEYS:
        assert len(key.meaning.split()) >= 2, key
        assert not RIDDLES.search(key.meaning), key
    for table in TABLES:
        assert len(table.meaning.split()) >= 4, table.name
        assert not RIDDLES.search(table.meaning), table.name


def test_tables_stand_before_those_below_them_and_kinds_behind_their_choice():
    places = {}
    for place, table in enumerate(TABLES):
        places.setdefault(table.name, place)
        above = table.name.rpartition(".")[0]
        assert above in places or above == "places"
    kinds = [table.kind for table in TABLES if table.name == "engine.offload"]
    assert kinds == [None, "fpga", "torch", "plugin"]


def test_headers_are_what_a_file_has():
    headers = {table.name: table.header for table in TABLES}
    assert headers[""] == ""
    assert headers["engine.offload"] == "[engine.offload]"
    assert headers["carbon.feeds"] == "[[carbon.feeds]]"
    assert headers["places.<role>"] == "[places.<role>]"


@pytest.mark.parametrize(
    ("asked", "names", "n_keys"),
    [
        ("trainer.steps", {"trainer"}, 1),
        ("seed", {""}, 1),
        ("engine.offload.isolated", {"engine.offload"}, 3),
        ("engine", {"engine", "engine.offload", "engine.faults"}, None),
        ("[engine.offload]", {"engine.offload"}, None),
        ("[[carbon.feeds]]", {"carbon.feeds"}, None),
        ("places", {"places.<role>"}, 4),
        ('[places."reward:math"]', {"places.<role>"}, 4),
        ("places.reward:v1.2.node", {"places.<role>"}, 1),
        ("places.generation.devices", {"places.<role>"}, 1),
    ],
)
def test_a_table_or_a_key_can_be_looked_up(asked, names, n_keys):
    found = matching(TABLES, asked)
    assert {table.name for table in found} == names
    if n_keys is not None:
        assert sum(len(table.keys) for table in found) == n_keys


@pytest.mark.parametrize(
    ("asked", "near"),
    [
        ("steps", "near it: trainer.steps"),
        ("engine.ofload", "near it: engine.offload"),
        ("trainer.stesp", "near it: trainer.steps"),
        ("deadline_s", "near it: placement.deadline_s"),
        ("zzz", "`ecorl config reference` lists them all"),
    ],
)
def test_what_is_not_there_is_refused_with_what_is_near(asked, near):
    with pytest.raises(UserError) as caught:
        matching(TABLES, asked)
    assert repr(asked) in str(caught.value)
    assert near in str(caught.value)
    assert "\n" not in str(caught.value)
