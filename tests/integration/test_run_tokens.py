"""The prompts and pairs of `ecorl run`, checked by the tokens that its models make of them."""

from __future__ import annotations

import json
import logging
import os
import shutil
from pathlib import Path

import pytest
from rich.console import Console

from ecorl.config import FilesTask
from ecorl.errors import CheckpointError, DataError
from roll_adapters.trl.inputs.limits import _TABLES, limits_of
from roll_adapters.trl.inputs.tokens import check_tokens
from tests.integration.tiny_inputs import other_model, rows_file

ROOM = 6
"""Longest completion here, tokens."""

POSITIONS = 64
"""Of the tiny models; their tokenizer makes a token of each character."""


def task_of(tiny, **changes: Path) -> FilesTask:
    files = {k: getattr(tiny, k) for k in ("policy", "reward", "prompts", "eval_prompts", "pairs")}
    return FilesTask(**(files | changes))


def checked(task: FilesTask, room: int = ROOM) -> list[str]:
    return [found.text for found in check_tokens(task, room, Console())]


def test_what_is_whole_is_counted(tiny, tmp_path):
    prompts = rows_file(tmp_path / "p.jsonl", "1", "12+34=")
    found = checked(task_of(tiny, prompts=prompts))
    assert found[0] == "2 prompts, longest 6 tokens + 6 of completion = 12 of 64 positions"
    assert found[2].startswith("64 pairs, longest ")


@pytest.mark.parametrize("key", ["prompts", "eval_prompts"])
def test_an_empty_prompt_is_refused_with_its_line(tiny, tmp_path, key):
    prompts = rows_file(tmp_path / "p.jsonl", "1+1=", "")
    with pytest.raises(DataError) as caught:
        checked(task_of(tiny, **{key: prompts}))
    assert f"{prompts}:2: \"prompt\" = '' is empty" in str(caught.value)


def test_a_prompt_of_added_tokens_alone_is_empty(tiny, tmp_path):
    """A tokenizer may begin each text with a token of its own."""
    policy = tmp_path / "policy"
    shutil.copytree(tiny.policy, policy)
    file = policy / "tokenizer.json"
    content = json.loads(file.read_text())
    bos = {"SpecialToken": {"id": "<s>", "type_id": 0}}
    content["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [bos, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [bos, {"Sequence": {"id": "A", "type_id": 0}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
    }
    file.write_text(json.dumps(content))
    prompts = rows_file(tmp_path / "p.jsonl", "1+1=")
    assert "longest 5 tokens" in checked(task_of(tiny, policy=policy, prompts=prompts))[0]
    prompts = rows_file(tmp_path / "p.jsonl", "1+1=", "")
    with pytest.raises(DataError, match=r"p\.jsonl:2: .* is empty"):
        checked(task_of(tiny, policy=policy, prompts=prompts))


def test_a_pair_without_a_token_is_refused_and_an_empty_answer_is_one(tiny, tmp_path):
    pairs = tmp_path / "pairs.jsonl"
    row = {"prompt": "1+1=", "chosen": "2", "rejected": ""}
    pairs.write_text(json.dumps(row))
    assert checked(task_of(tiny, pairs=pairs))[2] == "1 pair, longest 5 tokens of 64 positions"
    pairs.write_text(json.dumps(row | {"prompt": ""}))
    with pytest.raises(DataError, match=r'pairs\.jsonl:1: "prompt \+ rejected" = \'\' is empty'):
        checked(task_of(tiny, pairs=pairs))
    pairs.write_text(json.dumps(row | {"chosen": "2" * POSITIONS}))
    with pytest.raises(DataError, match="has 68 tokens, and the reward model has 64 positions"):
        checked(task_of(tiny, pairs=pairs))


def test_a_prompt_longer_than_a_model_is_refused_with_its_line(tiny, tmp_path):
    prompts = rows_file(tmp_path / "p.jsonl", "1", "1" * 65, "1" * 70)
    with pytest.raises(DataError) as caught:
        checked(task_of(tiny, prompts=prompts))
    assert f'{prompts}:2: "prompt" has 65 tokens, and the policy has 64 positions' in str(
        caught.value
    )
    assert "2 such rows, this is the first" in str(caught.value)
    short = other_model(tmp_path / "short", tiny.reward, max_position_embeddings=3)
    with pytest.raises(DataError, match="has 4 tokens, and the reward model has 3 positions"):
        checked(task_of(tiny, reward=short, prompts=rows_file(tmp_path / "p.jsonl", "1+1=")))


def test_too_little_room_is_a_warning_where_a_model_goes_on(tiny, tmp_path, caplog):
    prompts = rows_file(tmp_path / "p.jsonl", "1", "1" * 59, "1" * 61)
    with caplog.at_level(logging.WARNING):
        checked(task_of(tiny, prompts=prompts))
    (policy, reward) = caplog.messages
    assert policy.startswith(
        f"{prompts}:2: 59 tokens of prompt and trainer.max_completion_length = 6 are more than "
        "the 64 positions of the policy (2 such rows, this is the first): 3 fits all of them"
    )
    assert "of the reward model" in reward


