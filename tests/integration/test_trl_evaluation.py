"""Evaluations of a TRL trainer: a row and a cause of their own, and nothing that training sees."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from rich.console import Console
from safetensors.numpy import load_file

from ecorl.config import validate_config
from ecorl.ledger import LedgerReader
from ecorl.records import EVALUATION_ROLE, Stage
from ecorl.report import Report, build_report, read_config
from ecorl.report.energy.model import Cause
from ecorl.report.render.page import render_html
from ecorl.report.render.text import print_report
from roll_adapters.trl import evaluate
from roll_adapters.trl.run import run
from roll_adapters.trl_hooks import attach
from tests.integration.checks import assert_same_bits, config, outcome

EVALUATES = {
    "eval_strategy": "steps",
    "eval_steps": 2,
    "eval_on_start": True,
    "per_device_eval_batch_size": 8,
}
N_EVAL = 2
"""Prompts of an evaluation; each is answered four times."""


@pytest.fixture
def make_evaluating(make_trainer, tiny):
    """Makes trainers that evaluate before training and after steps 2 and 4."""
    rows = [json.loads(line) for line in tiny.prompts.read_text().splitlines()][:N_EVAL]

    def make(algorithm: str, name: str, **changes: Any) -> Any:
        parts = {"eval_dataset": Dataset.from_list(rows)}
        return make_trainer(algorithm, name, parts=parts, **EVALUATES | changes)

    return make


def evaluations(trainer: Any) -> list[dict[str, Any]]:
    """All that TRL logged of its evaluations, but for how long they took."""
    timed = ("_runtime", "_per_second", "step_time")
    return [
        {k: v for k, v in row.items() if not k.endswith(timed)}
        for row in trainer.state.log_history
        if "eval_reward" in row
    ]


def report_of(run_dir: Any) -> Report:
    with LedgerReader(run_dir) as reader:
        return build_report(reader, read_config(reader.run(), run_dir))


@pytest.mark.parametrize("algorithm", ["grpo", "rloo"])
def test_evaluations_are_recorded_and_change_nothing(make_evaluating, tmp_path, algorithm):
    plain = make_evaluating(algorithm, "plain")
    plain.train()
    attached = make_evaluating(algorithm, "attached")
    attach(attached, config(tmp_path, algorithm))
    attached.train()
    assert_same_bits(outcome(plain), outcome(attached))
    assert evaluations(plain) == evaluations(attached)
    assert len(evaluations(plain)) == 3
    with contextlib.closing(LedgerReader(tmp_path / "run")) as reader:
        rows = [e.result for e in reader.executions()]
        placed = {p.placement.role for p in reader.placements()}
        (matrix,) = reader.edi()
        told = {m.iteration: m.value for m in reader.metrics("eval_reward")}
    own = [r for r in rows if r.role == EVALUATION_ROLE]
    assert [r.iteration for r in own] == [0, 2, 4]
    for r in own:
        assert r.n_sequences == 4 * N_EVAL
        assert r.n_tokens > r.n_output_tokens > 0
        assert r.time_s > 0
        assert r.energy.energy_j > 0
    # They overlap no stage.
    spans = sorted((r.t_start_s, r.t_end_s) for r in rows)
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))
    assert EVALUATION_ROLE not in placed
    assert "evaluation" not in matrix.json
    assert told == {s: e["eval_reward"] for s, e in zip((0, 2, 4), evaluations(plain), strict=True)}

    report = report_of(tmp_path / "run")
    assert report.head.n_steps_done == 4
    (row,) = [r for r in report.stages if r.role == "evaluation"]
    assert row.n_calls == 3
    (column,) = report.spending.columns
    assert column.by_cause[Cause.EVALUATION] == pytest.approx(sum(r.energy.energy_j for r in own))
    generated = sum(r.n_output_tokens for r in rows if r.role == Stage.GENERATION)
    assert report.spending.n_output_tokens == generated
    assert "no evaluation was recorded" not in report.missing
    first, last = (evaluations(plain)[i]["eval_reward"] for i in (0, -1))
    assert report.own_evaluations.startswith("the trainer's own evaluations: mean reward ")
    assert "after step 0 -> " in report.own_evaluations
    assert f"{first:.3g} after step 0" in report.own_evaluations
    assert f"{last:.3g} after step 4 (3 evaluations)" in report.own_evaluations
    out = Console(width=100, record=True)
    print_report(report, out)
    for text in (out.export_text(), render_html(report)):
        assert "evaluation" in text
        assert "evaluations: mean reward" in " ".join(text.split()).replace("&#39;", "'")


def test_a_resumed_run_keeps_the_evaluations_of_its_kept_steps(make_evaluating, tmp_path):
    from tests.integration.test_trl_resume import Cut, CutAt

    saves = {"save_strategy": "steps", "save_steps": 2}
    first = make_evaluating("grpo", "attached", **saves)
    attach(first, config(tmp_path))
    first.add_callback(CutAt(3))
    with pytest.raises(Cut):
        first.train()
    again = make_evaluating("grpo", "attached", **saves)
    attach(again, config(tmp_path), resume_from_checkpoint=True)
    again.train(resume_from_checkpoint=True)
    with contextlib.closing(LedgerReader(tmp_path / "run")) as reader:
        own = [e for e in reader.executions() if e.result.role == EVALUATION_ROLE]
    assert [(e.attempt, e.result.iteration, e.superseded) for e in own if e.result.iteration] == [
        (1, 2, False),
        (2, 4, False),
    ]


def test_an_evaluation_that_fails_ends_as_without_ecorl(make_evaluating, tmp_path):
    class OwnError(Exception):
        pass

    trainer = make_evaluating("grpo", "attached", eval_on_start=False)
    attach(trainer, config(tmp_path))

    def fails(*_: Any, **__: Any) -> None:
        raise OwnError("no data")

    trainer.evaluation_loop = fails
    with pytest.raises(OwnError):
        trainer.train()
    assert report_of(tmp_path / "run").head.ended_by == "OwnError: no data"


@pytest.mark.parametrize("beta", [0.0, 0.05])
def test_a_run_without_a_reference_says_why(make_trainer, tmp_path, beta):
    trainer = make_trainer(name="attached", beta=beta, max_steps=1)
    attach(trainer, config(tmp_path))
    trainer.train()
    report = report_of(tmp_path / "run")
    has_row = any(r.stage is Stage.REFERENCE for r in report.stages)
    assert has_row == (beta > 0)
    line = "no reference: the trainer's beta is 0, so it computes none"
    assert report.remarks == (() if has_row else (line,))
    out = Console(width=100, record=True)
    print_report(report, out)
    assert (line in out.export_text()) != has_row
    assert ("No reference: the trainer" in render_html(report)) != has_row


def along_run(tiny, tmp_path, name: str, every: int) -> tuple[dict[str, Any], Any]:
    """A run of `ecorl run` with evaluations along training: its weights, and what it recorded."""
    folder = tmp_path / name
    settings = {
        "name": name,
        "seed": 5,
        "run_dir": str(folder),
        "task": {
            "type": "files",
            "policy": str(tiny.policy),
            "reward": str(tiny.reward),
            "prompts": str(tiny.prompts),
            "eval_prompts": str(tiny.eval_prompts),
        },
        "trainer": {
            "steps": 6,
            "per_device_batch_size": 16,
            "num_generations": 4,
            "max_completion_length": 6,
            "learning_rate": 1e-3,
            "evaluate_every": every,
        },
    }
    assert run(validate_config(settings), folder, Console(quiet=True))
    return load_file(folder / "model" / "model.safetensors"), folder


def test_evaluations_along_training_change_no_bit_of_it(tiny, tmp_path):
    plain, plain_dir = along_run(tiny, tmp_path, "plain", 0)
    along, along_dir = along_run(tiny, tmp_path, "along", 2)
    assert plain.keys() == along.keys()
    assert all(np.array_equal(plain[key], along[key]) for key in plain)
    with LedgerReader(plain_dir) as one, LedgerReader(along_dir) as other:
        named = ("loss", "reward", "kl", "grad_norm", "completion_length")
        for name in named:
            assert [m.value for m in one.metrics(name)] == [m.value for m in other.metrics(name)]
        phases = {e.phase for e in one.evaluations()}
        assert phases == {"before", "after"}
        told = [(e.name, e.phase) for e in other.evaluations()]
        values = {(e.name, e.phase): e.values for e in other.evaluations()}
        rows = [e.result for e in other.executions() if e.result.role == EVALUATION_ROLE]
        assert {(e.name, e.phase): e.values for e in one.evaluations()}.items() <= values.items()
    expected = ["before", "step 2", "step 4", "after"]
    assert told == [(name, phase) for phase in expected for name in ("reward", "correct")]
    # Each is a different policy's, and each has a row of its own: neither training nor generation.
    assert len({values["reward", phase] for phase in expected}) == 4
    assert [r.iteration for r in rows] == [0, 2, 4, 6]
    report = report_of(along_dir)
    assert [g.after for g in report.gains] == ["after", "after"]
    assert [sentence.split(":")[0] for sentence in report.evaluated_along] == [
        "reward along training, by step",
        "correct along training, by step",
    ]
    shown = Console(width=100, file=io.StringIO())
    print_report(report, shown)
    assert "reward along training, by step" in shown.file.getvalue()
    assert "Correct along training, by step" in render_html(report)


def test_an_evaluation_that_draws_random_numbers_leaves_those_of_training_alone(
    tiny, tmp_path, monkeypatch
):
    def drawing(*args: Any, **kwargs: Any) -> Any:
        torch.rand(1000)
        return greedy(*args, **kwargs)

    greedy = evaluate._greedy
    plain, _ = along_run(tiny, tmp_path, "plain", 0)
    monkeypatch.setattr(evaluate, "_greedy", drawing)
    along, _ = along_run(tiny, tmp_path, "along", 1)
    assert all(np.array_equal(plain[key], along[key]) for key in plain)
