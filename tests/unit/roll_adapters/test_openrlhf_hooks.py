"""The hooks of OpenRLHF's trainer: whatever fails of ecorl, the training goes on as it would."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("ray")

from ecorl.records import Action, Provenance, Stage
from ecorl.runtime.handles import RoleTotals, RunTotals
from roll_adapters.openrlhf.hooks import TAG, Away, TrainerHooks
from roll_adapters.openrlhf.rewards import TIMES
from tests.fakes.openrlhf import FakeGroup, FakeRuntime, flags, micro_batch, own_answer

FORWARDS = (Stage.REWARD, Stage.ACTOR_TRAIN, Stage.CRITIC_TRAIN, Stage.REFERENCE)
"""Groups in the order in which OpenRLHF sends their forward passes."""

OFFLOADED = (Stage.REWARD, Stage.REFERENCE)
METHODS = (
    "tick", "begin_iteration", "on_stage_start", "restart", "submit", "land", "fill", "forget",
    "account", "end_when_ready", "settle", "totals", "edi_json",
)  # fmt: skip
ROWS = [
    ([3, 4, 5, 6], [False, True, True]),
    ([7, 8, 9], [True, False]),
    ([10, 11, 12, 13, 14], [False, True, False, True]),
    ([15, 16], [True]),
]


def response(n_tokens=6, times=None):
    told = {"observation_tokens": list(range(n_tokens)), "action_ranges": [(2, n_tokens)]}
    return told if times is None else {**told, TIMES: times}


class Training:
    """OpenRLHF's side of some steps: what it computes, and what came of it."""

    def __init__(self, runtime, n_responses=4, change=lambda tensor: tensor, **options):
        args = flags(
            rollout__temperature=0.7, train__max_epochs=2, ckpt__save_steps=float("inf"),
            train__async_enable=options.pop("is_async", False),
            **options.pop("args", {}),
        )  # fmt: skip
        self.runtime = runtime
        self.hooks = TrainerHooks(runtime, args, options.pop("from_step", 0), **{
            "normalised": {}, **options,
        })  # fmt: skip
        self.n_responses = n_responses
        self.parts = [micro_batch(ROWS[:2], [2, 0]), micro_batch(ROWS[2:], [1, 3], 1)]
        self.groups = {stage: FakeGroup(stage, self.parts, change) for stage in FORWARDS}
        self.answers, self.refs, self.n_steps = {}, {}, 0

    def generate(self, times=None):
        def generate():
            for _ in range(self.n_responses):
                self.hooks.responded(response(times=times))
            # The samples of the micro-batches' rows, by their numbers.
            rows = [ROWS[(1, 2, 0, 3)[i % 4]] for i in range(self.n_responses)]
            return [micro_batch([row], [0]) for row in rows], None, 4, False

        self.samples = self.hooks.generate(generate)[0]
        return self.samples

    def forwards(self, **images):
        self.hooks.begin_experience(self.samples)
        self.hooks.begin_forward(self.parts)
        kwargs = {"sequences": [part.sequences for part in self.parts], **images}
        for stage, group in self.groups.items():
            self.refs[stage] = self.hooks.forward(group, kwargs, group.send)
        for stage, group in self.groups.items():
            self.answers[stage] = self.hooks.gather(self.refs[stage], group.gather)

    def train(self):
        def step():
            self.forwards()
            for stage in (Stage.CRITIC_TRAIN, Stage.ACTOR_TRAIN):
                assert self.hooks.train(stage, lambda: ["fitted"]) == ["fitted"]
            self.n_steps += 1
            return {"policy_loss": 0.5}, self.n_steps

        status, number = self.hooks.step(step)
        saved = []
        self.hooks.save(number, status, lambda: saved.append(number))
        assert saved == [number]
        return status

    def step(self):
        self.generate()
        return self.train()

    def right(self):
        """Whether the training has got what OpenRLHF itself would have answered."""
        for stage in FORWARDS:
            for mine, part in zip(self.answers[stage], self.parts, strict=True):
                torch.testing.assert_close(mine, own_answer(stage, part), rtol=0, atol=1e-6)
        return True


