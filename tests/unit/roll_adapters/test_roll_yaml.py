"""Edits of YAML text: what is asked for changes, and nothing else does."""

from __future__ import annotations

import copy
import re

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ecorl.errors import ConfigError
from roll_adapters.roll.config.yaml_text import line_of, load, scalar_at, with_block, with_value
from tests.examples import examples

CONFIG = """\
# a job
exp_name: "job"   # its name
anchors:
  model: &model {dtype: bf16, path: '${oc.env:POLICY}'}
  worker: &worker my.Worker
actor:
  model_args: *model
  device_mapping: list(range(0,8))
rewards:

  # the first
  math:
    worker_cls: *worker      # aliased
    tags: [a, 'b', {deep: "x"}]
  code:   # the second
    <<: *model
    worker_cls: 'roll.Reward'
    note: |
      two
      lines
    empty:
  größe: 1
files:
  - one.json
  - name: two.json
    share: 0.5
"""


# ---------------------------------------------------------------- lines and values


@pytest.mark.parametrize(
    ("parts", "line"),
    [
        (["exp_name"], 2),
        (["anchors", "worker"], 5),
        (["actor", "device_mapping"], 8),
        (["actor", "model_args", "dtype"], 4),  # where the alias points to
        (["actor", "model_args", "nothing"], 7),
        (["rewards", "math", "tags", 1], 14),
        (["rewards", "math", "tags", 2, "deep"], 14),
        (["rewards", "math", "tags", 3], 14),
        (["rewards", "code", "path"], 4),  # merged
        (["rewards", "code", "empty"], 21),
        (["rewards", "code", "empty", "below"], 21),
        (["rewards", "größe"], 22),
        (["files", 1, "share"], 26),
        (["files", 1], 25),
        (["files", 7], 23),
        (["files", "name"], 23),
        (["nothing", "at", "all"], None),
        ([], None),
    ],
)
def test_line_of_a_key_or_of_the_mapping_around_it(parts, line):
    assert line_of(CONFIG, parts) == line
    assert line_of(CONFIG.replace("\n", "\r\n"), parts) == line


def test_the_last_of_two_equal_keys_counts():
    text = "a: 1\na: 2\n"
    assert line_of(text, ["a"]) == 2
    assert yaml.safe_load(with_value(text, ["a"], "x")) == {"a": "x"}


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n", "- a\n", "just text\n"])
def test_a_text_without_keys_has_no_line(text):
    assert line_of(text, ["a"]) is None


@pytest.mark.parametrize(
    ("parts", "value"),
    [
        (["exp_name"], "job"),
        (["anchors", "model", "path"], "${oc.env:POLICY}"),
        (["rewards", "math", "worker_cls"], "my.Worker"),
        (["rewards", "code", "worker_cls"], "roll.Reward"),
        (["rewards", "code", "dtype"], "bf16"),
        (["rewards", "code", "note"], "two\nlines\n"),
        (["rewards", "code", "empty"], ""),
        (["files", 1, "share"], "0.5"),
        (["files"], None),
        (["rewards", "nothing"], None),
    ],
)
def test_a_value_as_it_is_written(parts, value):
    assert scalar_at(CONFIG, parts) == value


def test_dates_stay_text():
    # PyYAML by itself fails on the second.
    assert load("a: 2024-01-01\nb: 2024-13-45\n") == {"a": "2024-01-01", "b": "2024-13-45"}


def test_a_mapping_that_merges_itself_is_looked_through_once():
    assert line_of("a: &a\n  <<: *a\n", ["a", "b"]) == 1


# ---------------------------------------------------------------- values


@pytest.mark.parametrize(
    ("parts", "value", "old", "new"),
    [
        (["exp_name"], "run 2", '"job"   # its', '"run 2"   # its'),
        (["rewards", "code", "worker_cls"], "it's", "'roll.Reward'", "'it''s'"),
        (["rewards", "math", "worker_cls"], "a.B", "*worker      # ali", "a.B      # ali"),
        (["anchors", "worker"], "a.B", "&worker my.Worker", "&worker a.B"),
        (["rewards", "math", "tags", 0], "c", "[a, ", "[c, "),
        (["rewards", "math", "tags", 2, "deep"], "y", '{deep: "x"}', '{deep: "y"}'),
        (["actor", "device_mapping"], "[0]", "list(range(0,8))", '"[0]"'),
        (["rewards", "größe"], "2", "größe: 1", 'größe: "2"'),
        (["rewards", "code", "empty"], "x", "    empty:\n", "    empty: x\n"),
        (["rewards", "code", "note"], "x", "|\n      two\n      lines\n", "x\n"),
        (["files", 0], "yes", "one.json", '"yes"'),
    ],
)
def test_a_value_is_replaced_where_it_stands(parts, value, old, new):
    assert CONFIG.count(old) == 1
    found = with_value(CONFIG, parts, value)
    assert found == CONFIG.replace(old, new)
    assert scalar_at(found, parts) == value


