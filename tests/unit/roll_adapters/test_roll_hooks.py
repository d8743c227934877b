"""The hooks in the driver of a ROLL pipeline: stages, steps, rollouts, what fails of ecorl's."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

pytest.importorskip("ray")

import ray
from ray import cloudpickle
from ray.exceptions import RayActorError

from ecorl.records import Action, Provenance
from ecorl.runtime.handles import RoleTotals, RunTotals
from roll_adapters.ray_jobs.sizes import RolloutSizes
from roll_adapters.roll.stages import hooks
from roll_adapters.roll.stages.dispatch import WatchedCall, watched_generator
from roll_adapters.roll.stages.hooks import PipelineHooks
from roll_adapters.roll.stages.references import ReferenceRequest, References
from roll_adapters.roll.times import RolloutTimes, TakenTimes
from tests.fakes.roll_batches import (
    ROWS,
    Compute,
    FakeRuntime,
    cluster,
    merge,
    own_logprobs,
    step_batch,
)

METHODS = (
    "tick", "begin_iteration", "expect_stages", "on_stage_start", "restart", "submit", "land",
    "fill", "pause", "account", "end_when_ready", "on_stage_end", "expect_totals", "settle",
    "totals",
)  # fmt: skip
DOMAINS = ["math", "code", "code", "math", "math", "code"]
SIZES = RolloutSizes(2, 20, 8, 12)
N_TOKENS, N_OUTPUT = 23, 13


def wrapped():
    """What ROLL's dispatch gives for a call that is on its way."""
    return [SimpleNamespace(obj_ref=ray.ObjectRef.from_random(), collected=True)]


def seen():
    """Times of two calls of generation and one of rewards."""
    times = RolloutTimes()
    times.generated(SIZES, [(100.0, 102.0)])
    times.generated(SIZES, [(101.0, 103.0)])
    times.rewarded("math", SIZES, (102.5, 104.0))
    return times


def seen_in(*steps):
    """What an actor tells whose samples are in the batches of some steps."""
    return TakenTimes({step: seen() for step in steps})


class Late:
    """An answer that comes only after a while."""

    def __init__(self, told):
        self.told, self.is_there = told, False


@pytest.fixture(autouse=True)
def rollout_actors(monkeypatch):
    """Rollout actors whose answers are what stands for their references."""

    def get(ref):
        if isinstance(ref, Exception):
            raise ref
        return ref

    def wait(refs, num_returns, timeout):
        late = [ref for ref in refs if isinstance(ref, Late) and not ref.is_there]
        return [getattr(ref, "told", ref) for ref in refs if ref not in late], late

    monkeypatch.setattr(ray, "get", get)
    monkeypatch.setattr(ray, "wait", wait)
    monkeypatch.setattr(hooks, "current", None)


def actor(answer):
    return SimpleNamespace(take_rollout_times=SimpleNamespace(remote=lambda step: answer))


class Rlvr:
    """ROLL's driver of RLVR for some steps: what it dispatches, and what came of it."""

    def __init__(self, runtime, from_step=0, compute=None, **options):
        self.runtime, self.compute = runtime, compute or Compute()
        references = References(
            runtime, self.compute, merge, {}, compared=False, overlap=options.pop("overlap", False)
        )
        self.clusters = {"default": cluster("reference", self.send_reference)}
        self.hooks = PipelineHooks(
            runtime, references, {"reference": "default"}, passes=2, from_step=from_step
        )

    def send(self, where, method, batch, blocking=False):
        answer = "its answer" if blocking else wrapped()
        assert self.hooks.dispatched(where, method, batch, lambda: answer) is answer

    def send_reference(self, batch, blocking):
        self.send("reference", "compute_log_probs", batch, blocking)

    def rollout(self, step, *answers):
        self.hooks.begin(step)
        self.batch = step_batch(ROWS, domains=DOMAINS)
        self.hooks.rolled_out(self.batch, step, [actor(a) for a in answers or (seen_in(step),)])

    def train(self, step):
        call = ReferenceRequest(self.batch, self.clusters, None)
        assert self.hooks.compute_references(call) is self.batch
        self.send("critic", "compute_values", self.batch)
        self.batch.reorder(torch.tensor([3, 0, 5, 1, 4, 2]))
        self.send("actor_train", "compute_log_probs", self.batch, blocking=True)
        self.parts = self.batch.parts(2)
        for part in self.parts:
            self.hooks.join_references(part)
        self.send("critic", "train_step", self.batch)
        self.send("actor_train", "train_step", self.batch)
        values = {"actor/total_loss": 0.5, "note": "text"}
        self.hooks.before_checkpoint(values, step)
        return self.hooks.log(values, step)

    def step(self, step):
        self.rollout(step)
        return self.train(step)

    def right(self):
        for part in self.parts:
            torch.testing.assert_close(part.batch["ref_log_probs"], own_logprobs(part))
        return True