# ---------------------------------------------------------------- a step


def test_the_gpu_path_is_openrlhf_s_own_with_a_record_beside_it():
    run = Training(runtime := FakeRuntime())
    run.step()
    assert run.right()
    assert all(run.refs[stage] == [f"ref of {stage}"] for stage in FORWARDS)
    assert [run.groups[stage].sent for stage in FORWARDS] == [[stage] for stage in FORWARDS]
    assert runtime.roles("end_when_ready") == [
        "reward", "actor_train", "critic", "reference", "critic_train", "actor_train",
    ]  # fmt: skip
    assert runtime.roles("account") == ["generation"]
    assert runtime.roles("submit") == []
    assert runtime.numbers == [1]
    works = {(r.work.role, r.work.n_sequences): r.work for r in runtime.runs}
    # The policy's forward before the step has no output of its own; training reads rows twice,
    # and what an environment said between a row's actions with them.
    assert works["actor_train", 4].n_output_tokens == 0
    assert works["actor_train", 8].n_output_tokens == 2 * 8
    assert runtime.record.metrics == {(1, "loss"): 0.5}


def test_steps_are_numbered_from_where_the_run_goes_on():
    run = Training(runtime := FakeRuntime(), from_step=4)
    run.n_steps = 4
    run.step()
    run.step()
    assert runtime.numbers == [5, 6]
    assert [stage.iteration.batch for stage, *_ in runtime.accounted] == [4, 5]
    assert runtime.roles("tick") == ["", ""]
    assert set(runtime.record.metrics) == {(5, "loss"), (6, "loss")}


def test_rows_are_with_an_engine_until_they_are_asked_for():
    run = Training(runtime := FakeRuntime(Action.CONCURRENT))
    run.step()
    assert run.right()
    for stage in OFFLOADED:
        assert isinstance(run.refs[stage], Away)
        assert run.refs[stage] == []
        assert run.groups[stage].sent == []
        assert run.groups[stage].ran == []
    order = [call for call in runtime.calls if call[0] in ("submit", "land")]
    assert order == [
        ("submit", "reward"), ("submit", "reference"), ("land", "reward"), ("land", "reference"),
    ]  # fmt: skip
    ids = {run.batch.sample_ids for run in runtime.runs if run.sent}
    # The rows of the micro-batches go by their index, and have the same ids with both engines.
    assert ids == {tuple(f"1.{i}" for i in (2, 0, 1, 3))}
    assert [r.batch.temperature for r in runtime.runs if r.sent] == [1.0, 0.7]


def test_with_a2_nothing_runs_beside_the_card():
    run = Training(runtime := FakeRuntime(Action.FPGA))
    run.generate()
    run.hooks.begin_experience(run.samples)
    run.hooks.begin_forward(run.parts)
    group = run.groups[Stage.REWARD]
    refs = run.hooks.forward(group, {"sequences": [1, 2]}, group.send)
    assert runtime.roles("land") == ["reward"]
    assert refs == []
    first = run.hooks.gather(refs, group.gather)
    assert run.hooks.gather(refs, group.gather) is first
    assert runtime.roles("land") == ["reward"]


def test_rows_that_do_not_arrive_are_openrlhf_s_own():
    run = Training(runtime := FakeRuntime(Action.CONCURRENT, bad=[1]))
    run.step()
    assert run.right()
    assert [run.groups[stage].ran for stage in OFFLOADED] == [[[0]], [[0]]]
    assert "end_when_ready" not in {name for name, role in runtime.calls if role in OFFLOADED}


@pytest.mark.parametrize("bad", [(), (0, 3)])
def test_rewards_of_an_engine_are_normalised_as_openrlhf_s_are(bad):
    mean, std = 4.0, 8.0
    runtime = FakeRuntime(Action.CONCURRENT, bad=bad)
    run = Training(
        runtime,
        normalised={Stage.REWARD: (mean, std)},
        change=lambda tensor: (tensor - mean) / std if tensor.dim() == 1 else tensor,
    )
    run.step()
    for mine, part in zip(run.answers[Stage.REWARD], run.parts, strict=True):
        torch.testing.assert_close(mine, (own_answer(Stage.REWARD, part) - mean) / std)


