"""A TRL training whose rewards and reference are answered on another machine of a Ray cluster."""

from __future__ import annotations

import contextlib

import psutil
import pytest
import torch
from transformers import TrainerCallback

from benchmarks.studies.frameworks.samples import count_samples
from ecorl.config import validate_config
from ecorl.ledger import LedgerReader
from ecorl.records import Action, EventKind, FaultKind, Stage
from ecorl.runtime.training import this_node
from roll_adapters.trl_hooks import attach
from tests.cluster import CARDS
from tests.integration.checks import BOTH, MODELLED, outcome
from tests.integration.tiny_trainer import tiny_trainer

pytestmark = pytest.mark.timeout(900)  # several processes that train share two slow cores


@pytest.fixture
def cluster(ray_nodes):
    """The cluster; attach joins it, and leaves it again."""
    import ray

    ray.shutdown()
    return ray_nodes


def config(cluster, tmp_path, offload, policy=BOTH):
    return validate_config(
        {
            "run_dir": str(tmp_path / "run"),
            "runtime": {"type": "ray", "address": cluster.address},
            "placement": {"policy": policy},
            "engine": {"offload": offload},
            "telemetry": MODELLED,
        }
    )


@pytest.fixture(scope="module")
def plain(tiny, tmp_path_factory):
    """What plain TRL ends with."""
    trainer = tiny_trainer(tiny, tmp_path_factory.mktemp("plain"))
    trainer.train()
    return outcome(trainer)


def assert_close(one, other):
    for mine, theirs in zip(one["log"], other["log"], strict=True):
        for key in mine:
            assert float(theirs[key]) == pytest.approx(float(mine[key]), abs=1e-6), key
    for name, weight in one["weights"].items():
        assert torch.allclose(weight, other["weights"][name], rtol=0, atol=1e-6), name


class Kill(TrainerCallback):
    """Ends actors of the run at once when steps begin."""

    def __init__(self, actors):
        self.actors = actors

    def on_step_begin(self, args, state, control, **kwargs):
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error):
                name = " ".join(process.cmdline())
                if state.global_step in self.actors and name.startswith(
                    f"ray::{self.actors[state.global_step]}"
                ):
                    process.kill()


def test_with_workers_and_scheduler_killed_the_numbers_are_those_of_plain_trl(
    cluster, make_trainer, plain, tmp_path
):
    trainer = make_trainer(name="killed")
    attach(trainer, config(cluster, tmp_path, {"type": "torch"}))
    trainer.add_callback(Kill({1: "WorkerActor", 2: "SchedulerActor"}))
    trainer.train()
    assert_close(plain, outcome(trainer))
    roles = (str(Stage.REWARD), str(Stage.REFERENCE))
    expected = {(step, role): 16 for step in range(1, 5) for role in roles}
    with contextlib.closing(LedgerReader(tmp_path / "run")) as reader:
        assert count_samples(reader, expected) == (0, 0)
        assert FaultKind.SCHEDULER_LOST in {fault.kind for fault in reader.faults()}
        assert EventKind.FINISH in {event.kind for event in reader.events()}
        assert [m.iteration for m in reader.metrics("loss")] == [1, 2, 3, 4]


def test_an_exact_engine_on_a_worker_gives_the_numbers_of_plain_trl(
    cluster, make_trainer, plain, tmp_path
):
    trainer = make_trainer(name="ray")
    attach(trainer, config(cluster, tmp_path, {"type": "torch"}))
    trainer.train()
    assert_close(plain, outcome(trainer))
    with contextlib.closing(LedgerReader(tmp_path / "run")) as reader:
        rows = [row.result for row in reader.executions()]
        assert reader.lost_nodes() == []
        assert {row.node for row in reader.nodes()} == {this_node(), CARDS}
        assert EventKind.FINISH in {event.kind for event in reader.events()}
        assert reader.faults() == []
    for stage in (Stage.REWARD, Stage.REFERENCE):
        own = [r for r in rows if r.stage is stage]
        assert [(r.action, r.node, r.n_rows_fallback) for r in own] == [
            (Action.CONCURRENT, CARDS, 0)
        ] * 4
    for stage in (Stage.GENERATION, Stage.ACTOR_TRAIN):
        own = [r for r in rows if r.stage is stage and r.n_output_tokens]
        assert {r.node for r in own} == {this_node()}
        assert all(r.energy.energy_j > 0 for r in own)


def test_what_the_gears_measure_is_in_the_record_that_the_scheduler_keeps(
    cluster, make_trainer, tmp_path
):
    trainer = make_trainer(name="gears")
    offload = {"type": "torch"}
    settings = config(cluster, tmp_path, offload, {"type": "static"}).model_dump(mode="json")
    settings["gears"] = {"allowed": ["BF16", "FP8"], "simulate_fp8": True, "measure_every": 2}
    attach(trainer, validate_config(settings))
    trainer.train()
    with contextlib.closing(LedgerReader(tmp_path / "run")) as reader:
        measured = [row.iteration for row in reader.metrics("gear_measurement_s")]
        kinds = {event.kind for event in reader.events()}
    assert measured == [1, 3]
    assert EventKind.LEDGER_ROWS_DROPPED not in kinds
