"""What happens in ROLL's own processes: rollouts, rewards; its devices and checkpoints."""

from __future__ import annotations

import asyncio
import json
import pickle
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("ray")

import ray
from ray import cloudpickle

from ecorl.edi import EdiMatrix
from ecorl.errors import EngineTimeout, RunError
from ecorl.records import Action, Stage
from ecorl.runtime.checkpoints import write_state
from ecorl.runtime.overhead import HookTime
from roll_adapters.ray_jobs.intervals import union, without
from roll_adapters.ray_jobs.sizes import RolloutSizes
from roll_adapters.roll import invitation
from roll_adapters.roll.checkpoints import STATE, progress_of
from roll_adapters.roll.invitation import WorkerInvitation, invite, invited
from roll_adapters.roll.times import RolloutTimes, TakenTimes
from tests.fakes.openrlhf import engine_answers
from tests.fakes.roll_batches import ROWS, FakeRuntime, roll_on_path, step_batch

SCHEDULER = "roll.distributed.scheduler.generate_scheduler"


@pytest.fixture
def load(monkeypatch):
    """Imports modules that build on ROLL, over its double."""
    with roll_on_path(monkeypatch) as load:
        yield load


# ---------------------------------------------------------------- times of rollouts

SEEN = st.lists(
    st.tuples(st.integers(0, 3), st.integers(1, 9), st.integers(0, 50), st.integers(0, 9)),
    max_size=8,
)


def noted(calls):
    taken = TakenTimes()
    for step, n, start, length in calls:
        interval = (float(start), float(start + length))
        times = taken.done.setdefault(step, RolloutTimes()) if step else taken.ahead
        times.generated(RolloutSizes(n, 2 * n, n, n), [interval])
        times.rewarded("math" if n % 2 else "code", RolloutSizes(1, n, n, n), interval)
    return taken


def told(taken):
    """What times say of each step and stage: sizes, and when."""
    return {
        (step, stage, name): (own.sizes, union(own.intervals))
        for step, times in [*taken.done.items(), ("ahead", taken.ahead)]
        for stage, name, own in times.stages()
    }


@given(SEEN, SEEN)
def test_times_of_several_actors_are_those_of_one_that_saw_all(first, then):
    one, sent = noted(first), pickle.loads(pickle.dumps(noted(then)))
    one.merge(sent)
    assert told(one) == told(noted([*first, *then]))
    one.merge(TakenTimes())
    assert told(sent) == told(noted(then))  # what is merged stays as it is


@given(SEEN)
def test_condensed_times_lie_apart(calls):
    taken = noted(calls)
    before = told(taken)
    for times in (*taken.done.values(), taken.ahead):
        times.condensed()
        for _, _, own in times.stages():
            assert own.intervals == union(own.intervals)
    assert told(taken) == before


# ---------------------------------------------------------------- actors that schedule rollouts


@pytest.fixture
def watched(load, monkeypatch):
    """The watched classes over ROLL's, whose calls answer what they are given."""
    scheduler = load(SCHEDULER)

    async def answer(self, req, domain):
        return self.answers.pop(0)

    def init(self, reward_clusters):
        self.reward_clusters = reward_clusters

    monkeypatch.setattr(scheduler.RolloutContext, "generate", answer)
    monkeypatch.setattr(scheduler.RolloutContext, "compute_rewards", answer)
    monkeypatch.setattr(scheduler.DynamicSamplingScheduler, "__init__", init)
    return load("roll_adapters.roll.rollouts")


@pytest.fixture
def rollout(watched):
    """Makes the rollout of a prompt, and gives its scheduler too."""
    clusters = {
        "math": SimpleNamespace(worker_config=SimpleNamespace(worker_cls="roll.rules.Math")),
        "own": SimpleNamespace(
            worker_config=SimpleNamespace(worker_cls="roll_adapters.roll.workers.RewardModelWorker")
        ),
    }

    def rollout(answers=(), step=4, is_val=False, prompt=0, scheduler=None):
        scheduler = scheduler or watched.WatchedScheduler(clusters)
        context = object.__new__(watched.WatchedContext)
        context._scheduler, context.is_val, context.answers = scheduler, is_val, list(answers)
        context.prompt_id, scheduler.ecorl_step = prompt, step
        return context, scheduler

    return rollout