def test_images_stay_where_openrlhf_puts_them():
    run = Training(runtime := FakeRuntime(Action.CONCURRENT))
    run.generate()
    run.forwards(mm_train_inputs_list=[[None, {"pixels": 1}], [None, None]])
    assert run.right()
    assert runtime.roles("submit") == []
    run.forwards(mm_train_inputs_list=[[None, None], []])
    assert runtime.roles("submit") == ["reward", "reference"]


@pytest.mark.parametrize(
    ("images", "asked"), [([None], ["reward", "reference"]), ([{"pixels": 1}], ["reward"])]
)
def test_no_decision_is_asked_for_that_images_would_overrule(images, asked):
    run = Training(runtime := FakeRuntime(Action.CONCURRENT))
    run.generate()
    for sample in run.samples:
        sample.mm_train_inputs = images
    run.hooks.begin_experience(run.samples)
    assert runtime.roles("expect_stages") == asked


def test_decisions_are_asked_for_of_the_stages_that_start():
    run = Training(runtime := FakeRuntime(Action.CONCURRENT))
    run.step()
    started = {started.work.role: started.work for started in runtime.runs}
    assert [work.role for work in runtime.expected] == ["reward", "reference"]
    assert all(started[work.role] == work for work in runtime.expected)


def test_the_first_batch_of_an_engine_is_compared_once():
    runtime = FakeRuntime(Action.CONCURRENT)
    run = Training(runtime, compared=OFFLOADED)
    run.step()
    shifts = runtime.record.evaluations
    assert {name for name, _ in shifts} == {"score_shift", "rank_flip", "logprob_shift"}
    assert shifts["score_shift", "first batch"] == [0.0] * 4
    assert [run.groups[stage].ran for stage in OFFLOADED] == [[[0, 1]], [[0, 1]]]
    run.step()
    assert [run.groups[stage].ran for stage in OFFLOADED] == [[[0, 1]], [[0, 1]]]
    assert run.right()


# ---------------------------------------------------------------- generation


def test_generation_and_remote_rewards_are_told_apart():
    run = Training(runtime := FakeRuntime())
    run.generate(times=([(100.0, 102.0), (101.0, 103.0)], [(102.5, 104.0)]))
    (generation, spans, node), (reward, waited, _) = runtime.accounted
    assert (generation.work.stage, reward.work.stage) == (Stage.GENERATION, Stage.REWARD)
    assert (generation.work.n_sequences, generation.work.n_tokens) == (4, 24)
    assert generation.work.n_output_tokens == reward.work.n_output_tokens == 16
    assert [round(s.t_end_s - s.t_start_s, 3) for s in (*spans, *waited)] == [3.0, 1.5]
    assert node == "here"


def test_a_call_that_generates_nothing_leaves_no_stage():
    run = Training(runtime := FakeRuntime(), n_responses=0)
    assert run.generate() == []
    assert runtime.roles("forget") == ["generation"]
    assert runtime.accounted == []


def test_an_error_of_generation_is_openrlhf_s_and_leaves_no_stage():
    run = Training(runtime := FakeRuntime())

    def generate():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run.hooks.generate(generate)
    assert runtime.roles("forget") == ["generation"]


def test_a_sample_that_was_kept_back_keeps_its_id():
    run = Training(FakeRuntime())
    kept = run.generate()[3]
    before = getattr(kept, TAG)[1]
    run.n_responses = 1
    run.hooks.generate(lambda: (run.hooks.responded(response()), [[kept]])[1])
    assert getattr(kept, TAG)[1] == before == "1.3"


def test_the_generator_of_an_asynchronous_trainer_counts_what_it_hands_over():
    run = Training(runtime := FakeRuntime(), is_async=True)
    run.generate()
    run.n_responses = 0
    run.generate()
    run.n_responses = 4
    run.generate()
    assert runtime.numbers == [1, 2, 2]
    assert runtime.roles("tick") == []  # the trainer's process is asked, at its steps