# ---------------------------------------------------------------- a step


def test_the_gpu_path_is_roll_s_own_with_a_record_beside_it():
    run = Rlvr(runtime := FakeRuntime())
    assert run.step(0) == {"actor/total_loss": 0.5, "note": "text"}
    assert run.right()
    assert runtime.roles("end_when_ready") == [
        "reference", "critic", "critic_train", "actor_train",
    ]  # fmt: skip
    assert runtime.roles("on_stage_end") == ["actor_train"]
    assert runtime.roles("account") == ["generation", "reward:math"]
    assert (runtime.roles("submit"), runtime.roles("forget")) == ([], [])
    # The reference's clock starts where ROLL dispatches it.
    assert runtime.roles("restart") == ["generation", "reference"]
    assert (runtime.numbers, runtime.roles("tick")) == ([1], [""])
    works = {(r.work.role, r.work.n_sequences): r.work for r in runtime.runs}
    # Old log-probs have no output of their own; training reads rows twice.
    assert works["actor_train", 6].n_output_tokens == 0
    assert works["actor_train", 12].n_output_tokens == 2 * N_OUTPUT
    assert works["critic", 6].n_tokens == works["reference", 6].n_tokens == N_TOKENS
    assert runtime.record.metrics == {(1, "loss"): 0.5}


@pytest.mark.parametrize("action", [Action.FPGA, Action.CONCURRENT])
def test_a_reference_that_is_away_is_no_call_of_the_dispatch(action):
    run = Rlvr(runtime := FakeRuntime(action, bad=[2]))
    run.step(0)
    assert run.right()
    assert runtime.roles("submit") == runtime.roles("land") == ["reference"]
    assert "reference" not in runtime.roles("end_when_ready")
    assert [call.rows for call in run.compute.calls] == [[2]]


def test_steps_are_numbered_from_where_the_run_goes_on():
    run = Rlvr(runtime := FakeRuntime(), from_step=4)
    run.step(4)
    run.step(5)
    assert runtime.numbers == [5, 6]
    assert runtime.roles("tick") == ["", ""]
    assert set(runtime.record.metrics) == {(5, "loss"), (6, "loss")}
    assert {run.stage.iteration.batch for run in runtime.of("actor_train")} == {4, 5}


def test_a_decision_is_asked_for_of_the_reference_that_starts():
    run = Rlvr(runtime := FakeRuntime(Action.CONCURRENT))
    run.step(0)
    assert runtime.expected == [runtime.of("reference")[0].work]


def test_no_decision_is_asked_for_that_images_would_overrule():
    run = Rlvr(runtime := FakeRuntime(Action.CONCURRENT))
    run.hooks.begin(0)
    batch = step_batch(ROWS)
    batch.non_tensor_batch["multi_modal_inputs"] = np.array([{}] * len(batch), dtype=object)
    run.hooks.rolled_out(batch, 0, [])
    assert runtime.expected == []


def test_energy_joins_what_roll_logs():
    run = Rlvr(runtime := FakeRuntime())
    assert not any(key.startswith("energy/") for key in run.step(0))
    sums = RoleTotals(6.0, 3, 1, 0, Provenance.MEASURED)
    runtime.sums = RunTotals({"reference": sums}, {"reference": Action.FPGA}, 10.0)
    told = run.step(1)
    assert told["energy/reference_j"] == 6.0
    assert told["energy/total_j"] == 10.0
    assert told["device/reference"] == 1.0
    assert (2, "energy/reference_j") not in runtime.record.metrics


# ---------------------------------------------------------------- stages of the dispatch