def taken(scheduler, step=99):
    return asyncio.run(scheduler.take_rollout_times(step))


@pytest.fixture
def collect(watched, monkeypatch):
    """Has a scheduler hand over a batch, which leaves some prompts in its buffer."""

    def collect(scheduler, step, waiting=(), running=()):
        async def get_batch(self, data, global_step, batch_size):
            during.append(self.ecorl_step)
            items = [[SimpleNamespace(prompt_id=prompt)] for prompt in waiting]
            groups = {step: SimpleNamespace(finished_prompts=items)}
            begun = dict.fromkeys(running, step)
            self.replay_buffer = SimpleNamespace(groups=groups, prompt_id_to_start_step=begun)
            return "batch"

        during = []
        monkeypatch.setattr(watched.WatchedScheduler.__base__, "get_batch", get_batch)
        batch = asyncio.run(scheduler.get_batch("data", global_step=step, batch_size=4))
        assert (batch, during, scheduler.ecorl_step) == ("batch", [step], step + 1)
        return taken(scheduler, step)

    return collect


def request_of(**meta_info):
    mask = torch.tensor([[0, 0, 1, 1, 1]])
    return SimpleNamespace(batch={"attention_mask": mask}, meta_info=meta_info)


REQUEST = request_of()
ANSWER = SimpleNamespace(meta_info={"output_token_ids": [[5, 6], [7, 8, 9, 10]]})


def test_an_actor_of_roll_s_makes_watched_rollouts(load, rollout):
    context, _ = rollout()
    assert load(SCHEDULER).RolloutContext is type(context)


def test_generation_is_timed_and_counted(rollout, collect):
    context, scheduler = rollout([ANSWER])
    begin_s = time.time()
    assert asyncio.run(context.generate(req=REQUEST, domain="math")) is ANSWER
    times = collect(scheduler, 4)
    assert told(times).keys() == {(4, Stage.GENERATION, "")}
    assert times.done[4].generation.sizes == RolloutSizes(2, 12, 6, 7)
    ((start_s, end_s),) = times.done[4].generation.intervals
    assert begin_s <= start_s <= end_s <= time.time()
    assert told(taken(scheduler)) == {}


def test_responses_are_in_the_step_whose_batch_holds_them(rollout, collect):
    """Two batches are generated at once, before the first is handed over."""
    _, scheduler = rollout()
    for prompt in range(4):
        context, _ = rollout([ANSWER, "rewards"], prompt=prompt, scheduler=scheduler)
        asyncio.run(context.generate(REQUEST, "math"))
        if prompt < 3:
            asyncio.run(context.compute_rewards(step_batch(ROWS), "math"))
    first = collect(scheduler, 0, waiting=[2], running=[3])
    rows = {key: sizes.n_rows for key, (sizes, _) in told(first).items()}
    assert rows == {
        (0, Stage.GENERATION, ""): 4, (0, Stage.REWARD, "math"): 12,
        ("ahead", Stage.GENERATION, ""): 4, ("ahead", Stage.REWARD, "math"): 6,
    }  # fmt: skip
    # What came into no batch and is in the buffer no more was dropped in this step.
    second = collect(scheduler, 1)
    assert {key: sizes.n_rows for key, (sizes, _) in told(second).items()} == {
        (1, Stage.GENERATION, ""): 4, (1, Stage.REWARD, "math"): 6,
    }  # fmt: skip
    # What an actor was not asked for in time is told later, with its own step.
    context, _ = rollout([ANSWER], prompt=9, scheduler=scheduler)
    asyncio.run(context.generate(REQUEST, "math"))
    scheduler._end_prompts(2)
    assert told(taken(scheduler, 1)) == {}
    assert set(taken(scheduler, 3).done) == {2}


