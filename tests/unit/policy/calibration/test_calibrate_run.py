"""Ledgers as a run on this host writes them: real clocks, a card without hardware behind it."""

from __future__ import annotations

import time
import tomllib
from dataclasses import replace

import numpy as np
import pytest

from ecorl.config import Config, config_toml
from ecorl.engines.lanes.threaded import ThreadedEngine
from ecorl.engines.protocol import EngineReport, LogprobResult, ScoreBatch, ScoreResult
from ecorl.errors import UserError
from ecorl.ledger import LEDGER_FILE, Ledger
from ecorl.policy.calibration.calibrate import calibrate
from ecorl.policy.calibration.calibration import Reach, holds_for
from ecorl.policy.calibration.costs import BOTH_WAYS, N_BOTH_WAYS
from ecorl.records import Abilities, Algorithm, ModelShape, Provenance, Stage, StageWork
from ecorl.runtime.local import LocalRuntime
from ecorl.runtime.protocol import join
from ecorl.runtime.training import FrozenModel, TrainingSide, this_node
from ecorl.scheduler.tables import COLUMN
from tests.fakes.grids import until

TINY = ModelShape(1, 8, 16, 1, 1, 8, 64, 1_500, 1_000)
N_ROWS, PROMPT = 8, 4
CARD_S, CARD_W = 1e-5, 70.0
"""Time of the toy card for a token, and its power."""

FROZEN = (Stage.REWARD, Stage.REFERENCE)


class Toy:
    """A card that reports modelled figures and answers at the host's pace."""

    name, model, row_invariant, card_bytes, host = "toy", TINY, True, 1_000, "csim"

    def __init__(self, stage, device):
        self.stage, self.device = stage, device

    def score(self, batch):
        time_s = CARD_S * batch.n_tokens
        report = EngineReport(time_s, CARD_W * time_s, Provenance.MODELLED, 40 * time_s)
        if self.stage is Stage.REWARD:
            return ScoreResult(batch.sample_ids, np.zeros(len(batch), np.float32), report)
        rows = tuple(np.zeros(n, np.float32) for n in batch.n_completion)
        return LogprobResult(batch.sample_ids, rows, report)

    logprobs = score

    def close(self):
        pass


ALWAYS_CARD = {"type": "static", "reward": "concurrent", "reference": "concurrent"}
IN_TURNS = {"policy": ALWAYS_CARD, "profile_both_paths": True, "n_profiling": 1000}


def config(gpu_power, placement):
    return Config.model_validate(
        {
            "placement": placement,
            "trainer": {"max_completion_length": 32},
            "telemetry": {
                "gpu": {"type": gpu_power, "interval_s": 0.02},
                "stale_after_s": 600.0,
            },
        }
    )


def ran(folder, monkeypatch, n_iterations, gpu_power="modelled", placement=IN_TURNS):
    """A run of the real runtime over toy stages; every other batch stays on the GPU path."""
    monkeypatch.setattr(
        "ecorl.runtime.local.build_engine",
        lambda config, checkpoint, stage, device, **_: ThreadedEngine(Toy(stage, device)),
    )
    made = config(gpu_power, placement)
    ledger = Ledger.create(
        folder / LEDGER_FILE,
        run_id="toy",
        config_toml=config_toml(made),
        meta={},
        node=this_node(),
    )
    side = TrainingSide(
        models=dict.fromkeys(Stage, TINY), frozen=dict.fromkeys(FROZEN, FrozenModel(folder))
    )
    with ledger:
        runtime = LocalRuntime(made, ledger, side)
        runtime.start()
        if gpu_power != "null":
            # The stages are so short that all could end before the instrument's first reading.
            until(lambda: runtime.totals().drawn_j is not None)
        for iteration in range(1, n_iterations + 1):
            step(runtime, iteration)
        runtime.close()
    return folder