@pytest.mark.parametrize(
    ("text", "parts", "new"),
    [
        ("a:\n  b: 1 # c\n# end\nd: 2\n", ["a", "k"], "a:\n  b: 1 # c\n  k: v\n# end\nd: 2\n"),
        ("a:\n  b:\n    - 1\n", ["a", "k"], "a:\n  b:\n    - 1\n  k: v\n"),
        ("a:\n- b: 1\n", ["a", 0, "k"], "a:\n- b: 1\n  k: v\n"),
        ("a: 1", ["k"], "a: 1\nk: v"),
        ("a: 1\r\nb: 2\r\n", ["k"], "a: 1\r\nb: 2\r\nk: v\r\n"),
        ("a: {b: 1, }\n", ["a", "k"], "a: {b: 1, k: v, }\n"),
        ("a: {b}\n", ["a", "k"], "a: {b, k: v}\n"),
        ("a: { }\n", ["a", "k"], "a: { k: v}\n"),
        ("a:\n  b: |\n    x\n\nc: 1\n", ["a", "k"], "a:\n  b: |\n    x\n\n  k: v\nc: 1\n"),
        ("a:\n  b: |\n    x", ["a", "k"], "a:\n  b: |-\n    x\n  k: v\n"),
        ("x: &x {k: 1}\na:\n  <<: *x\n", ["a", "k"], "x: &x {k: 1}\na:\n  <<: *x\n  k: v\n"),
        ("? a\n: b\n", ["k"], "? a\n: b\nk: v\n"),
        ("a: 1\n", ["1"], 'a: 1\n"1": v\n'),
    ],
)
def test_a_missing_key_is_added_at_the_end_of_its_mapping(text, parts, new):
    found = with_value(text, parts, "v")
    assert found == new
    assert scalar_at(found, parts) == "v"


@pytest.mark.parametrize(
    ("text", "parts", "new"),
    [
        ("{a, b: }", ["a"], "{a: v, b: }"),
        ("{a, b: }", ["b"], "{a, b: v }"),
        ("a: !!int 3\n", ["a"], "a: v\n"),
        ("a: !!str # c\n", ["a"], "a: v # c\n"),
        ('a: !!str &x "3"\nb: *x\n', ["a"], 'a: &x "v"\nb: *x\n'),
        ("a: &x\nb: *x\n", ["a"], "a: &x v\nb: *x\n"),
        ("a: >+  # note\n  text\n\nb: 1\n", ["a"], "a: v  # note\n\nb: 1\n"),
        ("-\n- b\n", [0], "- v\n- b\n"),
        ("a: one\n  two # c\n", ["a"], "a: v # c\n"),
        ("? a\n: b\n", ["a"], "? a\n: v\n"),
    ],
)
def test_rare_ways_to_write_a_value(text, parts, new):
    assert with_value(text, parts, "v") == new
    assert scalar_at(new, parts) == "v"


@pytest.mark.parametrize(
    ("parts", "value", "line"),
    [
        (["rewards", "math"], "a mapping", 12),
        (["actor", "model_args"], "a mapping", 7),
        (["files"], "a list", 23),
        (["nothing", "below"], None, None),
        (["rewards", "nothing", "below"], None, 9),
        (["exp_name", "below"], None, 2),
        (["files", 9], None, 23),
        (["files", -1], None, 23),
        ([], "a mapping", None),
    ],
)
def test_where_no_value_can_stand_the_key_is_named(parts, value, line):
    with pytest.raises(ConfigError) as caught:
        with_value(CONFIG, parts, "x", "job.yaml")
    found = caught.value
    assert (found.key, found.value) == (".".join(map(str, parts)), value)
    assert (found.path, found.line) == ("job.yaml", line)