@pytest.mark.parametrize(
    ("where", "method", "role", "n_output", "n_rows"),
    [
        ("actor_train", "compute_log_probs", "actor_train", 0, 6),
        ("actor_train", "train_step", "actor_train", 2 * N_OUTPUT, 12),
        ("student_train", "train_step", "actor_train", 2 * N_OUTPUT, 12),
        ("student", "train_step", "actor_train", 2 * N_OUTPUT, 12),
        ("sft_train", "train_step", "actor_train", 2 * N_OUTPUT, 12),
        ("critic", "compute_values", "critic", N_OUTPUT, 6),
        ("critic", "train_step", "critic_train", 2 * N_OUTPUT, 12),
        ("reference", "compute_log_probs", "reference", N_OUTPUT, 6),
        ("teacher", "forward", "reference", N_OUTPUT, 6),
    ],
)
def test_a_call_is_a_stage_by_its_cluster_and_method(where, method, role, n_output, n_rows):
    own = PipelineHooks(runtime := FakeRuntime(), None, {where: "default"}, passes=2)
    assert own.dispatched(where, method, step_batch(ROWS), lambda: "answer") == "answer"
    (run,) = runtime.runs
    assert (run.work.role, run.work.n_output_tokens, run.work.n_sequences) == (
        role, n_output, n_rows,
    )  # fmt: skip
    assert run.placement.on_gpu


@pytest.mark.parametrize(
    ("where", "method"),
    [
        ("actor_infer", "compute_log_probs"), ("student_infer", "train_step"),
        ("reward-math", "compute_rewards"), ("reward_model", "train_step"),
        ("train_env", "train_step"), ("actor_train", "do_checkpoint"),
        ("critic", "load_states"), ("reference", "train_step"),
    ],
)  # fmt: skip
def test_other_calls_are_none(where, method):
    own = PipelineHooks(runtime := FakeRuntime(), None, {})
    assert own.dispatched(where, method, step_batch(ROWS), lambda: [1, 2]) == [1, 2]
    assert own.dispatched("actor_train", "train_step", None, lambda: "no rows") == "no rows"
    assert runtime.calls == []


def test_each_of_several_references_is_a_role():
    names = {"teacher-large": "large", "teacher-small": "small"}
    own = PipelineHooks(runtime := FakeRuntime(), None, names)
    for where in (*names, "teacher-unknown"):
        own.dispatched(where, "compute_log_probs", step_batch(ROWS), lambda: None)
    assert [r.work.role for r in runtime.runs] == [
        "reference:large", "reference:small", "reference:teacher-unknown",
    ]  # fmt: skip


def test_with_lora_the_policy_without_its_adapter_is_the_reference():
    run = Rlvr(runtime := FakeRuntime(Action.CONCURRENT))
    run.rollout(0)
    for disabled in (True, False):
        run.batch.meta_info["disable_adapter"] = disabled
        run.send("actor_train", "compute_log_probs", run.batch)
    assert [run.work.role for run in runtime.runs[-2:]] == ["reference", "actor_train"]
    assert all(run.placement.on_gpu for run in runtime.runs)


@pytest.mark.parametrize(
    ("answer", "ends"),
    [
        (wrapped() + wrapped(), "end_when_ready"),
        ([ray.ObjectRef.from_random()], "end_when_ready"),
        ([1, 2], "on_stage_end"),
        ([], "on_stage_end"),
        ([*wrapped(), 3], "on_stage_end"),
        (None, "on_stage_end"),
        (step_batch(ROWS), "on_stage_end"),
    ],
    ids=["wrapped", "bare", "plain", "none", "mixed", "nothing", "rows"],
)
def test_results_keep_their_kind_and_tell_when_the_stage_ends(answer, ends):
    own = PipelineHooks(runtime := FakeRuntime(), None, {})
    assert own.dispatched("critic", "compute_values", step_batch(ROWS), lambda: answer) is answer
    assert runtime.calls[-1] == (ends, "critic")


@pytest.mark.parametrize("broken", [[], ["forget"]])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), ValueError("roll's")])
def test_an_error_of_a_call_is_roll_s_and_leaves_no_stage(error, broken):
    own = PipelineHooks(runtime := FakeRuntime(broken=broken), None, {})

    def send():
        raise error

    with pytest.raises(type(error)) as raised:
        own.dispatched("critic", "compute_values", step_batch(ROWS), send)
    assert raised.value is error
    assert runtime.roles("forget") == ["critic"]


# ---------------------------------------------------------------- steps of other pipelines


