"""What a TRL run counts as output: the policy's tokens, and in passes all of a completion.

The truth is what the trainer's own generation returned, noted before ecorl was attached.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
from datasets import Dataset

from ecorl.ledger import LedgerReader
from ecorl.records import EVALUATION_ROLE, Stage
from ecorl.report import build_report, read_config
from roll_adapters.trl_hooks import attach
from tests.integration.checks import assert_same_bits, config, outcome

OWN, FOREIGN = 5, 4
"""Tokens of each completion that the policy and the environment wrote."""


def noted(trainer: Any) -> list[tuple[Any, Any]]:
    """Prompts and completions as they are generated, of training and of evaluations."""
    seen, own = [], trainer._generate

    def generate(*args: Any, **kwargs: Any) -> Any:
        output = own(*args, **kwargs)
        seen.append((output[0], output[1]))
        return output

    trainer._generate = generate
    return seen


def lengths(seen: list[tuple[Any, Any]]) -> tuple[int, int]:
    """All tokens, and those of completions."""
    n_prompt, n_completion = (sum(len(row) for batch in seen for row in batch[k]) for k in (0, 1))
    return n_prompt + n_completion, n_completion


def recorded(run_dir: Any) -> tuple[dict[str, tuple[int, int]], Any]:
    """Tokens and output tokens of each role, of passes with output; and the report."""
    tokens: Counter[str] = Counter()
    output: Counter[str] = Counter()
    with contextlib.closing(LedgerReader(run_dir)) as reader:
        for row in reader.executions():
            role = row.result.role
            if role == Stage.ACTOR_TRAIN and not row.result.n_output_tokens:
                role = "old_log_probs"
            tokens[role] += row.result.n_tokens
            output[role] += row.result.n_output_tokens
        report = build_report(reader, read_config(reader.run(), run_dir))
    return {role: (tokens[role], output[role]) for role in tokens}, report


def rollout(prompts: list[str], trainer: Any) -> dict[str, Any]:
    """A rollout with an environment that speaks in the middle of each completion."""
    ids = trainer.processing_class(prompts)["input_ids"]
    tokens = [5, 6, 7, *[8] * FOREIGN, 9, 10][: OWN + FOREIGN]
    mask = [1] * 3 + [0] * FOREIGN + [1] * (OWN - 3)
    n = len(prompts)
    return {
        "prompt_ids": ids,
        "completion_ids": [list(tokens) for _ in range(n)],
        "logprobs": [[-1.0] * len(tokens) for _ in range(n)],
        "env_mask": [list(mask) for _ in range(n)],
    }


def length(completions: Any, **_: Any) -> list[float]:
    return [float(i % 3) for i, _ in enumerate(completions)]


def test_what_an_environment_wrote_is_read_and_not_generated(make_trainer, tmp_path):
    held_out = Dataset.from_list([{"prompt": "1+2="}, {"prompt": "3+4="}])
    parts = {"reward_funcs": [length], "reward_processing_classes": None, "rollout_func": rollout}
    parts["eval_dataset"] = held_out
    changes = {"eval_strategy": "steps", "eval_steps": 2, "per_device_eval_batch_size": 8}
    trainer = make_trainer(parts=parts, max_completion_length=16, max_steps=2, **changes)
    seen = noted(trainer)
    attach(trainer, config(tmp_path))
    trainer.train()
    evaluated, trained = seen[2:], seen[:2]
    n_all, n_completion = lengths(trained)
    n_rows = n_completion // (OWN + FOREIGN)
    found, report = recorded(tmp_path / "run")
    assert found[Stage.GENERATION] == (n_all, n_rows * OWN)
    passes = (n_all, n_rows * (OWN + FOREIGN))
    assert found[Stage.REFERENCE] == found[Stage.ACTOR_TRAIN] == found["reward:length"] == passes
    eval_all, eval_completion = lengths(evaluated)
    eval_made = eval_completion * OWN // (OWN + FOREIGN)
    assert found[EVALUATION_ROLE] == (eval_all, eval_made)
    # What follows from them.
    (row,) = [r for r in report.stages if r.role == Stage.GENERATION]
    assert row.edi_j_per_token == pytest.approx(row.energy_j / (n_rows * OWN))
    assert report.spending.n_output_tokens == n_rows * OWN
    (column,) = report.spending.columns
    assert column.tokens_per_joule == pytest.approx(n_rows * OWN / column.energy_j)


@pytest.mark.parametrize(
    ("algorithm", "where"),
    [("grpo", "trainer"), ("rloo", "trainer"), ("grpo", "engine"), ("grpo", "packed")],
)
def test_completions_that_are_cut_off_and_masked_are_computed(
    make_trainer, tmp_path, algorithm, where
):
    # Without an EOS each completion is cut off, but for those that end by chance.
    changes = {
        "mask_truncated_completions": True, "max_completion_length": 3, "max_steps": 4,
        "num_iterations": 2, "gradient_accumulation_steps": 1, "steps_per_generation": 2,
        "per_device_train_batch_size": 8,
    }  # fmt: skip
    plain = make_trainer(algorithm, "plain", **changes)
    plain.train()
    trainer = make_trainer(algorithm, "attached", **changes)
    seen = noted(trainer)
    more: dict[str, Any] = {}
    if where == "engine":
        more = {"policy": {"type": "static", "reward": "gpu", "reference": "fpga"}}
        more["engine"] = {"offload": {"type": "torch", "device": "cpu"}}
        more["more"] = {"devices": {"accelerator": "host_cpu"}}
    if where == "packed":
        more["more"] = {"trainer": {"adaptive_micro_batch": True}}
    attach(trainer, config(tmp_path, algorithm, **more))
    trainer.train()
    if where == "trainer":
        assert_same_bits(outcome(plain), outcome(trainer))
    masked = sum(b[-1] != trainer.processing_class.eos_token_id for _, c in seen for b in c)
    assert masked > 0
    n_all, n_completion = lengths(seen)
    found, report = recorded(tmp_path / "run")
    for role in (Stage.GENERATION, Stage.REFERENCE, Stage.REWARD):
        assert found[role] == (n_all, n_completion), role
    # Each batch is trained on twice.
    assert found[Stage.ACTOR_TRAIN] == (2 * n_all, 2 * n_completion)
    assert found["old_log_probs"] == (n_all, 0)
    assert all(r.edi_j_per_token is not None for r in report.stages if r.n_with_energy)


def test_tokens_that_cannot_be_counted_are_missing_and_training_goes_on(
    make_trainer, tmp_path, caplog, monkeypatch
):
    changes = {"max_steps": 2, "num_iterations": 2, "beta": 0.05}
    plain = make_trainer("grpo", "plain", **changes)
    plain.train()
    trainer = make_trainer("grpo", "attached", **changes)
    gone = SimpleNamespace()
    monkeypatch.setattr("roll_adapters.trl.masks.padding_tokenizer", lambda _: gone)
    attach(trainer, config(tmp_path))
    trainer.train()
    assert_same_bits(outcome(plain), outcome(trainer))
    found, _ = recorded(tmp_path / "run")
    assert found["old_log_probs"] == found[Stage.REFERENCE] == (0, 0)
    assert found[Stage.GENERATION][0] > 0
    with contextlib.closing(LedgerReader(tmp_path / "run")) as reader:
        told = sorted((f.kind, f.where) for f in reader.faults())
    assert told == [("NotCounted", "actor_train"), ("NotCounted", "reference")]
    assert "no attribute 'pad_token_id'" in caplog.text


def test_generated_rows_that_cannot_be_counted_are_missing_and_training_goes_on(
    make_trainer, tmp_path, monkeypatch
):
    plain = make_trainer("grpo", "plain", max_steps=2)
    plain.train()
    trainer = make_trainer("grpo", "attached", max_steps=2)
    monkeypatch.setattr("roll_adapters.trl.masks._foreign", lambda output: len(None))
    attach(trainer, config(tmp_path))
    trainer.train()
    assert_same_bits(outcome(plain), outcome(trainer))
    found, _ = recorded(tmp_path / "run")
    assert found[Stage.GENERATION] == (0, 0)
    assert found[Stage.ACTOR_TRAIN][0] > 0
    with contextlib.closing(LedgerReader(tmp_path / "run")) as reader:
        assert {(f.kind, f.where) for f in reader.faults()} == {("NotCounted", "generation")}


def test_what_is_sampled_and_cut_off_is_generated(make_trainer, tmp_path):
    """As TRL's tools do it: a later turn is cut where the completion is full."""
    made = []

    def turns(prompts: list[str], trainer: Any) -> dict[str, Any]:
        ids = trainer.processing_class(prompts)["input_ids"]
        first = trainer._generate_single_turn(ids, None, {}, 4)[0]
        second = trainer._generate_single_turn(
            [a + b + [8] for a, b in zip(ids, first, strict=True)], None, {}, 1
        )[0]
        made.append(sum(map(len, [*first, *second])))
        rows = [[*a, 8, *b[:1]] for a, b in zip(first, second, strict=True)]
        return {
            "prompt_ids": ids,
            "completion_ids": rows,
            "logprobs": [[-1.0] * len(row) for row in rows],
            "env_mask": [[1] * len(a) + [0, 1] for a in first],
        }

    parts = {"reward_funcs": [length], "reward_processing_classes": None, "rollout_func": turns}
    trainer = make_trainer(parts=parts, max_steps=2)
    seen = noted(trainer)
    own = trainer._generate_single_turn
    attachment = attach(trainer, config(tmp_path))
    trainer.train()
    n_all, n_completion = lengths(seen)
    found, _ = recorded(tmp_path / "run")
    n_kept = n_completion - sum(len(batch[1]) for batch in seen)
    assert sum(made) > n_kept
    assert found[Stage.GENERATION] == (n_all + sum(made) - n_kept, sum(made))
    assert found[Stage.ACTOR_TRAIN] == (n_all, n_completion)
    attachment.detach()
    assert trainer._generate_single_turn == own


def test_gears_count_the_tokens_that_they_compute(make_trainer, tmp_path):
    trainer = make_trainer(max_steps=2, max_completion_length=2, mask_truncated_completions=True)
    seen = noted(trainer)
    gears = {"gears": {"allowed": ["BF16"], "measure_every": 0}}
    attachment = attach(trainer, config(tmp_path, more=gears))
    trainer.train()
    assert attachment.gears is not None
    assert attachment.gears.box.tokens == lengths(seen)[0]
    found, _ = recorded(tmp_path / "run")
    assert found[Stage.ACTOR_TRAIN][0] == lengths(seen)[0]
