"""Bodies of requests: what is taken, and the one line for what is not."""

from __future__ import annotations

import dataclasses
import json
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stub_service import POSITIONS, VOCAB, served

from ecorl.records import Stage
from ecorl.serve.http_errors import HttpError
from ecorl.serve.parsing import BodyParser, ScoreRows
from ecorl.serve.responses import UNKNOWN, Answer, as_json
from tests.examples import examples

MAX_ROWS = 5


def parse(data, stage=Stage.REWARD):
    body = data if isinstance(data, bytes) else json.dumps(data).encode()
    return BodyParser(served(stage), MAX_ROWS).parse(body)


def line_of(data, stage=Stage.REWARD):
    with pytest.raises(HttpError) as caught:
        parse(data, stage)
    assert caught.value.status == 400
    (line,) = str(caught.value).splitlines()
    return line


def row(**changes):
    return {"token_ids": [1, 2, 3], **changes}


def test_rows_as_they_were_sent():
    rows = parse({"rows": [row(id="a", n_completion=3), row(), row(id=None, token_ids=[999])]})
    assert rows.ids == ("a", None, None)
    assert [r.tolist() for r in rows.token_ids] == [[1, 2, 3], [1, 2, 3], [999]]
    assert {r.dtype for r in rows.token_ids} == {np.dtype(np.int64)}
    assert (rows.n_completion, rows.temperature) == ((3, 0, 0), 1.0)
    body = {"temperature": 2, "rows": [row(n_completion=2), row(n_completion=0)]}
    rows = parse(body, Stage.REFERENCE)
    assert (rows.n_completion, rows.temperature) == ((2, 0), 2.0)


BAD = [
    # body, key and value
    (b"", "body = (EOF while parsing"),
    (b'{"rows": [\xff]}', "body = ("),
    (b"[" * 5000, "body = (recursion limit"),
    ([], "body = []"),
    ({}, "rows = (not given)"),
    ({"rows": []}, "rows = []"),
    ({"rows": [row()] * 6}, "rows = (6 rows)"),
    ({"rows": {"token_ids": [1]}}, "rows = {"),
    ({"rows": [row(), 7]}, "rows[1] = 7"),
    ({"rows": [row()], "temp": 1}, "temp = 1"),
    ({"rows": [row()], "a b\n": 1}, "'a b\\n' = 1"),
    ({"rows": [row(ids=[1])]}, "rows[0].ids = [1]"),
    ({"rows": [{"id": "x"}]}, "rows[0].token_ids = (not given)"),
    ({"rows": [row(token_ids=[])]}, "rows[0].token_ids = []"),
    ({"rows": [row(token_ids=[1] * 65)]}, "rows[0].token_ids = (65 tokens)"),
    ({"rows": [row(token_ids=[1, 1000])]}, "rows[0].token_ids[1] = 1000"),
    ({"rows": [row(token_ids=[-1])]}, "rows[0].token_ids[0] = -1"),
    ({"rows": [row(token_ids=[10**30])]}, "rows[0].token_ids[0] = 1000"),
    ({"rows": [row(token_ids=[1.0])]}, "rows[0].token_ids[0] = 1.0"),
    ({"rows": [row(token_ids=["1"])]}, "rows[0].token_ids[0] = '1'"),
    ({"rows": [row(token_ids=[True])]}, "rows[0].token_ids[0] = True"),
    ({"rows": [row(token_ids=[None])]}, "rows[0].token_ids[0] = None"),
    ({"rows": [row(id=3)]}, "rows[0].id = 3"),
    ({"rows": [row(id="x" * 201)]}, "rows[0].id = 'xxx"),
    ({"rows": [row(id="a"), row(), row(id="a")]}, "rows[2].id = 'a'"),
    ({"rows": [row(n_completion=-1)]}, "rows[0].n_completion = -1"),
    ({"rows": [row(n_completion=4)]}, "rows[0].n_completion = 4"),
]


def test_the_line_for_a_bad_body(snapshot):
    lines = []
    for data, key_and_value in BAD:
        line = line_of(data)
        assert line.startswith(key_and_value)
        assert len(line) < 300
        if isinstance(data, bytes):  # it holds the parser's own words
            assert "JSON" in line
        else:
            lines.append(line)
    snapshot("\n".join(lines))


def test_lines_for_log_probs(snapshot):
    assert "n_completion = (not given)" in line_of({"rows": [row()]}, Stage.REFERENCE)
    line = line_of({"rows": [row(n_completion=3)]}, Stage.REFERENCE)
    assert "n_completion = 3: " in line
    snapshot(line)
    for wrong in ("0", "-1", "NaN", "Infinity", "1e999", '"1"', "true", "null"):
        body = f'{{"rows": [{{"token_ids": [1, 2], "n_completion": 1}}], "temperature": {wrong}}}'
        line = line_of(body.encode(), Stage.REFERENCE)
        assert line.startswith("temperature = ")


LARGE = 1 << 21


