"""Files of prompts and pairs: what is read, and what a wrong line is told."""

from __future__ import annotations

import json

import pytest

from ecorl.errors import DataError
from roll_adapters.trl.inputs.rows import PAIR_KEYS, PROMPT_KEYS, numbered_rows, read_rows

GOOD = '{"prompt": "1+1="}\n'
CHAT = json.dumps({"prompt": [{"role": "user", "content": "hello"}]})


def test_a_wrong_line_is_named_with_what_is_wrong(tmp_path, snapshot):
    path = tmp_path / "prompts.jsonl"
    messages = []
    for text, line in (
        (GOOD + '{"prompt": "1+1\n', 2),
        (GOOD + "\n" + '{"text": "a", "id": 1}', 3),
        (GOOD + "{}", 2),
        (GOOD + '{"prompt": 7}', 2),
        (GOOD + "7", 2),
        ('[{"prompt": "a"}]', 1),
        ('[\n{"prompt": "a"}\n]', 1),
        (GOOD + '{"prompt": "\\ud83d"}', 2),
        (GOOD + CHAT, 2),
        (GOOD + "[" * 100_000, 2),
    ):
        path.write_text(text, "utf-8")
        with pytest.raises(DataError) as caught:
            read_rows(path, PROMPT_KEYS, "task.prompts")
        messages.append(str(caught.value))
        assert messages[-1].startswith(f"{path}:{line}: ")
        assert "\n" not in messages[-1]
    snapshot("\n".join(messages))


def test_a_file_that_holds_no_rows_is_named_with_its_key(tmp_path, snapshot):
    lines = []
    for content in (b"", b"\n \n", b"\xff\xfe\n", None):
        path = tmp_path / "prompts.jsonl" if content is not None else tmp_path
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(DataError) as caught:
            read_rows(path, PROMPT_KEYS, "task.prompts")
        assert f"{path} (task.prompts): " in str(caught.value)
        lines.append(str(caught.value))
    snapshot("\n".join(lines))


def test_rows_are_ended_by_line_feeds_alone_and_a_mark_of_byte_order_is_no_row(tmp_path):
    path = tmp_path / "pairs.jsonl"
    texts = ["a\u2028b", "c\x85d", "\U0001f600"]
    rows = [{"prompt": t, "chosen": t, "rejected": ""} for t in texts]
    lines = [json.dumps(row, ensure_ascii=False) for row in rows]
    path.write_text("\n\n".join([*lines, json.dumps(rows[2])]), "utf-8-sig")
    found = numbered_rows(path, PAIR_KEYS)
    assert [row.line for row in found] == [1, 3, 5, 7]
    assert [row.values for row in found] == [*rows, rows[2]]