def test_calls_that_are_under_way_are_told_of_by_their_times(rollout, watched, monkeypatch):
    """They share what their GPUs draw with the batch that is handed over meanwhile."""
    context, scheduler = rollout(["rewards"])
    told_meanwhile = []

    async def answer(self, req, domain):
        told_meanwhile.append((await scheduler.take_rollout_times(9)).ahead)
        return ANSWER

    for name in ("generate", "compute_rewards"):
        monkeypatch.setattr(watched.WatchedContext.__base__, name, answer)
    asyncio.run(context.generate(REQUEST, "math"))
    asyncio.run(context.compute_rewards(step_batch(ROWS), "math"))
    during, rewarding = told_meanwhile
    assert during.generation.sizes == RolloutSizes(0, 0, 0, 0)
    assert (len(during.generation.intervals), during.rewards) == (1, {})
    assert rewarding.rewards["math"].sizes == RolloutSizes(0, 0, 0, 0)
    assert scheduler.ecorl_running == {}


def test_generation_does_not_last_while_requests_are_held_back(rollout, watched, monkeypatch):
    context, scheduler = rollout([ANSWER])
    now = [100.0]
    monkeypatch.setattr(watched.time, "time", lambda: now[0])

    async def paused(self):
        return None

    async def get_batch(self, data, global_step, batch_size):
        now[0] += 2.0  # the response ends
        return "batch"

    async def answer(self, req, domain):
        now[0] += 1.0
        for _ in range(2):  # by the scheduler itself, and by the driver
            await scheduler.pause_sampling()
        now[0] += 50.0  # the update of the weights, and a validation
        await scheduler.get_batch("data", 5, 4)
        return ANSWER

    base = watched.WatchedScheduler.__base__
    monkeypatch.setattr(base, "pause_sampling", paused)
    monkeypatch.setattr(base, "get_batch", get_batch)
    monkeypatch.setattr(watched.WatchedContext.__base__, "generate", answer)
    asyncio.run(context.generate(REQUEST, "math"))
    times = taken(scheduler).ahead.generation
    assert times.intervals == [(100.0, 101.0), (151.0, 153.0)]


pauses = st.lists(st.integers(0, 30), max_size=6, unique=True).map(sorted)


@given(st.tuples(st.integers(0, 30), st.integers(0, 30)).map(sorted), pauses)
def test_an_interval_without_its_pauses(interval, edges):
    apart = list(zip(edges[::2], edges[1::2], strict=False))
    found = without(tuple(interval), apart)
    inside = {s for s in range(*interval) if not any(a <= s < b for a, b in apart)}
    assert {s for a, b in found for s in range(a, b)} == inside
    assert all(a < b for a, b in found)


def test_a_response_that_goes_on_is_one_row(rollout, collect):
    parts = [SimpleNamespace(meta_info={"output_token_ids": [list(range(n))]}) for n in (4, 2)]
    context, scheduler = rollout(parts)
    asyncio.run(context.generate(REQUEST, "math"))
    asyncio.run(context.generate(request_of(pre_output_token_ids=[[0]]), "math"))
    assert collect(scheduler, 0).done[0].generation.sizes == RolloutSizes(1, 12, 6, 7)


def test_ecorl_s_own_workers_are_told_the_step(rollout, monkeypatch, watched):
    context, _ = rollout(["rewards"], step=6)
    seen = []

    async def answer(self, req, domain):
        seen.append(dict(req.meta_info))
        return "rewards"

    monkeypatch.setattr(watched.WatchedContext.__base__, "compute_rewards", answer)
    batch = step_batch(ROWS)
    before = dict(batch.meta_info)
    asyncio.run(context.compute_rewards(batch, "own"))
    assert seen == [before | {"ecorl_step": 6}]
    assert batch.meta_info == before


def test_rewards_are_timed_but_for_workers_that_tell_of_themselves(rollout):
    context, scheduler = rollout(["rewards", "rewards"])
    batch = step_batch(ROWS)
    for domain in ("math", "own"):
        assert asyncio.run(context.compute_rewards(batch, domain)) == "rewards"
    sizes = {key: sizes for key, (sizes, _) in told(taken(scheduler)).items()}
    assert sizes == {("ahead", Stage.REWARD, "math"): RolloutSizes(6, 23, 13, 6)}