def test_too_little_room_is_refused_where_a_model_fails(tiny, tmp_path):
    policy = other_model(
        tmp_path / "gpt2", tiny.policy, model_type="gpt2", n_positions=POSITIONS,
        architectures=["GPT2LMHeadModel"],
    )  # fmt: skip
    prompts = rows_file(tmp_path / "p.jsonl", "1" * 58)
    assert checked(task_of(tiny, policy=policy, prompts=prompts))
    prompts = rows_file(tmp_path / "p.jsonl", "1" * 59)
    with pytest.raises(DataError, match="more than the 64 positions of the policy"):
        checked(task_of(tiny, policy=policy, prompts=prompts))


def test_stretched_positions_count(tiny, tmp_path):
    rope = {"rope_type": "yarn", "factor": 2.0, "rope_theta": 10000.0}
    rope["original_max_position_embeddings"] = POSITIONS
    models = {
        name: other_model(tmp_path / name, getattr(tiny, name), rope_parameters=rope)
        for name in ("policy", "reward")
    }
    prompts = rows_file(tmp_path / "p.jsonl", "1" * 100)
    assert "of 128 positions" in checked(task_of(tiny, prompts=prompts, **models))[0]


def test_ids_beyond_the_embeddings_are_refused(tiny, tmp_path, caplog):
    n_tokens = json.loads((tiny.policy / "config.json").read_text())["vocab_size"]
    small = other_model(tmp_path / "small", tiny.policy, vocab_size=n_tokens - 1)
    digits = rows_file(tmp_path / "p.jsonl", "1")
    files = {"prompts": digits, "eval_prompts": digits}
    with caplog.at_level(logging.WARNING):
        assert checked(task_of(tiny, policy=small, **files))
    assert "the tokenizer knows" in caplog.text
    last = rows_file(tmp_path / "p.jsonl", "1", "1=")
    with pytest.raises(DataError, match=rf"p\.jsonl:2: .*has the token id {n_tokens - 1}, and"):
        checked(task_of(tiny, policy=small, prompts=last))
    reward = other_model(tmp_path / "reward", tiny.reward, vocab_size=n_tokens - 1)
    with pytest.raises(DataError, match="and the reward model"):
        checked(task_of(tiny, reward=reward, prompts=last))


def test_a_pad_token_beyond_the_embeddings_is_refused(tiny, tmp_path):
    from transformers import AutoTokenizer

    policy = tmp_path / "policy"
    shutil.copytree(tiny.policy, policy)
    tokenizer = AutoTokenizer.from_pretrained(policy)
    tokenizer.add_special_tokens({"pad_token": "[PAD]"})
    tokenizer.save_pretrained(policy)
    with pytest.raises(CheckpointError, match="the pad token of the tokenizer has id"):
        checked(task_of(tiny, policy=policy))


def test_many_prompts_are_shown_on_their_way_and_leave_the_environment(
    tiny, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr("roll_adapters.trl.inputs.tokens._SHOWN_FROM", 3000)
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    prompts = rows_file(tmp_path / "many.jsonl", *["1+1="] * 3000)
    assert checked(task_of(tiny, prompts=prompts))[0].startswith("3,000 prompts")
    assert "checking many.jsonl: 3000/3000" in capsys.readouterr().out
    assert os.environ["TOKENIZERS_PARALLELISM"] == "false"


SIZES = {
    "vocab_size": 20, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 2, "intermediate_size": 16, "max_position_embeddings": 12,
    "pad_token_id": 1, "embedding_size": 16, "ffn_dim": 16, "word_embed_proj_dim": 16,
    "dim": 16, "hidden_dim": 16, "attention_layers": ["global"], "rotary_dim": 4,
    "attention_types": [[["global"], 1]],
}  # fmt: skip


@pytest.mark.parametrize("kind", sorted({*_TABLES, "llama", "qwen2", "falcon"}))
def test_models_end_at_their_last_position_or_go_on(kind):
    import torch
    from transformers import AutoConfig, AutoModel

    config = AutoConfig.for_model(kind)
    for name, value in SIZES.items():
        if hasattr(config, name):
            setattr(config, name, value)
    limits = limits_of(config)
    assert limits.vocabulary == 20
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        model = AutoModel.from_config(config).eval()
        model(input_ids=torch.full((1, limits.positions), 5))
        beyond = torch.full((1, limits.positions + 1), 5)
        if limits.ends_there:
            with pytest.raises((IndexError, RuntimeError)):
                model(input_ids=beyond)
        else:
            model(input_ids=beyond)