def test_it_goes_on_counting_when_ecorl_fails():
    run = Training(runtime := FakeRuntime(broken=["on_stage_start"]), is_async=True)
    run.generate()
    run.generate()
    assert runtime.numbers == [1, 2]


def test_a_batch_belongs_to_the_iteration_in_which_it_was_generated():
    generator = Training(FakeRuntime(), is_async=True, from_step=6)
    trainer = Training(runtime := FakeRuntime(), is_async=True, from_step=5)
    trainer.samples = generator.generate()
    trainer.n_steps = 5
    trainer.train()
    assert runtime.numbers == []
    assert {run.stage.iteration.number for run in runtime.runs} == {7}
    assert runtime.roles("tick") == [""]


def test_samples_that_nobody_tagged_are_counted_too():
    run = Training(runtime := FakeRuntime(Action.CONCURRENT), from_step=2)
    run.samples = [SimpleNamespace() for _ in range(4)]
    run.forwards()
    assert run.right()
    ids = [i for r in runtime.runs if r.sent for i in r.batch.sample_ids]
    assert len(set(ids)) == 4
    assert all(i.startswith("3.here.") for i in ids)


# ---------------------------------------------------------------- what fails of ecorl's own


@pytest.mark.parametrize("action", list(Action))
@pytest.mark.parametrize("method", METHODS)
def test_nothing_that_fails_reaches_the_training(method, action, caplog):
    run = Training(runtime := FakeRuntime(action, bad=[2], broken=[method]))
    run.step()
    run.step()
    assert run.right()
    called = {name for name, _ in runtime.calls}
    assert (method in called) == (f"{method} is broken" in caplog.text)


@pytest.mark.parametrize("wrong", ["index", "ids"])
def test_micro_batches_of_another_shape_stay_on_the_gpu_path(wrong):
    run = Training(runtime := FakeRuntime(Action.CONCURRENT))
    run.generate()
    for part in run.parts:
        part.index = None if wrong == "index" else [99] * len(part.index)
    run.forwards()
    assert runtime.roles("submit") == []
    assert [run.groups[stage].sent for stage in FORWARDS] == [[stage] for stage in FORWARDS]


def test_rows_of_an_earlier_step_are_not_taken_for_this_one_s():
    run = Training(runtime := FakeRuntime(Action.CONCURRENT))
    run.step()
    run.samples = [SimpleNamespace() for _ in range(4)]
    runtime._broken = {"begin_iteration"}
    n_calls = len(runtime.calls)
    run.forwards()
    assert run.right()
    assert {name for name, _ in runtime.calls[n_calls:]} == {"begin_iteration"}


# ---------------------------------------------------------------- logs and checkpoints


def test_energy_joins_what_openrlhf_logs():
    run = Training(runtime := FakeRuntime())
    assert not any(key.startswith("energy/") for key in run.step())
    sums = RoleTotals(6.0, 3, 1, 0, Provenance.MEASURED)
    runtime.sums = RunTotals({"reward": sums}, {"reward": Action.FPGA}, 10.0)
    status = run.step()
    assert status["energy/reward_j"] == 6.0
    assert status["energy/total_j"] == 10.0
    assert status["device/reward"] == 1.0
    assert (2, "energy/reward_j") not in runtime.record.metrics


def test_a_checkpoint_is_recorded_after_openrlhf_has_saved_it(tmp_path):
    args = {"ckpt__path": str(tmp_path), "ckpt__disable_ds": False}
    run = Training(runtime := FakeRuntime(), args=args)
    run.hooks._args.ckpt.save_steps = 2
    folder = tmp_path / "_actor" / "global_step2"
    for step in (1, 2, 3):
        run.hooks.save(step, {}, lambda: folder.mkdir(parents=True, exist_ok=True))
    assert runtime.record.checkpoints == [(2, str(folder))]
    assert (folder / "ecorl_state.json").is_file()