def test_validation_is_no_stage(rollout):
    context, scheduler = rollout([ANSWER, "rewards"], is_val=True)
    asyncio.run(context.generate(REQUEST, "math"))
    asyncio.run(context.compute_rewards(step_batch(ROWS), "math"))
    assert told(taken(scheduler)) == {}


@pytest.mark.parametrize(
    "answer", [None, SimpleNamespace(meta_info={}), SimpleNamespace(), SimpleNamespace(meta_info=3)]
)
def test_what_a_loop_of_the_user_s_hands_over_is_its_own(rollout, answer):
    context, scheduler = rollout([answer, answer])
    assert asyncio.run(context.generate(REQUEST, "math")) is answer
    assert asyncio.run(context.compute_rewards(SimpleNamespace(batch=None), "math")) is answer
    assert ("ahead", Stage.REWARD, "math") not in told(taken(scheduler))


def test_an_error_of_a_call_is_the_rollout_s(rollout):
    context, scheduler = rollout([])
    with pytest.raises(IndexError):
        asyncio.run(context.generate(REQUEST, "math"))
    assert told(taken(scheduler)) == {}


# ---------------------------------------------------------------- workers of a reward model


class Model:
    """A reward model: the sum of a row's tokens."""

    def __init__(self):
        self.batches, self.error = [], None

    def score(self, batch):
        if self.error is not None:
            raise self.error
        self.batches.append(len(batch))
        values = engine_answers(Stage.REWARD, batch)
        return SimpleNamespace(values=np.array(values, np.float32))


@pytest.fixture
def worker(load):
    """Makes a worker whose model is loaded, over the double's class."""

    def worker(runtime=None, size=4):
        config = SimpleNamespace(name="reward-math", infer_batch_size=size)
        made = load("roll_adapters.roll.workers").RewardModelWorker(config)
        made._engine, made._domain, made._runtime = Model(), "math", runtime
        return made

    return worker


def request(rows, step=0):
    batch = step_batch(rows, global_step=step)
    batch.batch["responses"] = batch.batch["input_ids"][:, 1:]
    return batch


def rewarded(worker, *requests):
    """What a worker answers to requests that come at once; an error stands for its answer."""

    async def ask():
        asked = [worker.compute_rewards(data) for data in requests]
        return await asyncio.wait_for(asyncio.gather(*asked, return_exceptions=True), 5)

    return asyncio.run(ask())


def right(found, requests):
    for answer, data in zip(found, requests, strict=True):
        sums = data.batch["input_ids"].sum(1).float()
        assert torch.equal(answer.batch["response_level_rewards"], sums)
        assert torch.equal(answer.batch["scores"], sums)
        assert answer.batch["token_level_rewards"].shape == data.batch["responses"].shape
        assert not bool(answer.batch["token_level_rewards"].any())
    return True


def test_requests_of_a_step_are_rewarded_together_and_no_more_than_a_batch_holds(worker):
    made = worker(size=3)
    requests = [request([row]) for row in ROWS[:4]] + [request(ROWS), request(ROWS[:1], step=1)]
    assert right(rewarded(made, *requests), requests)
    assert made._engine.batches == [3, 1, 6, 1]
    assert right(rewarded(made, request(ROWS[:2])), [request(ROWS[:2])])


