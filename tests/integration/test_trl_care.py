"""What a user's own trainer may do besides: attached training stays what it is without ecorl."""

from __future__ import annotations

import contextlib
import inspect
import os
import re
import signal
import sqlite3
import time
from pathlib import Path

import pytest
import torch
from transformers import TrainerCallback

from ecorl.errors import ConfigError
from ecorl.ledger import Ledger, LedgerReader
from ecorl.records import Action, Algorithm, Stage, StageResult
from ecorl.runtime import checkpoints
from ecorl.runtime.frozen_models import Watch, frozen_checkpoint
from roll_adapters.trl_hooks import attach
from tests.integration.checks import BOTH, assert_same_bits, config, outcome

EXACT = {"offload": {"type": "torch", "isolated": False}}
ISOLATED = {"offload": {"type": "torch"}}
REWARD = {"type": "static", "reward": "concurrent"}
"""One engine, where each has a process of its own."""


class AtStep(TrainerCallback):
    """Calls a function after one step."""

    def __init__(self, step: int, act) -> None:
        self.step, self.act = step, act

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            self.act()


def actions(folder: Path, stage: Stage) -> list[Action]:
    with contextlib.closing(LedgerReader(folder)) as reader:
        return [p.placement.action for p in reader.placements() if p.placement.stage is stage]


def fault_kinds(folder: Path) -> list[str]:
    with contextlib.closing(LedgerReader(folder)) as reader:
        return [fault.kind for fault in reader.faults()]


def assert_as_plain(make, settings, habit) -> None:
    """Train without ecorl and with it, the user's habit put on both: the same weights.

    Within 1e-6, as from the exact engine.
    """
    weights = []
    for name in ("plain", "attached"):
        trainer = make(name)
        if name == "attached":
            attach(trainer, settings)
        habit(trainer)
        trainer.train()
        weights.append(outcome(trainer)["weights"])
    for name, weight in weights[0].items():
        assert torch.allclose(weight, weights[1][name], rtol=0, atol=1e-6), name


@pytest.mark.parametrize("how", ["load_state_dict", "data"])
def test_a_reference_that_the_user_resets_is_not_scored_with_stale_weights(
    make_trainer, tmp_path, how
):
    def reset(trainer):
        if how == "load_state_dict":
            trainer.ref_model.load_state_dict(trainer.model.state_dict())
            return
        pairs = zip(trainer.ref_model.parameters(), trainer.model.parameters(), strict=True)
        for reference, policy in pairs:  # as TRL's own synchronisation does
            reference.data.mul_(0.5).add_(policy.data, alpha=0.5)

    assert_as_plain(
        lambda name: make_trainer(name=name, max_steps=4, learning_rate=1e-2, beta=0.2),
        config(tmp_path, policy=BOTH, engine=EXACT),
        lambda trainer: trainer.add_callback(AtStep(2, lambda: reset(trainer))),
    )
    c, gpu = Action.CONCURRENT, Action.GPU
    assert actions(tmp_path / "run", Stage.REFERENCE) == [c, c, gpu, gpu]
    assert actions(tmp_path / "run", Stage.REWARD) == [c, c, c, c]
    assert fault_kinds(tmp_path / "run") == ["EngineRetired"]


def test_a_watch_sees_each_tensor_and_another_model(make_trainer):
    trainer = make_trainer()
    watch = Watch(trainer.ref_model)
    assert watch.same(trainer.ref_model)
    assert not watch.same(trainer.model)
    for name, tensor in trainer.ref_model.named_parameters():
        kept = tensor.detach().clone()
        tensor.data.mul_(1.001)
        assert not watch.same(trainer.ref_model), name
        tensor.data.copy_(kept)
        assert watch.same(trainer.ref_model), name