@pytest.mark.parametrize("updates", [True, False])
def test_a_step_begins_once_whether_weights_are_updated_in_it_or_not(updates):
    own = PipelineHooks(runtime := FakeRuntime(), None, {})
    for step in range(3):
        if updates:
            own.begin(step)
        for method in ("compute_log_probs", "train_step"):
            own.dispatched("actor_train", method, step_batch(ROWS), lambda: None)
        own.log({"loss": 1.0}, step)
    assert runtime.numbers == [1, 2, 3]
    assert [run.stage.iteration.number for run in runtime.runs] == [1, 1, 2, 2, 3, 3]
    assert runtime.roles("tick") == [""] * 3


def test_stages_and_metrics_have_one_number_where_roll_counts_from_1():
    own = PipelineHooks(runtime := FakeRuntime(), None, {})
    for step in (1, 2):  # as ROLL's pipeline for distillation does
        batch = step_batch(ROWS, global_step=step)
        own.dispatched("student", "train_step", batch, lambda: None)
        own.log({"loss": 1.0}, step)
    assert [run.stage.iteration.number for run in runtime.runs] == [2, 3]
    assert set(runtime.record.metrics) == {(2, "loss"), (3, "loss")}


@pytest.mark.parametrize("saves_first", [True, False])
def test_metrics_are_recorded_once_a_step_whenever_roll_saves(saves_first):
    own, told = PipelineHooks(runtime := FakeRuntime(), None, {}), []
    runtime.record.metric = lambda *call: told.append(call)
    for step in range(2):
        calls = [own.before_checkpoint, own.log]
        for call in calls if saves_first else calls[::-1]:
            call({"actor/total_loss": step}, step)
    assert told == [(1, "loss", 0), (2, "loss", 1)]


def test_logs_of_earlier_steps_that_roll_writes_again_end_no_step():
    run = Rlvr(runtime := FakeRuntime(Action.CONCURRENT), from_step=5)
    run.rollout(5)
    run.hooks.compute_references(ReferenceRequest(run.batch, run.clusters, None))
    runtime.sums = RunTotals({}, {}, 10.0)
    assert run.hooks.log({"actor/total_loss": 0.1}, 2) == {"actor/total_loss": 0.1}
    run.hooks.join_references(run.batch)
    run.parts = [run.batch]
    assert run.right()
    run.send("actor_train", "train_step", run.batch)
    assert runtime.of("actor_train")[-1].stage.iteration.number == 6
    assert runtime.record.metrics == {}


# ---------------------------------------------------------------- rollouts


def test_samples_are_booked_to_the_step_that_their_actors_tell():
    run = Rlvr(runtime := FakeRuntime(), from_step=4)
    run.step(4)
    runtime.accounted.clear()
    run.rollout(5, seen_in(5), seen_in(4, 5))
    booked = [(s.work.role, s.iteration.number, s.work.n_sequences) for s, *_ in runtime.accounted]
    assert booked == [
        ("generation", 5, 4), ("reward:math", 5, 2), ("generation", 6, 8), ("reward:math", 6, 4),
    ]  # fmt: skip
    stage, spans, node = runtime.accounted[2]
    assert stage.serial == runtime.of("generation")[1].stage.serial
    assert [round(span.t_end_s - span.t_start_s, 3) for span in spans] == [3.0]
    assert (stage.work.n_tokens, stage.work.max_length, node) == (80, 12, "here")


def test_samples_that_are_generated_ahead_hold_their_devices_until_their_batch_comes():
    run = Rlvr(runtime := FakeRuntime())
    run.rollout(0, TakenTimes({0: seen()}, seen()))
    # Those of both steps share what the devices drew: all hold them before one is accounted.
    both = ["generation", "reward:math"]
    names = [call for call in runtime.calls if call[0] in ("pause", "account")]
    assert names == [("pause", r) for r in both + both] + [("account", r) for r in both]
    assert [stage.iteration.number for stage, *_ in runtime.accounted] == [1, 1]
    run.train(0)
    ahead = runtime.of("generation")[1]
    run.rollout(1)
    assert [s.iteration.number for s, *_ in runtime.accounted] == [1, 1, 2, 2]
    assert runtime.accounted[2][0].serial == ahead.stage.serial
    assert len(runtime.of("generation")) == 2
    # The control path is asked once a step, however early its iteration was opened.
    run.train(1)
    assert runtime.roles("tick") == ["", ""]
    assert runtime.roles("forget") == []