def step(runtime, iteration):
    n_out = 8 + 8 * (iteration % 3)
    row = np.ones(PROMPT + n_out, np.int64)
    batch = ScoreBatch(
        tuple(f"{iteration}.{i}" for i in range(N_ROWS)), (row,) * N_ROWS, (n_out,) * N_ROWS
    )

    def work(stage):
        return StageWork(stage, N_ROWS, batch.n_tokens, N_ROWS * n_out, len(row), TINY)

    def on_host(stage):
        run = runtime.on_stage_start(opened, work(stage))
        if not run.placement.on_gpu:
            assert runtime.submit(run, lambda: batch)
            return run
        time.sleep(1e-4 * n_out)
        runtime.on_stage_end(run)
        return None

    opened = runtime.begin_iteration(iteration)
    on_host(Stage.GENERATION)
    for run in [on_host(stage) for stage in FROZEN]:
        if run is not None:
            join(runtime, run, lambda rows: pytest.fail("the toy answers every row"))
    on_host(Stage.ACTOR_TRAIN)


def test_a_run_of_this_runtime_is_accepted(tmp_path, monkeypatch, snapshot):
    found = calibrate(ran(tmp_path, monkeypatch, 32))
    assert (found.algorithm, found.with_reference) == (Algorithm.GRPO, True)
    assert (found.gpu, found.n_gpus, found.card, found.n_cards) == ("host_cpu", 1, "u55c", 1)
    assert (found.n_rows, found.prompt_length, found.max_length) == (N_ROWS, PROMPT, 32.0)
    assert found.abilities == Abilities()
    assert found.table.card_usable == (True, True, False)
    assert found.table.card_active_w == pytest.approx(CARD_W)
    assert found.provenance is Provenance.MODELLED
    seen = np.array([8.0, 16.0, 24.0])
    for stage in FROZEN:
        card_s = found.table.at(seen)[:, COLUMN[f"{stage}_card_s"]]
        assert card_s == pytest.approx(CARD_S * N_ROWS * (PROMPT + seen), rel=0.02)
        assert found.counts[f"{stage}_card_s"] == 16
    # A stage's time is the clock's: in its mean at least what the shortest slept.
    assert found.table.at(seen)[:, COLUMN["actor_train_s"]].max() >= 1e-4 * seen.min()
    assert found.others.load == 0.0
    # The first note counts readings that a busy machine made outliers.
    snapshot("\n".join(found.notes[1:]))
    scenario = found.scenario()
    assert [str(s) for s in scenario.setting.stages] == [
        "generation", "reward", "reference", "actor_train",
    ]  # fmt: skip


@pytest.mark.parametrize(("n_iterations", "gpu_power"), [(6, "modelled"), (22, "null")])
def test_a_run_that_says_too_little_is_refused(
    tmp_path, monkeypatch, n_iterations, gpu_power, snapshot
):
    folder = ran(tmp_path, monkeypatch, n_iterations, gpu_power)
    with pytest.raises(UserError) as caught:
        calibrate(folder)
    snapshot(str(caught.value))


def test_a_run_that_never_used_the_card_is_told_how_to_get_one_that_did(
    tmp_path, monkeypatch, snapshot
):
    folder = ran(tmp_path, monkeypatch, 32, placement={"policy": {"type": "static"}})
    with pytest.raises(UserError) as caught:
        calibrate(folder)
    assert BOTH_WAYS in str(caught.value)
    snapshot(str(caught.value))


def test_the_run_that_is_recommended_can_be_calibrated(tmp_path, monkeypatch, snapshot):
    recommended, _, steps = BOTH_WAYS.partition(" and ")
    placement = tomllib.loads(recommended)["placement"]
    assert str(N_BOTH_WAYS) in steps
    made = calibrate(ran(tmp_path, monkeypatch, N_BOTH_WAYS, placement=placement))
    for stage in FROZEN:
        assert made.counts[f"{stage}_card_s"] == N_BOTH_WAYS // 2
        assert 0 < made.counts[f"{stage}_s"] <= N_BOTH_WAYS // 2  # a clock has outliers
    assert made.reach == Reach(N_BOTH_WAYS, N_ROWS, N_ROWS, PROMPT, PROMPT, 8.0, 24.0)
    # How many readings were outliers differs from run to run.
    snapshot("\n".join(holds_for(replace(made, counts=dict.fromkeys(made.counts, 12)))))