def test_a_config_changed_in_memory_is_not_scored_with_the_one_on_disk(tmp_path, tiny):
    from transformers import AutoModelForSequenceClassification as Model

    options = {"dtype": torch.float32, "num_labels": 1}
    assert frozen_checkpoint(Model.from_pretrained(tiny.reward, **options), tmp_path) == tiny.reward
    rope = {"rope_type": "default", "rope_theta": 50.0}
    for changed in ({"rms_norm_eps": 0.5}, {"rope_parameters": rope}):
        model = Model.from_pretrained(tiny.reward, **options, **changed)
        folder = frozen_checkpoint(model, tmp_path / next(iter(changed)))
        again = Model.from_pretrained(folder, **options)
        ids = torch.tensor([[3, 4, 5, 6]])
        assert folder != tiny.reward
        assert torch.equal(again(ids).logits, model(ids).logits)


@pytest.mark.parametrize("rows", [{}, {"per_device_train_batch_size": 8}])
def test_a_trainer_that_asks_for_the_reference_again_gets_its_own_answer(
    make_trainer, tmp_path, rows
):
    def ask_again(trainer):
        own = trainer._compute_loss

        def compute_loss(model, inputs):
            ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1)
            mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], 1)
            keep = inputs["completion_ids"].size(1)
            with torch.no_grad():
                again, _, _ = trainer._get_per_token_logps_and_entropies(
                    trainer.ref_model, ids, mask, keep
                )
            return own(model, {**inputs, "ref_per_token_logps": again})

        trainer._compute_loss = compute_loss

    changes = rows | ({"gradient_accumulation_steps": 2} if rows else {})
    assert_as_plain(
        lambda name: make_trainer(name=name, max_steps=2, **changes),
        config(tmp_path, policy=BOTH, engine=EXACT),
        ask_again,
    )
    assert fault_kinds(tmp_path / "run") == []


def test_a_trainer_that_asks_for_some_rows_before_the_loss_gets_its_own_answer(
    make_trainer, tmp_path
):
    def in_halves(trainer):
        own = trainer._get_per_token_logps_and_entropies

        def halves(model, ids, mask, keep, *args, **kwargs):
            if model is not trainer.ref_model or not trainer.model.training:
                return own(model, ids, mask, keep, *args, **kwargs)
            n = len(ids) // 2
            parts = [
                own(model, ids[s], mask[s], keep, *args, **kwargs)[0]
                for s in (slice(0, n), slice(n, None))
            ]
            return torch.cat(parts), None, None

        trainer._get_per_token_logps_and_entropies = halves

    assert_as_plain(
        lambda name: make_trainer(name=name, max_steps=2),
        config(tmp_path, policy=BOTH, engine=EXACT),
        in_halves,
    )
    assert set(actions(tmp_path / "run", Stage.REFERENCE)) == {Action.GPU}


def test_steps_that_train_on_an_older_batch_are_booked_as_their_own(make_trainer, tmp_path):
    trainer = make_trainer(num_iterations=2, max_steps=6)
    settings = config(tmp_path, policy=BOTH, engine=EXACT, n_profiling=2, profile_both_paths=True)
    attach(trainer, settings)
    trainer.train()
    with contextlib.closing(LedgerReader(tmp_path / "run")) as reader:
        rows = [row.result for row in reader.executions()]
    trained = [r.iteration for r in rows if r.stage is Stage.ACTOR_TRAIN]
    assert sorted(set(trained)) == [1, 2, 3, 4, 5, 6]
    assert [r.iteration for r in rows if r.stage is Stage.GENERATION] == [1, 3, 5]
    # The profiling phase alternates by rollout batch, so that both paths get their turn.
    c, gpu = Action.CONCURRENT, Action.GPU
    assert actions(tmp_path / "run", Stage.REWARD) == [gpu, c, c]


def test_a_training_without_a_length_limit_is_attached_too(make_trainer, tmp_path):
    trainer = make_trainer(max_steps=1, max_completion_length=None)
    trainer.generation_config.max_new_tokens = 6
    attach(trainer, config(tmp_path))
    trainer.train()
    assert trainer.state.global_step == 1