def test_what_was_generated_for_no_batch_is_in_the_last_step():
    run = Rlvr(runtime := FakeRuntime())
    run.rollout(0, TakenTimes({0: seen()}, seen()))
    run.train(0)
    runtime.accounted.clear()
    run.hooks.finish([actor(TakenTimes(ahead=seen())), actor(TakenTimes())])
    booked = [(s.work.role, s.iteration.number, s.work.n_sequences) for s, *_ in runtime.accounted]
    assert booked == [("generation", 1, 4), ("reward:math", 1, 2)]
    assert runtime.roles("forget") == ["generation", "reward:math"]


def test_samples_of_a_step_that_is_long_over_are_booked_too():
    run = Rlvr(runtime := FakeRuntime())
    for step in range(12):
        run.hooks.begin(step)
    runtime.accounted.clear()
    run.hooks.rolled_out(step_batch(ROWS), 11, [actor(seen_in(0))])
    assert [stage.iteration.number for stage, *_ in runtime.accounted] == [1, 1]


def test_a_rollout_that_generates_nothing_leaves_no_stage():
    run = Rlvr(runtime := FakeRuntime())
    run.rollout(0, TakenTimes())
    assert runtime.roles("forget") == ["generation"]
    assert runtime.accounted == []


def test_actors_that_do_not_answer_leave_their_rollout_unmeasured(caplog, snapshot):
    run = Rlvr(runtime := FakeRuntime(Action.CONCURRENT))
    run.rollout(0, seen_in(0), RayActorError())
    run.train(0)
    assert run.right()
    (line,) = caplog.messages
    snapshot(line)
    # What the others told counts.
    assert [stage.work.role for stage, *_ in runtime.accounted] == ["generation", "reward:math"]


def test_an_answer_that_comes_late_is_heard_at_the_next_step(caplog, snapshot):
    run, late = Rlvr(runtime := FakeRuntime()), Late(seen_in(0))
    run.rollout(0, late)
    assert (runtime.accounted, runtime.roles("forget")) == ([], ["generation"])
    (line,) = caplog.messages
    snapshot(line)
    run.train(0)
    late.is_there = True
    run.rollout(1)
    assert [s.iteration.number for s, *_ in runtime.accounted] == [1, 1, 2, 2]


# ---------------------------------------------------------------- what fails of ecorl's own


@pytest.mark.parametrize("action", list(Action))
@pytest.mark.parametrize("method", METHODS)
def test_nothing_that_fails_reaches_the_training(method, action, caplog):
    run = Rlvr(runtime := FakeRuntime(action, bad=[2], broken=[method]))
    for step in range(2):
        run.step(step)
        assert run.right()
    called = {name for name, _ in runtime.calls}
    assert (method in called) == (f"{method} is broken" in caplog.text)


def test_rows_of_another_shape_are_no_stage(caplog):
    own = PipelineHooks(runtime := FakeRuntime(), None, {})
    strange = SimpleNamespace(batch={}, meta_info={})
    assert own.dispatched("critic", "compute_values", strange, lambda: "answer") == "answer"
    assert runtime.runs == []
    assert "ecorl: " in caplog.text


# ---------------------------------------------------------------- the wrapped dispatch


class Seen:
    def __init__(self):
        self.calls = []

    def dispatched(self, *call):
        self.calls.append(call[:3])
        return call[3]()


def generate(cls, method_name, **how):
    def func(*args, blocking=True, **kwargs):
        return cls.cluster_name, method_name, args, blocking, kwargs, how

    return func


def test_a_bound_method_calls_roll_s_own_and_tells_the_hooks(monkeypatch):
    noted, seen, critic = [], Seen(), SimpleNamespace(cluster_name="critic")
    call = watched_generator(generate, noted.append)(critic, "train_step", dispatch_fn=1)
    assert noted == [critic]
    own = ("critic", "train_step", (3,), False, {"more": 4}, {"dispatch_fn": 1})
    assert call(3, blocking=False, more=4) == own
    monkeypatch.setattr(hooks, "current", seen)
    assert call(3, blocking=False, more=4) == own
    batch = step_batch(ROWS)
    assert call(1, data=batch)[2:5] == ((1,), True, {"data": batch})
    assert seen.calls == [("critic", "train_step", None), ("critic", "train_step", batch)]


def test_a_bound_method_travels_to_other_processes_with_its_cluster():
    critic = SimpleNamespace(cluster_name="critic")
    critic.train_step = watched_generator(generate, lambda _: None)(critic, "train_step")
    there = cloudpickle.loads(cloudpickle.dumps(critic)).train_step
    assert isinstance(there, WatchedCall)
    assert there(1) == ("critic", "train_step", (1,), True, {}, {})