@pytest.mark.parametrize("bad", [(), (1,)])
def test_a_batch_is_a_stage_of_the_run(worker, bad):
    runtime = FakeRuntime(Action.CONCURRENT, bad=bad)
    made = worker(runtime)
    made._invitation = WorkerInvitation("s", "n", compares=True)
    requests = [request(ROWS[:2], step=3), request(ROWS[2:4], step=3)]
    assert right(rewarded(made, *requests), requests)
    (run,) = runtime.of("reward")
    assert (run.work.role, run.stage.iteration.number) == ("reward:math", 4)
    assert (run.work.n_sequences, run.work.n_output_tokens) == (4, 9)
    assert run.batch.sample_ids == ("4.0.0", "4.0.1", "4.0.2", "4.0.3")
    assert set(run.batch.n_completion) == {0}
    # The first batch is compared with the model here, once.
    assert runtime.record.evaluations["score_shift", "first batch"] == [0.0] * 4
    again = [1] if bad else []
    assert made._engine.batches == [*again, 4]
    rewarded(made, request(ROWS[:2], step=3))
    assert runtime.numbers == [4]
    assert made._engine.batches == [*again, 4, *again]


@pytest.mark.parametrize(
    ("action", "options"),
    [(Action.GPU, {}), (Action.CONCURRENT, {"refuses": True})]
    + [(Action.FPGA, {"broken": [name]}) for name in ("on_stage_start", "submit", "land", "fill")],
)
def test_what_no_engine_rewards_is_rewarded_here(worker, action, options):
    made = worker(runtime := FakeRuntime(action, **options))
    assert right(rewarded(made, request(ROWS)), [request(ROWS)])
    assert made._engine.batches == [6]
    ended = runtime.roles("on_stage_end")
    assert ended == ([] if options.get("broken") else ["reward:math"])


def test_an_error_of_the_model_is_roll_s_and_others_are_still_rewarded(worker):
    made = worker(FakeRuntime())
    made._engine.error = ValueError("the model's")
    (error,) = rewarded(made, request(ROWS))
    assert (type(error), str(error)) == (ValueError, "the model's")
    made._engine.error = None
    assert right(rewarded(made, request(ROWS)), [request(ROWS)])


def test_a_run_that_does_not_answer_is_asked_once(worker, monkeypatch):
    asked = []
    monkeypatch.setattr(WorkerInvitation, "open", lambda own: asked.append(own))
    made = worker()
    made._invitation = WorkerInvitation("s", "n", compares=True)
    for _ in range(2):
        assert right(rewarded(made, request(ROWS)), [request(ROWS)])
    assert len(asked) == 1
    assert asyncio.run(made.leave_run()) == HookTime()


def test_a_worker_that_leaves_waits_until_all_is_told(worker):
    made = worker(runtime := FakeRuntime())
    runtime.clock.add(HookTime(1.0, 2))
    assert asyncio.run(made.leave_run()) == HookTime(1.0, 2)
    assert runtime.roles("close") == [""]


def test_an_invitation_travels_with_roll_s_config(monkeypatch, caplog):
    config, own = SimpleNamespace(), WorkerInvitation("scheduler", "space", compares=False)
    assert invited(config) is None
    invite(config, own)
    there = pickle.loads(pickle.dumps(config))
    assert all(type(value) is dict for value in vars(there).values())
    assert invited(there) == own
    runtime = FakeRuntime()
    monkeypatch.setattr(invitation.RuntimeHandle, "open", lambda handle, side: runtime)
    assert own.open() is runtime
    monkeypatch.setattr(invitation.RuntimeHandle, "open", lambda handle, side: 1 / 0)
    assert own.open() is None
    assert "division by zero" in caplog.text


# ---------------------------------------------------------------- devices


@pytest.fixture
def groups(load, monkeypatch):
    """The module of resources, with Ray's groups noted; those of more than 4 CPUs never come."""
    resources, made = load("roll_adapters.roll.resources"), []

    def placement_group(bundles):
        comes = bundles[0].get("CPU", 0) <= 4
        made.append(SimpleNamespace(bundles=bundles, wait=lambda limit_s: comes))
        return made[-1]

    monkeypatch.setattr(resources, "placement_group", placement_group)
    monkeypatch.setattr(resources, "remove_placement_group", made.remove)
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    return resources, made