def test_a_full_disk_at_a_checkpoint_costs_the_checkpoint_alone(
    make_trainer, tmp_path, monkeypatch
):
    def full(*_state):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoints, "write_state", full)
    plain = make_trainer()
    plain.train()
    trainer = make_trainer(name="attached", save_strategy="steps", save_steps=2)
    attach(trainer, config(tmp_path))
    trainer.train()
    assert_same_bits(outcome(plain), outcome(trainer))
    assert fault_kinds(tmp_path / "run") == ["CheckpointIncomplete"] * 2


def test_a_ledger_that_another_program_holds_does_not_hold_up_the_training(
    make_trainer, tmp_path, monkeypatch
):
    trainer = make_trainer(max_steps=4, save_strategy="steps", save_steps=2)
    attach(trainer, config(tmp_path))
    foreign = sqlite3.connect(tmp_path / "run" / "ledger.sqlite", isolation_level=None)
    waits: list[tuple[float, bool]] = []
    flush = Ledger.flush

    def wait(ledger, timeout_s=30.0):
        done = flush(ledger, timeout_s)
        if foreign.in_transaction:
            waits.append((timeout_s, done))
        return done

    class Holds(TrainerCallback):
        def on_train_begin(self, args, state, control, **kwargs):
            foreign.execute("BEGIN IMMEDIATE")
            monkeypatch.setattr(Ledger, "flush", wait)

        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == 3:
                foreign.execute("ROLLBACK")

    trainer.add_callback(Holds())
    trainer.train()
    foreign.close()
    # Only the checkpoint of the second step, for less than the ledger itself is patient.
    assert waits == [(checkpoints._FLUSH_S, False)]
    assert inspect.signature(flush).parameters["timeout_s"].default > checkpoints._FLUSH_S
    with contextlib.closing(LedgerReader(tmp_path / "run")) as reader:
        assert {m.iteration for m in reader.metrics("loss")} == {1, 2, 3, 4}


def test_a_method_that_the_user_replaced_is_used_and_given_back(make_trainer, tmp_path):
    trainer = make_trainer(max_steps=1)
    calls = []

    def mine(*args, **kwargs):
        calls.append(len(args))
        return type(trainer)._calculate_rewards(trainer, *args, **kwargs)

    trainer._calculate_rewards = mine
    attach(trainer, config(tmp_path))
    trainer.train()
    assert len(calls) == 1
    assert trainer.__dict__["_calculate_rewards"] is mine


def test_a_batch_that_cannot_be_made_stays_on_the_gpu(make_trainer, tmp_path, monkeypatch):
    from roll_adapters.trl.reference import ReferenceCall
    from roll_adapters.trl.reward import RewardModelCall

    def broken(self, *args, **kwargs):
        raise RuntimeError("no batch today")

    monkeypatch.setattr(ReferenceCall, "batch", broken)
    monkeypatch.setattr(RewardModelCall, "batch", broken)
    plain = make_trainer(max_steps=2)
    plain.train()
    trainer = make_trainer(name="attached", max_steps=2)
    attach(trainer, config(tmp_path, policy=BOTH, engine=EXACT))
    trainer.train()
    assert_same_bits(outcome(plain), outcome(trainer))
    assert fault_kinds(tmp_path / "run") == ["RuntimeError"] * 2


def executions(folder: Path, stage: Stage) -> list[StageResult]:
    with contextlib.closing(LedgerReader(folder)) as reader:
        return [r.result for r in reader.executions() if r.result.stage is stage]


