"""BOS that a model reads twice, from text and tokenizer: said once, and never wrongly."""

from __future__ import annotations

import json
import logging
from types import SimpleNamespace

import numpy as np
import pytest
from datasets import Dataset, IterableDataset
from rich.console import Console
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from ecorl.config import FilesTask
from ecorl.engines.fpga.validation.scoring import read_pairs
from ecorl.engines.models.text_tokenizer import DoubledBegin, added_begin, begin_of, only_begin
from roll_adapters.trl.inputs.first_rows import FirstPrompt
from roll_adapters.trl.inputs.tokens import check_tokens
from tests.integration.tiny_inputs import other_model, rows_file

TWICE = "twice"
PROMPT = "<s> 1 2"


def tokenizer_of(single="<s> $A", bos="<s>", eos="</s>", unk="<unk>"):
    """A tokenizer of whole words, with what it makes of a text."""
    words = ["<pad>", "<s>", "</s>", unk or "3 words", *map(str, range(20))]
    made = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = [(w, i) for i, w in enumerate(words) if w in single]
    made.post_processor = processors.TemplateProcessing(single, special_tokens=special)
    return PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="<pad>", bos_token=bos, eos_token=eos, unk_token=unk
    )


def warnings_of(caplog):
    return [line for line in caplog.messages if TWICE in line]


@pytest.mark.parametrize(
    ("single", "begin"), [("$A", []), ("<s> $A", [1]), ("<s> $A </s>", [1]), ("$A </s>", [])]
)
def test_what_a_tokenizer_adds_before_a_text(single, begin):
    assert added_begin(tokenizer_of(single)) == begin
    assert added_begin(tokenizer_of(single, unk=None)) == begin  # it refuses unknown words


@pytest.fixture
def files_of(tiny, tmp_path):
    """A task whose policy has a tokenizer of words, and prompts."""

    def make(tokenizer, *prompts):
        policy = other_model(tmp_path / "policy", tiny.policy, vocab_size=64)
        tokenizer.save_pretrained(policy)
        file = rows_file(tmp_path / "p.jsonl", *prompts)
        return FilesTask(policy=policy, reward=tiny.reward, prompts=file)

    return make


@pytest.mark.parametrize(
    ("tokenizer", "prompts", "told"),
    [
        (tokenizer_of(), ("1 2", PROMPT, PROMPT), "the tokenizer adds one; save the tokenizer"),
        (tokenizer_of("$A"), ("1", "<s> <s> 2"), "(id 1) twice: leave one out"),
        (tokenizer_of(), ("1 2", "3"), None),  # the tokenizer's alone
        (tokenizer_of("$A"), (PROMPT,), None),  # the text's alone
        (tokenizer_of("$A", bos="</s>"), ("</s> </s> 1",), None),  # it ends texts too, as GPT-2's
        (tokenizer_of("$A", bos=None), ("1 1 2",), None),
    ],
)
def test_prompts_of_a_run(files_of, caplog, tokenizer, prompts, told):
    task = files_of(tokenizer, *prompts)
    with caplog.at_level(logging.WARNING):
        list(check_tokens(task, 4, Console()))
    lines = warnings_of(caplog)
    assert len(lines) == (told is not None)
    for line in lines:
        assert line.startswith(f'{task.prompts}:2: "prompt": the policy ({task.policy}) reads <s> ')
        assert told in line


def trainer_of(rows, tokenizer=None, **more):
    processing = tokenizer or tokenizer_of()
    return SimpleNamespace(processing_class=processing, train_dataset=rows, **more)


def test_a_trainer_with_text_prompts_is_warned_when_it_is_attached(caplog):
    rows = Dataset.from_list([{"prompt": PROMPT}, {"prompt": PROMPT}])
    with caplog.at_level(logging.WARNING):
        FirstPrompt(trainer_of(rows))
        first = FirstPrompt(trainer_of(rows, SimpleNamespace(tokenizer=tokenizer_of())))
        first.read([PROMPT], [[1, 1, 5]])
    one, other = warnings_of(caplog)
    assert one == other
    assert one.startswith("the first prompt: the policy reads <s> (id 1) twice: the text has it,")
    assert "give prompts as messages, or save the tokenizer with add_bos_token = False" in one