def test_a_card_has_one_group_until_all_are_given_back(groups):
    resources, made = groups
    pool = resources.CardGroups()
    first = pool.group(0)
    assert pool.group(0, n_cpus=2) is first
    assert pool.group(1, n_cpus=2).bundles == [{"FPGA": 1, "CPU": 2}]
    assert first.bundles == [{"FPGA": 1}]
    with pytest.raises(EngineTimeout, match=r"fpga:3: .*FPGA: 1, CPU: 8"):
        pool.group(3, n_cpus=8)
    pool.close()
    assert made == []
    pool.close()


def test_roll_takes_a_role_with_cards_alone_for_one_without_gpus(groups):
    handles = groups[0].CardHandles([4, 5])
    assert not handles
    assert handles == []
    for copy in (
        pickle.loads(pickle.dumps(handles)),
        cloudpickle.loads(cloudpickle.dumps(handles)),
    ):
        assert (copy, copy.cards) == ([], (4, 5))


def test_gpus_are_allocated_by_roll_and_cards_by_their_groups(groups, monkeypatch):
    resources, made = groups
    base = resources.CardResourceManager.__mro__[1]
    monkeypatch.setattr(
        base, "allocate_placement_group", lambda self, world_size, device_mapping: device_mapping
    )
    monkeypatch.setattr(ray, "get_runtime_context", lambda: SimpleNamespace(gcs_address="head:1"))
    manager = object.__new__(resources.CardResourceManager)
    manager.num_nodes, manager.pool = 2, resources.CardGroups()
    for gpus in ([0, 1], None, []):
        assert manager.allocate_placement_group(world_size=1, device_mapping=gpus) is gpus
    cards = resources.CardHandles([0, 3])
    found = manager.allocate_placement_group(device_mapping=cards, world_size=2)
    assert [[place["placement_group"] for place in rank] for rank in found] == [
        [group] for group in made
    ]
    told = [{k: v for k, v in rank[0].items() if k != "placement_group"} for rank in found]
    assert told == [
        {"node_rank": 2, "gpu_rank": None, "ray_address": "head:1"},
        {"node_rank": 5, "gpu_rank": None, "ray_address": "head:1"},
    ]


# ---------------------------------------------------------------- checkpoints


@pytest.fixture
def saved(tmp_path, monkeypatch):
    """A checkpoint of ROLL's after its step 11, and ROLL's functions that find one."""

    def download_model(name):
        if not Path(name).is_dir():
            raise ValueError(f"no model {name}")
        return name

    manager = SimpleNamespace(
        download_model=download_model, get_latest_ckpt=lambda config: config["newest"]
    )
    monkeypatch.setitem(sys.modules, "roll.utils.checkpoint_manager", manager)
    folder = tmp_path / "checkpoint-11"
    (folder / "pipeline").mkdir(parents=True)
    (folder / STATE).write_text(json.dumps({"step": 11, "log_history": []}))
    return folder


def resuming(what, newest=None):
    return SimpleNamespace(resume_from_checkpoint=what, checkpoint_config={"newest": newest})


def test_progress_is_that_of_the_checkpoint_that_roll_takes(saved, caplog):
    for config in (resuming(str(saved)), resuming(True, str(saved))):
        assert progress_of(config) == (12, None)
        assert "ecorl_state.json" in caplog.text
    write_state(saved, 12, EdiMatrix(0.05, 20).to_json())
    step, edi = progress_of(resuming(str(saved)))
    assert step == 12
    assert isinstance(edi, EdiMatrix)


@pytest.mark.parametrize("config", [resuming(False), resuming(True), SimpleNamespace()])
def test_without_a_checkpoint_a_job_begins_anew(saved, config):
    assert progress_of(config) == (None, None)


@pytest.mark.parametrize("text", [None, "", "{}", "[]", '{"step": null}', '{"step": "x"}'])
def test_a_checkpoint_that_tells_no_step_is_refused(saved, text):
    (saved / STATE).unlink() if text is None else (saved / STATE).write_text(text)
    with pytest.raises(RunError, match=saved.name):
        progress_of(resuming(str(saved)))


def test_a_checkpoint_that_is_not_there_is_refused(saved):
    with pytest.raises(RunError, match="/nowhere"):
        progress_of(resuming("/nowhere"))