def test_a_question_mark_without_an_answer_is_no_place(snapshot):
    lines = []
    for text, place in (("? a\n? b\n", ["a"]), ("[a: 1]\n", [0, "k"])):
        with pytest.raises(ConfigError) as caught:
            with_value(text, place, "v")
        lines.append(str(caught.value))
    snapshot("\n".join(lines))


# ---------------------------------------------------------------- blocks

BLOCK = "# ours\necorl:\n  name: job\n\n  run_dir: x\n"


@pytest.mark.parametrize(
    ("before", "between"),
    [
        ("", ""),
        ("# nothing yet\n", "\n"),
        ("a: 1\n", "\n"),
        ("a: 1", "\n\n"),
        ("a: 1\n\n", ""),
        ("a: 1\n\n\n# end\n", "\n"),
        ("a: 1\n  ", "\n"),
        ("---\n", "\n"),
        ("a: |+\n  x\n", ""),
        ("a: |+ # n\n  x\n\n", ""),
        ("a: |2\n    x\n", "\n"),
        ("a: [1,\n  2]   # c\n", "\n"),
    ],
)
def test_a_block_is_appended(before, between):
    found = with_block(before, BLOCK)
    head = before.rstrip(" ")
    assert found == head + between + BLOCK + before[len(head) :]
    data = yaml.safe_load(found)
    assert data.pop("ecorl") == {"name": "job", "run_dir": "x"}
    assert data == (yaml.safe_load(before) or {})


def test_a_block_has_the_line_ends_and_the_indentation_of_the_text():
    assert with_block("a: 1\r\n", "e:\n  f: 1\n") == "a: 1\r\n\r\ne:\r\n  f: 1\r\n"
    assert with_block("  a: 1\n", "e:\n\n  f: 1\n") == "  a: 1\n\n  e:\n\n    f: 1\n"


def test_a_block_stands_before_the_end_of_the_document():
    assert with_block("---\na: 1\n...\n# c\n", "e: 1") == "---\na: 1\n\ne: 1\n...\n# c\n"


@pytest.mark.parametrize("sign", ["|", "|+", "|-", ">", "|1"])
def test_a_last_text_without_a_line_end_keeps_none(sign):
    text = f"a:\n - b: {sign}  # c\n    x"
    found = yaml.safe_load(with_block(text, "e: 1"))
    assert found.pop("e") == 1
    assert found == yaml.safe_load(text)


@pytest.mark.parametrize("text", ["{a: 1}\n", "- a\n", "text\n", "# c\n[a]\n"])
def test_nothing_can_be_appended_to_what_is_no_block_of_keys(text):
    with pytest.raises(ConfigError) as caught:
        with_block(text, BLOCK, "job.yaml")
    assert caught.value.key == "(top level)"
    assert caught.value.line == text.count("\n")


# ---------------------------------------------------------------- what is no YAML


@pytest.mark.parametrize(
    ("text", "line", "shown", "reason"),
    [
        ("a: 1\nb: [1\nc: 2\n", 3, "c: 2", "expected ',' or ']'"),
        ("a:\n\tb: 1\n", 2, "b: 1", "cannot start any token"),
        ("a: 1\r\n\tb: 1\r\n", 2, "b: 1", "cannot start any token"),
        ("a: 1\n---\nb: 1\n", 2, "---", "another document"),
        ("a: 1\nb: *x\n", 2, "b: *x", "undefined alias 'x'"),
        ("a: 1\nb: \x01\n", 2, "b: \x01", "special characters"),
        ("a: b: c\n", 1, "a: b: c", "mapping values are not allowed here"),
        ("a: 'x\n\n\n", 1, "a: 'x", "unexpected end of stream"),
        ('a: "\\UFFFFFFFF"\n', 1, 'a: "\\UFFFFFFFF"', ""),
        ("[" * 600, 1, "[" * 600, "nested too deep"),
    ],
)
def test_what_is_no_yaml_is_told_with_its_line(text, line, shown, reason):
    for read in (load, lambda t, name: line_of(t, ["a"], name)):
        with pytest.raises(ConfigError) as caught:
            read(text, "job.yaml")
        found = caught.value
        assert (found.key, found.value, found.line) == ("(syntax)", shown, line)
        assert reason in found.allowed
        assert found.path == "job.yaml"
    for edit in (lambda t: with_value(t, ["a"], "x"), lambda t: with_block(t, "e: 1")):
        with pytest.raises(ConfigError, match=r"\(syntax\) = "):
            edit(text)


