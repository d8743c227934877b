"""Tokens per joule of real TRL trainings: known truth, isolation of runs, supervised training."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import time

import numpy as np
import pytest
from rich.console import Console
from safetensors.numpy import load_file

from ecorl.bench.tokens_per_joule.arms import ADAPTIVE, CLOCKS
from ecorl.bench.tokens_per_joule.benchmark import run_plan
from ecorl.bench.tokens_per_joule.plan import BenchPlan
from ecorl.bench.tokens_per_joule.reading.runs import read_run
from ecorl.bench.tokens_per_joule.result import read_result
from ecorl.bench.tokens_per_joule.running.folder import JSON_FILE, BenchFolder
from ecorl.bench.tokens_per_joule.running.known_truth import LIMIT, course_j
from ecorl.config import validate_config
from ecorl.errors import DataError
from ecorl.ledger import LEDGER_FILE
from ecorl.records import EventKind, Provenance, Stage, StageWork
from ecorl.runtime.local import build_runtime
from ecorl.runtime.runs.record import create_run
from ecorl.runtime.training import TrainingSide
from roll_adapters.trl.run import train_supervised
from tests.fakes.nvml.fake_nvml import fake_nvml, fake_nvml_library  # noqa: F401

pytestmark = pytest.mark.slow

STEPS, WARM_UP, ROWS = 8, 2, 16
SEEDS = (5, 6)


def settings(tiny, **trainer):
    return {
        "name": "tiny",
        "task": {
            "type": "files",
            "policy": str(tiny.policy),
            "reward": str(tiny.reward),
            "prompts": str(tiny.prompts),
            "eval_prompts": str(tiny.eval_prompts),
        },
        "trainer": {
            "steps": STEPS,
            "per_device_batch_size": ROWS,
            "num_generations": 4,
            "max_completion_length": 6,
            "learning_rate": 1e-3,
            "evaluate_every": 3,
            "save_every": STEPS,
            **trainer,
        },
    }


@pytest.fixture(scope="module")
def bench(tiny, tmp_path_factory):
    """A session of two placements and two seeds, and its result."""
    folder = BenchFolder(tmp_path_factory.mktemp("bench") / "b")
    answered = _with_answers(tiny, folder.path.parent / "prompts.jsonl")
    config = validate_config(settings(tiny) | {"task": settings(tiny)["task"] | {
        "prompts": str(answered)
    }})  # fmt: skip
    plan = BenchPlan(
        base=config,
        placements=("gpu_only", "concurrent"),
        extras=(ADAPTIVE, CLOCKS),
        seeds=SEEDS,
        warm_up=WARM_UP,
        idle_s=0.3,
    )
    said = []
    return folder, run_plan(plan, folder, said.append)


def _with_answers(tiny, path):
    rows = [json.loads(line) for line in tiny.prompts.read_text().splitlines()]
    told = [{**row, "answer": str(9999 - int(row["prompt"][5:-1]))} for row in rows]
    path.write_text("".join(json.dumps(row) + "\n" for row in told))
    return path


def test_every_arm_and_seed_has_its_figures(bench):
    folder, result = bench
    assert [r.missing for r in (*result.runs, *result.supervised)] == [""] * 8
    for run in result.runs:
        assert run.n_steps == STEPS - WARM_UP
        assert run.n_samples == (STEPS - WARM_UP) * ROWS
        assert run.tokens_per_j > 0
        assert [p.step for p in run.quality] == [0, 3, 6, STEPS]
        assert (run.card is None) == run.arm.startswith("gpu_only")
        assert (run.packing is None) == (not run.arm.endswith(ADAPTIVE))
    assert read_result(folder.path / JSON_FILE) == result


def test_one_seed_sees_the_same_prompts_in_all_arms_and_begins_with_the_same_policy(bench):
    _, result = bench
    for seed in SEEDS:
        own = [r for r in result.runs if r.seed == seed]
        assert len({r.quality[0].reward for r in own}) == 1
    first, second = (next(r for r in result.runs if r.seed == s) for s in SEEDS)
    assert first.n_tokens != second.n_tokens or first.quality != second.quality


def test_a_run_in_a_session_is_bit_for_bit_the_run_alone(bench, tiny, tmp_path):
    """Nothing of an earlier arm, and nothing of the fork, is in a run."""
    folder, _ = bench
    from roll_adapters.trl.run import run

    last = folder.run_dir("gpu_only", SEEDS[1])
    recorded = json.loads((folder.path / "plan.json").read_text())["plan"]["config"]
    import tomllib

    data = tomllib.loads(recorded) | {"seed": SEEDS[1], "run_dir": str(tmp_path / "alone")}
    data["placement"] = {"policy": {"type": "static"}}
    assert run(validate_config(data), tmp_path / "alone", Console(quiet=True))
    one, other = (load_file(d / "model" / "model.safetensors") for d in (last, tmp_path / "alone"))
    assert all(np.array_equal(one[key], other[key]) for key in one)


LATE_S = 0.25
"""Time between two readings beyond which the second is late, s; they are 0.1 s apart as a rule."""


def test_tokens_and_joules_of_the_session_straight_from_sqlite(bench):
    folder, result = bench
    for run in result.runs:
        path = folder.run_dir(run.arm, run.seed) / LEDGER_FILE
        with contextlib.closing(sqlite3.connect(path)) as db:
            tokens, drawn_j, missing_share, slack_j = _by_sql(db)
        assert run.n_tokens == tokens
        # A run of half a second may be over before a busy machine has read its power often enough.
        if missing_share == 0:
            assert run.machine.energy_j == pytest.approx(drawn_j, rel=0.002, abs=slack_j)
        elif missing_share > 0.05:
            assert run.machine is None or run.machine.at_least


def _by_sql(db):
    """Output tokens and joules after the warm-up, and the share of the time without readings.

    Last, the joules between readings that a busy machine took late and that an edge of the time
    lies between: nothing tells its share. They are 0 where readings come as they should.
    """
    (tokens,) = db.execute(
        "SELECT sum(n_output_tokens) FROM execution WHERE stage = 'generation' AND role_name "
        "IS NULL AND iteration > ?",
        (WARM_UP,),
    ).fetchone()
    begin, end = db.execute(
        "SELECT (SELECT min(start_t_s) FROM execution WHERE iteration > ? AND role_name IS "
        "NULL), (SELECT t_s FROM event WHERE kind = 'training_end')",
        (WARM_UP,),
    ).fetchone()
    holes = db.execute(
        "SELECT start_t_s, end_t_s FROM execution WHERE role_name = 'evaluation' AND "
        "start_t_s > ? AND start_t_s < ?",
        (begin, end),
    ).fetchall()
    assert len(holes) == 2
    counted = db.execute(
        "SELECT t_s, energy_j FROM raw_sample WHERE energy_j IS NOT NULL ORDER BY t_s"
    ).fetchall()
    times, joules = map(np.array, zip(*counted, strict=True))

    def at(t_s):
        return float(np.interp(t_s, times, joules))

    missing_s = max(0.0, times[0] - begin) + max(0.0, end - times[-1])
    drawn_j = at(end) - at(begin) - sum(at(b) - at(a) for a, b in holes)
    edges = np.array([begin, end, *(t_s for hole in holes for t_s in hole)])
    holds_edge = np.isin(np.arange(1, len(times)), np.searchsorted(times, edges))
    late = np.diff(times) > LATE_S
    slack_j = float(np.diff(joules)[holds_edge & late].sum())
    return tokens, drawn_j, missing_s / (end - begin), slack_j


def test_the_run_of_known_energy_is_within_the_limit(bench):
    folder, result = bench
    assert result.known_truth.error <= LIMIT
    # The course is not a constant, which would hide a window that is cut wrongly.
    assert course_j(3.0) - course_j(2.0) > 1.3 * (course_j(6.0) - course_j(5.0))
    assert folder.is_done("known_truth", 0)


def test_supervised_training_learns_the_answers(bench):
    _, result = bench
    for run in result.supervised:
        assert run.n_samples == (STEPS - WARM_UP) * ROWS
        assert run.n_all_tokens > run.n_tokens > 0
        # Four digits and the end of each answer.
        assert run.n_tokens == 5 * run.n_samples
        assert run.quality[-1].step == STEPS


def test_supervised_training_needs_answers(tiny, tmp_path):
    config = validate_config(settings(tiny))
    with pytest.raises(DataError, match='not every prompt has an "answer"'):
        train_supervised(config, tmp_path / "s", Console(quiet=True))
    assert not (tmp_path / "s").exists()


# ---------------------------------------------------------------- a GPU of known energy


def test_a_run_on_a_gpu_of_known_energy_gives_the_known_tokens_per_joule(
    fake_nvml,  # noqa: F811
    tmp_path,
    monkeypatch,
):
    """Stages as a framework on a GPU runs them, power read through NVIDIA's own package."""
    for key, value in fake_nvml.child_environment().items():
        monkeypatch.setenv(key, value)
    # Between two readings of the counter, 0.05 s apart, a step of 50 W hides 0.63 J at most: a
    # thousandth of what is drawn.
    fake_nvml.set("devices 1", "base_mw 200000", "peak_mw 250000", "period_ms 200", "duty 0.25")
    config = validate_config(
        {
            "trainer": {"steps": STEPS},
            "telemetry": {"gpu": {"type": "nvml", "interval_s": 0.05}},
            "devices": {"gpu": "h100_sxm"},
        }
    )
    ledger = create_run(config, tmp_path / "run", {})
    runtime = build_runtime(config, ledger, TrainingSide("cuda", pids=(os.getpid(),)))
    runtime.start()
    time.sleep(0.5)
    begun = {}
    for step in range(1, STEPS + 1):
        iteration = runtime.begin_iteration(step)
        for stage, long_s in ((Stage.GENERATION, 0.33), (Stage.ACTOR_TRAIN, 0.21)):
            if stage is Stage.GENERATION:
                begun[step] = time.monotonic()
            open_stage = runtime.on_stage_start(iteration, StageWork(stage, 8, 90, 40 + step, 12))
            time.sleep(long_s)
            runtime.on_stage_end(open_stage, StageWork(stage, 8, 90, 40 + step, 12))
        time.sleep(0.05)
    ledger.event(EventKind.TRAINING_END, "")
    ended = time.monotonic()
    time.sleep(0.3)
    runtime.close()
    ledger.event(EventKind.FINISH, "")
    ledger.close()
    found = read_run(tmp_path / "run", "gpu_only", 0, WARM_UP)
    tokens = sum(40 + step for step in range(WARM_UP + 1, STEPS + 1))
    true_j = _square_wave_j(ended) - _square_wave_j(begun[WARM_UP + 1])
    assert found.machine.provenance is Provenance.MEASURED
    assert found.n_tokens == tokens
    assert found.tokens_per_j == pytest.approx(tokens / true_j, rel=LIMIT)


def _square_wave_j(t_s, base_w=200.0, peak_w=250.0, period_s=0.2, duty=0.25):
    """What the fake GPU's counter says at a monotonic time, J."""
    whole, phase_s = divmod(t_s, period_s)
    peak_s = whole * duty * period_s + min(phase_s, duty * period_s)
    return base_w * t_s + (peak_w - base_w) * peak_s