def test_a_stream_is_judged_by_its_first_batch_and_not_consumed(caplog):
    taken = []

    def rows():
        for i in range(3):
            taken.append(i)
            yield {"prompt": PROMPT}

    first = FirstPrompt(trainer_of(IterableDataset.from_generator(rows)))
    assert not taken
    with caplog.at_level(logging.WARNING):
        first.read([PROMPT, PROMPT], [[1, 1, 5], [1, 1, 5]])
        first.read([PROMPT], [[1, 1, 5]])
    assert len(warnings_of(caplog)) == 1


def test_a_transform_of_the_user_is_not_called():
    def transform(_):
        raise AssertionError

    rows = Dataset.from_list([{"prompt": PROMPT}]).with_transform(transform)
    FirstPrompt(trainer_of(rows)).read([PROMPT], [[1, 5]])


MESSAGES = [{"role": "user", "content": "1"}]


@pytest.mark.parametrize(
    ("prompt", "more"), [(MESSAGES, {}), (PROMPT, {"rollout_func": lambda *_: None})]
)
def test_what_the_tokenizer_does_not_add_to_is_judged_by_what_is_read(prompt, more, caplog):
    rows = Dataset.from_list([{"prompt": prompt}])
    with caplog.at_level(logging.WARNING):
        FirstPrompt(trainer_of(rows, **more)).read([prompt], [[1, 5]])
        assert not warnings_of(caplog)
        FirstPrompt(trainer_of(rows, **more)).read([prompt], [[1, 1, 5]])
    (line,) = warnings_of(caplog)
    assert line == "the first prompt: the policy reads <s> (id 1) twice: leave one out"


@pytest.mark.parametrize(
    "rows", [[{"prompt": "1 2"}], [{"prompt": MESSAGES}], [], [{"x": 1}], None]
)
def test_what_is_right_or_unknown_is_not_warned_of(rows, caplog):
    trainer = trainer_of(None if rows is None else Dataset.from_list(rows))
    FirstPrompt(trainer).read(["1"], [[1, 5]])
    FirstPrompt(SimpleNamespace())
    FirstPrompt(trainer).read(None, None)
    assert not warnings_of(caplog)


def test_pairs_of_token_ids_that_begin_twice(tmp_path, caplog):
    (tmp_path / "config.json").write_text(json.dumps({"bos_token_id": 1, "eos_token_id": [2]}))
    file = tmp_path / "pairs.jsonl"
    rows = [([1, 5], [1, 6]), ([1, 1, 5], [1, 1, 6]), ([1, 1, 7], [1, 1, 8])]
    file.write_text(
        "".join(json.dumps({"chosen_ids": c, "rejected_ids": r}) + "\n" for c, r in rows)
    )
    with caplog.at_level(logging.WARNING):
        read_pairs(file, tmp_path, 64)
    (line,) = warnings_of(caplog)
    told = "the token that begins a text (id 1) twice: leave one out"
    assert line == f"{file}:2: the reward model ({tmp_path}) reads {told}"


def test_texts_of_pairs_get_no_token_and_are_judged_as_they_are(tmp_path, caplog):
    tokenizer_of().save_pretrained(tmp_path)
    file = tmp_path / "pairs.jsonl"
    file.write_text(json.dumps({"prompt": PROMPT, "chosen": " 3", "rejected": " 4"}))
    read_pairs(file, tmp_path, 64)
    assert not warnings_of(caplog)
    file.write_text(json.dumps({"prompt": f"<s> {PROMPT}", "chosen": " 3", "rejected": " 4"}))
    read_pairs(file, tmp_path, 64)
    assert len(warnings_of(caplog)) == 1


def test_a_token_with_another_meaning_begins_no_text(tmp_path):
    assert only_begin(1, 2, None) == [1]
    assert only_begin(1, [2, 1], None) == only_begin(1, 2, 1) == only_begin(None, 2) == []
    assert begin_of(tmp_path) == []


def test_rows_of_numpy_are_judged_too(caplog):
    DoubledBegin("the model", [1, 7]).look(np.array([1, 7, 1, 7]).tolist(), "here")
    assert warnings_of(caplog) == [
        "here: the model reads the token that begins a text (id 1, 7) twice: leave one out"
    ]