@pytest.mark.parametrize("value", ["!own 1", "!!bool maybe", "!!int x", "!!timestamp x"])
def test_a_tag_that_does_not_fit_is_no_valid_yaml(value):
    with pytest.raises(ConfigError, match="valid YAML"):
        load(f"a: {value}\n")


# ---------------------------------------------------------------- any text

TEXTS = st.text(st.characters(exclude_categories=["C", "Zl", "Zp"]), max_size=8)
SCALARS = st.one_of(TEXTS, st.integers(), st.booleans(), st.none())
DATA = st.dictionaries(
    TEXTS,
    st.recursive(
        SCALARS,
        lambda below: st.lists(below, max_size=3) | st.dictionaries(TEXTS, below, max_size=3),
        max_leaves=12,
    ),
    min_size=1,
    max_size=4,
)


@st.composite
def written(draw):
    """A mapping, and a text of it in some style, with comments where a line may have one."""
    data = draw(DATA)
    style = draw(st.sampled_from([None, None, "'", '"', "|", ">"]))
    flow = draw(st.sampled_from([False, False, None, True]))
    text = yaml.safe_dump(
        data,
        default_style=style,
        default_flow_style=flow,
        width=float("inf"),
        allow_unicode=True,
        sort_keys=False,
    )
    if style not in ("|", ">"):
        lines = text.splitlines() if text.isascii() else text.split("\n")[:-1]
        text = "".join(f"{line}   # note {i}\n# above {i}\n" for i, line in enumerate(lines))
    if draw(st.booleans()):
        text = text.replace("\n", "\r\n")
    if draw(st.booleans()):
        text = text.removesuffix("\n").removesuffix("\r")
    return yaml.safe_load(text), text


def _places(data, above=()):
    pairs = data.items() if isinstance(data, dict) else enumerate(data)
    for part, value in pairs:
        yield (*above, part), value
        if isinstance(value, dict | list):
            yield from _places(value, (*above, part))


def _changed(data, parts, value):
    data = copy.deepcopy(data)
    node = data
    for part in parts[:-1]:
        node = node[part]
    node[parts[-1]] = value
    return data


def _comments(text):
    return re.findall(r"# (?:note|above) \d+", text)


NO_HURRY = settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)


@NO_HURRY
@given(written(), st.data(), st.text(max_size=12))
def test_any_value_can_be_replaced(pair, draws, value):
    data, text = pair
    places = [parts for parts, found in _places(data) if not isinstance(found, dict | list)]
    if not places:
        return
    parts = draws.draw(st.sampled_from(places))
    found = with_value(text, parts, value)
    assert yaml.safe_load(found) == _changed(data, parts, value)
    assert scalar_at(found, parts) == value
    assert _comments(found) == _comments(text)
    line = line_of(text, parts)
    lines, old = found.split("\n"), text.split("\n")
    assert line_of(found, parts) == line
    assert lines[: line - 1] == old[: line - 1]
    # Only a text below | may end lines further down, or a value whose key has a question mark.
    n_after = len(old) - line if len(lines) == len(old) and "? " not in text else 0
    assert lines[len(lines) - n_after :] == old[len(old) - n_after :]


@NO_HURRY
@given(written(), st.data(), TEXTS, TEXTS)
def test_any_key_can_be_added(pair, draws, key, value):
    data, text = pair
    mappings = [(), *(parts for parts, found in _places(data) if isinstance(found, dict))]
    parts = (*draws.draw(st.sampled_from(mappings)), key)
    if any(place == parts for place, _ in _places(data)):
        return
    found = with_value(text, parts, value)
    assert yaml.safe_load(found) == _changed(data, parts, value)
    assert _comments(found) == _comments(text)


@NO_HURRY
@given(written())
def test_a_block_can_be_appended_to_any_block_mapping(pair):
    data, text = pair
    if text.lstrip().startswith("{"):
        return
    found = with_block(text, "its own block:\n  a: 1\n")
    assert yaml.safe_load(found) == data | {"its own block": {"a": 1}}
    assert _comments(found) == _comments(text)
    if "|" not in text and ">" not in text:
        assert found.startswith(text)


@settings(NO_HURRY, max_examples=examples(30))
@given(written())
def test_every_key_has_its_line(pair):
    data, text = pair
    lines = text.split("\n")
    numbers = [line_of(text, parts) for parts, _ in _places(data)]
    assert all(1 <= number <= len(lines) for number in numbers)
    assert numbers == sorted(numbers)
