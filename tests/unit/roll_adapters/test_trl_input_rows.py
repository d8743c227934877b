"""Files of prompts and pairs: what is read, and what a wrong line is told."""

from __future__ import annotations

import json

import pytest

from ecorl.errors import DataError
from roll_adapters.trl.inputs.rows import PAIR_KEYS, PROMPT_KEYS, numbered_rows, read_rows

GOOD = '{"prompt": "1+1="}\n'
CHAT = json.dumps({"prompt": [{"role": "user", "content": "hello"}]})


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        (GOOD + '{"prompt": "1+1\n', 2, "is not JSON (Invalid control character at column 16)"),
        (GOOD + "\n" + '{"text": "a", "id": 1}', 3, 'needs a string "prompt" (its keys are text'),
        (GOOD + "{}", 2, 'needs a string "prompt" (it is empty)'),
        (GOOD + '{"prompt": 7}', 2, 'needs a string "prompt", not 7'),
        (GOOD + "7", 2, "needs an object with prompt, not 7"),
        ('[{"prompt": "a"}]', 1, "one JSON object a line, and no array of them"),
        ('[\n{"prompt": "a"}\n]', 1, "one JSON object a line, and no array of them"),
        (GOOD + '{"prompt": "\\ud83d"}', 2, "holds \\ud83d, half of a character"),
        (GOOD + CHAT, 2, "is a list of chat messages, and `ecorl run` takes strings"),
        (GOOD + "[" * 100_000, 2, "nested too deeply"),
    ],
)
def test_a_wrong_line_is_named_with_what_is_wrong(tmp_path, text, line, words):
    path = tmp_path / "prompts.jsonl"
    path.write_text(text, "utf-8")
    with pytest.raises(DataError) as caught:
        read_rows(path, PROMPT_KEYS, "task.prompts")
    message = str(caught.value)
    assert message.startswith(f"{path}:{line}: ")
    assert words in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"", "holds no rows"), (b"\n \n", "holds no rows"), (b"\xff\xfe\n", "UTF-8")],
)
def test_a_file_that_holds_no_rows_is_named_with_its_key(tmp_path, content, words):
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        read_rows(path, PROMPT_KEYS, "task.prompts")
    assert f"{path} (task.prompts): " in str(caught.value)
    assert words in str(caught.value)
    with pytest.raises(DataError, match=r"\(task.prompts\): cannot be read \(Is a directory\)"):
        read_rows(tmp_path, PROMPT_KEYS, "task.prompts")


def test_rows_are_ended_by_line_feeds_alone_and_a_mark_of_byte_order_is_no_row(tmp_path):
    path = tmp_path / "pairs.jsonl"
    texts = ["a\u2028b", "c\x85d", "\U0001f600"]
    rows = [{"prompt": t, "chosen": t, "rejected": ""} for t in texts]
    lines = [json.dumps(row, ensure_ascii=False) for row in rows]
    path.write_text("\n\n".join([*lines, json.dumps(rows[2])]), "utf-8-sig")
    found = numbered_rows(path, PAIR_KEYS)
    assert [row.line for row in found] == [1, 3, 5, 7]
    assert [row.values for row in found] == [*rows, rows[2]]