@pytest.mark.parametrize(
    ("start", "item", "end", "line"),
    [
        (b'{"rows":[{"token_ids":[', b"-1,", b"1]}]}", "body = (699051 commas)"),
        (b'{"rows":[{"token_ids":[', b'"",', b"1]}]}", "body = (699051 commas)"),
        (b'{"rows":[', b"0,", b"0]}", "body = (1048576 commas)"),
        (b'{"rows":[', b"{}\n", b"]}", "body = (699053 brackets)"),
        (b"[", b"[", b"", "body = (2097153 brackets)"),
        (b'{"rows":[{', b'"a":0', b"}]}", "body = (419432 colons)"),
        (b'{"rows":[{"token_ids":[', b"   1", b"]}]}", "body = ("),
        (b'{"rows":[{"id":"', b"xxxx", b'"}]}', "rows[0].id = 'xxx"),
    ],
)
def test_the_largest_mistakes_take_little_memory(start, item, end, line):
    body = start + item * -(-LARGE // len(item)) + end
    tracemalloc.start()
    try:
        said = line_of(body)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert said.startswith(line)
    assert len(said) < 300
    assert peak < 3 * LARGE


@pytest.mark.parametrize("item", ["-1", "[]", '""', "null", "1.5", "{}"])
def test_a_list_ends_at_its_first_mistake(item):
    """What is below the bound on values costs no more than a line either."""
    n = 8000
    body = ('{"rows":[{"token_ids":[' + ",".join([item] * n) + "]}]}").encode()
    parser = BodyParser(dataclasses.replace(served(), max_row_tokens=2 * n), MAX_ROWS)
    tracemalloc.start()
    try:
        with pytest.raises(HttpError, match=r"rows\[0\].token_ids\[0\] = "):
            parser.parse(body)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 20 * n


TWICE = [
    ('{"rows": [R], "rows": [R]}', "rows"),
    ('{"rows": [R], "r\\u006fws": [R]}', "rows"),
    ('{"rows": [{"token_ids": [1], "token_ids": [1]}]}', "rows[0].token_ids"),
    ('{"rows": [R, {"id": "a:b", "token_ids": [1], "id": "c"}]}', "rows[1].id"),
    ('{"rows": [{"id": "\\u003a\\u003a", "token_ids": [1], "token_ids": [2]}]}',
     "rows[0].token_ids"),
    ('{"rows": [7], "rows": [R]}', "rows"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "path"), TWICE)
def test_a_key_twice_is_refused(text, path):
    body = text.replace("R", '{"token_ids": [1]}').encode()
    assert line_of(body).startswith(f"{path} = (given more than once): ")


@pytest.mark.parametrize("id", ["a:b", "::", "a\\b", 'q"":', "\u003a", "é:\\u003a", ':{"rows":'])
def test_colons_within_an_id_are_no_keys(id):
    for ensure_ascii in (True, False):
        body = json.dumps({"rows": [row(id=id), row()]}, ensure_ascii=ensure_ascii).encode()
        assert parse(body).ids == (id, None)
    escaped = json.dumps({"rows": [row(id=id)]}).replace("::", "\\u003a:")
    assert parse(escaped.encode()).ids == (id,)


FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)


@given(st.lists(FLOATS, min_size=1, max_size=20))
@settings(deadline=None)
def test_float32_survives_json_to_the_bit(numbers):
    values = np.asarray(numbers, np.float32)
    one = np.zeros(1, np.int64)
    rows = ScoreRows(("a",), (one,), (1,))
    body = as_json(rows, Answer([values], UNKNOWN), served(Stage.REFERENCE), "card")
    back = np.asarray(json.loads(body)["rows"][0]["logprobs"], np.float32)
    assert back.tobytes() == values.tobytes()
    rows = ScoreRows((None,) * len(values), (one,) * len(values), (1,) * len(values))
    body = as_json(rows, Answer(list(values), UNKNOWN),
                   served(), "card")  # fmt: skip
    back = np.asarray([r["reward"] for r in json.loads(body)["rows"]], np.float32)
    assert back.tobytes() == values.tobytes()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["rows", "token_ids", "n_completion", "id", "temperature", "x"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)
TOKENS = st.lists(st.integers(-1, VOCAB) | JSON, max_size=POSITIONS + 2)
ROWS = st.fixed_dictionaries(
    {"token_ids": TOKENS | JSON},
    optional={"n_completion": st.integers(-1, 70) | JSON, "id": st.text(max_size=3) | JSON},
)
BODIES = st.fixed_dictionaries(
    {"rows": st.lists(ROWS | JSON, max_size=MAX_ROWS + 1) | JSON},
    optional={"temperature": st.floats() | JSON, "x": JSON},
)


@given(st.sampled_from([Stage.REWARD, Stage.REFERENCE]), BODIES | JSON | st.binary(max_size=40))
@settings(deadline=None, max_examples=examples(400))
def test_any_body_is_rows_or_one_line(stage, data):
    body = data if isinstance(data, bytes) else json.dumps(data).encode()
    refused, rows = None, None
    try:
        rows = parse(body, stage)
    except HttpError as error:
        refused = error
    if rows is None:
        assert refused.status == 400
        assert len(str(refused).splitlines()) == 1
        assert ": allowed is " in str(refused)
        return
    assert 1 <= len(rows) <= MAX_ROWS
    for ids, n in zip(rows.token_ids, rows.n_completion, strict=True):
        assert 1 <= len(ids) <= POSITIONS
        assert ids.min() >= 0
        assert ids.max() < VOCAB
        assert 0 <= n <= len(ids) - (stage is Stage.REFERENCE)
    assert 0 < rows.temperature < float("inf")