def test_a_reward_function_beside_an_offloaded_model_is_no_price_of_the_model(
    make_trainer, tmp_path
):
    trainer = make_trainer()
    trainer.reward_funcs.append(lambda completions, **_: [0.0] * len(completions))
    trainer.reward_func_names.append("nothing")
    trainer.reward_processing_classes.append(None)
    trainer.reward_weights = torch.tensor([1.0, 1.0])
    attachment = attach(trainer, config(tmp_path, policy=BOTH, engine=EXACT))
    trainer.train()
    found = executions(tmp_path / "run", Stage.REWARD)
    beside = [r for r in found if r.role == "reward:other"]
    function = [r for r in found if r.role == "reward:nothing"]
    model = [r for r in found if r.action is not Action.GPU]
    assert len(beside) == len(function) == len(model) == 4
    assert {(r.n_tokens, r.n_output_tokens) for r in beside + function} == {(0, 0)}
    assert all(r.n_output_tokens > 0 for r in model)
    priced = {(c.stage, c.device) for c in attachment.runtime.edi.cells()}
    assert (Stage.REWARD, beside[0].device) not in priced


def test_what_callbacks_do_at_the_end_of_a_step_is_not_training(make_trainer, tmp_path):
    trainer, edges_s = make_trainer(), []

    def works():
        edges_s.append(time.monotonic())
        time.sleep(0.1)
        edges_s.append(time.monotonic())

    trainer.add_callback(AtStep(2, works))  # before ours, so it runs first
    attach(trainer, config(tmp_path))
    trainer.train()
    found = executions(tmp_path / "run", Stage.ACTOR_TRAIN)
    assert all(r.t_end_s <= edges_s[0] or r.t_start_s >= edges_s[1] for r in found)
    assert all(r.time_s <= r.t_end_s - r.t_start_s for r in found)


@pytest.mark.parametrize("beta", [0.05, 0.0])
def test_old_logprobs_are_training_work_with_and_without_a_reference(make_trainer, tmp_path, beta):
    trainer = make_trainer("rloo", beta=beta)
    attach(trainer, config(tmp_path, "rloo"))
    trainer.train()
    assert len(executions(tmp_path / "run", Stage.ACTOR_TRAIN)) == 8


def test_an_engine_that_dies_between_two_steps_is_a_fault_in_the_record(make_trainer, tmp_path):
    trainer = make_trainer()
    attachment = attach(trainer, config(tmp_path, policy=REWARD, engine=ISOLATED))

    def kill():
        for lane in attachment.runtime._scheduler._lanes.values():
            os.kill(lane.engine.pid, signal.SIGKILL)
            while lane.engine.available:
                time.sleep(0.01)

    trainer.add_callback(AtStep(2, kill))
    trainer.train()
    assert fault_kinds(tmp_path / "run") == ["EngineCrashed"]


def test_sigterm_to_the_whole_group_leaves_engine_and_sampler_to_the_trainer(
    make_trainer, tmp_path
):
    trainer = make_trainer()
    attachment = attach(trainer, config(tmp_path, policy=REWARD, engine=ISOLATED))

    def terminate():
        runtime = attachment.runtime
        pids = [lane.engine.pid for lane in runtime._scheduler._lanes.values()] + [
            runtime._monitor.sampler.pid
        ]
        for pid in pids:
            os.kill(pid, signal.SIGTERM)

    trainer.add_callback(AtStep(2, terminate))
    trainer.train()
    assert fault_kinds(tmp_path / "run") == []
    assert actions(tmp_path / "run", Stage.REWARD) == [Action.CONCURRENT] * 4


@pytest.mark.parametrize("trained", ["grpo", "rloo"])
def test_a_trainer_of_another_algorithm_is_not_attached_to(make_trainer, tmp_path, trained):
    trainer = make_trainer(trained)
    for algorithm in {*map(str, Algorithm)} - {trained}:
        allowed = f"algorithm = {algorithm!r}: allowed is {trained} for a {type(trainer).__name__}"
        with pytest.raises(ConfigError, match=f"^{re.escape(allowed)}$"):
            attach(trainer, config(tmp_path, algorithm))
    assert not (tmp_path / "run").exists()
