"""One suite for the protocol `Runtime`: each back-end keeps the same laws."""

from __future__ import annotations

import contextlib
import pickle
import threading
import time
from dataclasses import replace

import psutil
import pytest

from benchmarks.studies.frameworks.samples import count_samples
from ecorl.control import Command
from ecorl.engines.protocol import ScoreBatch
from ecorl.errors import ConfigError, EngineError
from ecorl.records import EVALUATION_ROLE, Action, EventKind, FaultKind, Provenance, Stage
from ecorl.runtime.handles import Landed, Span
from ecorl.runtime.protocol import Runtime, join
from ecorl.runtime.rollout import GeneratedRows, Rollout
from tests.cluster import CARDS
from tests.toy_engine import SLOW
from tests.toy_runs import (
    REWARD_ALONE,
    STAGES,
    ToyRun,
    make_batch,
    make_checkpoint,
    same,
    use_toy_plugin,
    work_of,
)

BACKENDS = ("local", "ranked", "ray")


@pytest.fixture(autouse=True)
def toy(toy_plugin, monkeypatch):
    use_toy_plugin(toy_plugin, monkeypatch)


@pytest.fixture(params=BACKENDS)
def backend(request):
    return request.param


@pytest.fixture
def cluster_of(backend, request):
    """The table ``[runtime]`` of the back-end, whose cluster is up."""
    if backend != "ray":
        return None
    return {"type": "ray", "address": request.getfixturevalue("ray_cluster").address}


@pytest.fixture
def make(backend, cluster_of, tmp_path):
    """Make runs over the back-end; all are closed in the end."""
    made = []

    def run(name="run", **options):
        options["runtime_table"] = cluster_of
        one = ToyRun(tmp_path / name, ranked=backend == "ranked", **options)
        made.append(one)
        return one

    yield run
    for one in made:
        one.close()


@pytest.fixture
def run(make):
    """A run that has started."""
    run = make()
    run.runtime.start()
    return run


def test_a_run_is_placed_answered_and_recorded(run, backend):
    assert isinstance(run.runtime, Runtime)
    assert run.runtime.is_head
    batches = {number: make_batch(seed=number) for number in (1, 2, 3)}
    for number, batch in batches.items():
        for stage in STAGES:
            assert same(run.step(number, batch, stage), batch, stage)
    run.runtime.record.metric(3, "reward", 0.5)
    run.runtime.record.event(EventKind.FINISH, "done")
    run.close()
    run.close()
    node = CARDS if backend == "ray" else run.training.home
    with run.reader() as reader:
        placements = [row.placement for row in reader.placements()]
        waits, rows = reader.barriers(), [row.result for row in reader.executions()]
        assert reader.faults() == []
        assert reader.lost_nodes() == []
        assert [row.value for row in reader.metrics("reward")] == [0.5]
        assert EventKind.FINISH in {event.kind for event in reader.events()}
    keys = sorted((number, stage) for number in batches for stage in STAGES)
    assert sorted((p.iteration, p.stage) for p in placements) == keys
    assert {p.action for p in placements} == {Action.CONCURRENT}
    assert sorted((w.iteration, w.stage) for w in waits) == keys
    assert {(w.n_rows, w.n_missing, w.n_late, w.n_duplicates) for w in waits} == {(5, 0, 0, 0)}
    assert sorted((r.iteration, r.stage) for r in rows) == keys
    for r in rows:
        batch = batches[r.iteration]
        assert (r.n_sequences, r.n_tokens, r.node) == (5, batch.n_tokens, node)
        assert (r.action, r.time_s, r.energy.energy_j) == (Action.CONCURRENT, 0.5, 4.0)
        assert r.energy.provenance is Provenance.MODELLED
    assert run.counts() == (0, 0)
    assert run.asked == []


def test_an_evaluation_is_recorded_and_nothing_is_decided_about_it(run):
    rollout = Rollout(run.runtime, None)
    rollout.begin_step(1, 0)
    stage = rollout.begin_evaluation()
    rollout.end_evaluation(stage, GeneratedRows([3, 4], [5, 6]))
    run.runtime.settle()
    matrix = run.runtime.edi_json()
    run.close()
    with run.reader() as reader:
        assert reader.placements() == []
        (row,) = [row.result for row in reader.executions()]
    assert (row.role, row.iteration, row.action) == (EVALUATION_ROLE, 1, Action.GPU)
    assert (row.n_sequences, row.n_tokens, row.n_output_tokens) == (2, 18, 11)
    assert "evaluation" not in matrix


def test_iterations_are_open_beside_each_other_each_with_its_own_deadline(make):
    run = make(placement={"deadline_s": 240.0})
    run.runtime.start()
    slow, other = make_batch(seed=1, first=SLOW), make_batch(seed=2)
    one = run.start(1, slow)
    with_reference = run.start(1, slow, Stage.REFERENCE)
    two = run.start(2, other)
    # A copy stands for a stage as well as the original does: hooks may be in several processes.
    copy = pickle.loads(pickle.dumps(two))
    assert (copy.stage, copy.t_start_s, copy.earlier) == (two.stage, two.t_start_s, two.earlier)
    landed: Landed = pickle.loads(pickle.dumps(run.runtime.land(copy)))
    values = run.runtime.fill(copy, landed, run.exact(other, Stage.REWARD))
    assert one.stage.iteration != two.stage.iteration
    # The later one lands first; the deadline of the earlier one has not begun to run.
    assert same(values, other)
    time.sleep(0.1)
    assert same(run.end(one, slow), slow)
    assert same(run.end(with_reference, slow), slow, Stage.REFERENCE)
    run.close()
    assert run.faults() == []
    assert run.counts() == (0, 0)


def test_two_roles_of_one_stage_are_told_apart(make):
    run = make()
    names = ("math", "style")
    folder = make_checkpoint(run.folder / "style", scale=7)
    frozen = run.training.frozen[Stage.REWARD]
    roles = {"reward:math": frozen, "reward:style": replace(frozen, folder=folder)}
    side = replace(run.training, frozen=roles, models={})
    for runtime in {id(r): r for r in (run.runtime, run.inner)}.values():
        runtime.training = side
    run.runtime.start()
    batch, step = make_batch(), run.runtime.begin_iteration(1)
    runs = {}
    for name in names:
        work = replace(work_of(batch, Stage.REWARD), role_name=name)
        runs[name] = run.runtime.on_stage_start(step, work, starts_now=False)
        assert run.runtime.submit(runs[name], lambda: batch)
    exact = run.exact(batch, Stage.REWARD)
    assert same(join(run.runtime, runs["style"], exact), batch, scale=7)
    assert same(join(run.runtime, runs["math"], exact), batch)
    run.close()
    with run.reader() as reader:
        expected = {(1, "reward:math"): 5, (1, "reward:style"): 5}
        assert count_samples(reader, expected) == (0, 0)
        assert {row.result.role for row in reader.executions()} == set(roles)


def test_the_exact_path_answers_the_bad_rows_and_no_others(make):
    bad = {1: (0, 1, 2, 3, 4), 2: (1, 3), 3: (0, 1, 2, 3, 4)}
    run = make(
        engine={
            "faults": [
                {"kind": "raise", "calls": [0]},
                {"kind": "nan", "calls": [1], "rows": bad[2]},
                {"kind": "shape", "calls": [2]},
            ]
        },
        placement=REWARD_ALONE | {"max_faults": 5},
    )
    run.runtime.start()
    for number, rows in bad.items():
        batch = make_batch(seed=number)
        started = run.start(number, batch)
        landed = run.runtime.land(started)
        assert landed.bad_rows == rows
        assert sorted(landed.values) == [i for i in range(5) if i not in rows]
        values = run.runtime.fill(started, landed, run.exact(batch, Stage.REWARD))
        assert same(values, batch, exact_rows=rows)
        run.runtime.settle()
    assert run.asked == list(bad.values())
    last = make_batch(seed=4)
    assert same(run.step(4, last), last)
    run.close()
    assert [(f.iteration, f.where, f.n_rows) for f in run.faults()] == [
        (number, "reward", len(rows)) for number, rows in bad.items()
    ]
    assert run.counts() == (0, 0)
    again = [r for r in run.executions() if r.action is Action.GPU]
    assert [(r.iteration, r.n_sequences) for r in again] == [
        (number, len(rows)) for number, rows in bad.items()
    ]
    assert {r.time_provenance for r in again} == {Provenance.MEASURED}


def test_what_is_not_sent_is_the_gpu_paths_and_what_is_forgotten_leaves_nothing(run):
    def broken():
        raise ValueError("no such row")

    batch = make_batch()
    run.begin(1)
    started = run.start(1, batch)
    join(run.runtime, started, run.exact(batch, Stage.REWARD))
    other = run.runtime.on_stage_start(run.iterations[1], work_of(batch, Stage.REFERENCE))
    assert not run.runtime.submit(other, broken)
    assert not other.sent
    assert other.placement.on_gpu
    with pytest.raises(EngineError, match="not submitted"):
        run.runtime.land(other)
    run.runtime.restart(other)
    run.runtime.on_stage_end(other)
    later = make_batch(seed=2)
    run.runtime.forget(run.start(2, later))
    run.runtime.forget(run.runtime.on_stage_start(run.iterations[2], work_of(later, Stage.CRITIC)))
    assert same(run.step(3, make_batch(seed=3)), make_batch(seed=3))
    run.close()
    (fault,) = run.faults()
    assert (fault.iteration, fault.where, fault.n_rows) == (1, "reference", 5)
    assert "no such row" in fault.detail
    (own,) = [r for r in run.executions() if r.stage is Stage.REFERENCE]
    assert own.action is Action.GPU
    assert {r.iteration for r in run.executions()} == {1, 3}


def test_models_are_retired_and_refreshed(run):
    batch = make_batch()
    assert run.runtime.offloads(Stage.REFERENCE)
    for _ in range(2):
        run.runtime.retire(Stage.REFERENCE, "the user changed it")
    assert not run.runtime.offloads(Stage.REFERENCE)
    assert same(run.step(1, batch, Stage.REFERENCE), batch, Stage.REFERENCE, exact_rows=range(5))
    assert same(run.step(1, batch), batch)
    assert run.runtime.checkpoint(Stage.REWARD) == run.folder / "model"
    run.runtime.refresh(Stage.REWARD, make_checkpoint(run.folder / "next", scale=10))
    wait_until(lambda: not run.runtime.refreshing(Stage.REWARD))
    assert same(run.step(2, batch), batch, scale=10)
    run.runtime.refresh(Stage.REWARD, run.folder / "missing")
    wait_until(lambda: not run.runtime.refreshing(Stage.REWARD))
    assert same(run.step(3, batch), batch, exact_rows=range(5))
    run.close()
    with run.reader() as reader:
        weights = [e.detail for e in reader.events() if e.kind is EventKind.WEIGHTS]
    assert [w.split(" from ")[1] for w in weights] == ["step 1"]
    retired = [f for f in run.faults() if f.kind is FaultKind.ENGINE_RETIRED]
    assert [f.where for f in retired] == ["reference", "reward"]
    assert retired[0].detail == "the user changed it"
    assert run.counts() == (0, 0)


def test_the_times_of_a_clock_that_stood_meanwhile_add_up(run):
    batch = make_batch()
    step = run.runtime.begin_iteration(1)
    started = run.runtime.on_stage_start(step, work_of(batch, Stage.ACTOR_TRAIN))
    time.sleep(0.05)
    run.runtime.pause(started)
    inner = run.runtime.on_stage_start(step, work_of(batch, Stage.GENERATION))
    time.sleep(0.1)
    run.runtime.on_stage_end(inner)
    run.runtime.restart(started)
    time.sleep(0.05)
    run.runtime.on_stage_end(started)
    held_s = sum(span.t_end_s - span.t_start_s for span in started.spans())
    assert len(started.spans()) == 2
    elsewhere = run.runtime.on_stage_start(step, work_of(batch, Stage.CRITIC))
    now_s = time.monotonic()
    spans = [Span(now_s - 0.2, now_s - 0.1), Span(now_s - 0.05, now_s)]
    run.runtime.account(elsewhere.stage, spans, run.training.home)
    assert run.runtime.tick(time.monotonic()).command is Command.RUN
    run.step(1, batch)
    wait_until(lambda: run.runtime.settle() or len(run.runtime.totals().roles) == 4)
    totals = run.runtime.totals()
    assert totals.roles[Stage.REWARD].energy_j == 4.0
    assert totals.roles[Stage.GENERATION].n_executions == 1
    assert totals.placed[Stage.GENERATION] is Action.GPU
    assert totals.placed[Stage.REWARD] is Action.CONCURRENT
    assert '"reward"' in run.runtime.edi_json()
    run.close()
    rows = {r.stage: r for r in run.executions()}
    train = rows[Stage.ACTOR_TRAIN].energy
    # A window on each device for each time that the clock ran.
    assert train.energy_j is None or train.energy_j > 0
    assert train.t_end_s - train.t_start_s >= held_s
    assert rows[Stage.GENERATION].energy is not None
    assert rows[Stage.CRITIC].t_end_s == now_s
    assert set(rows) == {Stage.ACTOR_TRAIN, Stage.GENERATION, Stage.CRITIC, Stage.REWARD}


def test_a_model_that_its_engine_cannot_load_stays_and_the_other_keeps_its_own(make, caplog):
    run = make(engine={"options": {"broken": "reference"}})
    run.runtime.start()
    why = "stays on the host: its engine cannot load it (model is broken)"
    warned = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert warned == [f"the reference model (model) {why}"]
    assert run.runtime.checkpoint(Stage.REFERENCE) is None
    assert not run.runtime.offloads(Stage.REFERENCE)
    assert run.runtime.checkpoint(Stage.REWARD) == run.folder / "model"
    batch = make_batch()
    assert same(run.step(1, batch), batch)
    assert same(run.step(1, batch, Stage.REFERENCE), batch, Stage.REFERENCE, exact_rows=range(5))
    run.close()
    with run.reader() as reader:
        (reason,) = [
            (row.placement.action, row.placement.reason)
            for row in reader.placements()
            if row.placement.stage is Stage.REFERENCE
        ]
        (fault,) = reader.faults()
    assert reason == (Action.GPU, why)
    told = (fault.kind, fault.where, fault.detail)
    assert told == (FaultKind.NO_ENGINE, "reference", f"model {why}")
    assert run.counts() == (0, 0)


@pytest.mark.parametrize("what", ["option", "card"])
def test_a_start_that_fails_leaves_nothing_behind(make, backend, what):
    config = {"engine": {"options": {"mistaken": True}}}
    error = ConfigError
    if what == "card":
        if backend != "ray":
            config = {"telemetry": {"gpu": {"type": "replay", "path": "/none.csv"}}}
        else:
            config = {"places": {"reward": {"node": "nowhere"}}}
        error = Exception
    before = processes(), threads()
    run = make(placement=REWARD_ALONE, **config)
    with pytest.raises(error) as caught:
        run.runtime.start()
    assert "\n" not in str(caught.value)
    run.close()
    wait_until(lambda: processes() <= before[0])
    assert threads() <= before[1]


# ---------------------------------------------------------------- over a cluster alone


def test_another_process_takes_part_by_a_handle_and_stages_end_with_their_tasks(
    ray_cluster, tmp_path
):
    import ray

    run = ToyRun(tmp_path / "run", {"type": "ray", "address": ray_cluster.address})
    run.runtime.start()
    handle = pickle.loads(pickle.dumps(run.runtime.handle()))
    batch, step = make_batch(), run.begin(1)

    @ray.remote
    def hook(handle, training, step, batch):
        runtime = handle.open(training)
        sent = runtime.on_stage_start(step, work_of(batch, Stage.REFERENCE), starts_now=False)
        assert runtime.submit(sent, lambda: batch)
        values = join(runtime, sent, lambda rows: [])
        own = runtime.on_stage_start(step, work_of(batch, Stage.GENERATION))
        runtime.on_stage_end(own)
        runtime.record.metric(1, "loss", 2.0)
        facts = (runtime.is_head, runtime.checkpoint(Stage.REWARD), runtime.offloads("critic"))
        runtime.close()
        return values, runtime.totals().placed, facts

    waits = tmp_path / "waits"

    @ray.remote
    def generate():
        while not waits.exists():
            time.sleep(0.01)
        return bytes(10_000_000)

    tasks = run.runtime.on_stage_start(step, work_of(batch, Stage.ACTOR_TRAIN))
    refs = [generate.remote(), generate.remote()]
    # Nobody stands still for them: they end only behind this call.
    run.runtime.end_when_ready(tasks, refs, work_of(make_batch(3), Stage.ACTOR_TRAIN))
    asked_s = time.monotonic()
    waits.touch()
    started = run.start(1, batch)
    values, placed, facts = ray.get(hook.remote(handle, run.training, step, batch))
    assert same(values, batch, Stage.REFERENCE)
    assert placed == {
        Stage.REWARD: Action.CONCURRENT,
        Stage.REFERENCE: Action.CONCURRENT,
        Stage.GENERATION: Action.GPU,
        Stage.ACTOR_TRAIN: Action.GPU,
    }
    assert facts == (False, run.folder / "model", False)
    # The run goes on, and its start-up process has what both have recorded.
    assert same(run.end(started, batch), batch)
    run.expected[1, "reference"] = len(batch)
    ray.get(refs)
    run.close()
    closed_s = time.monotonic()
    (row,) = [r for r in run.executions() if r.stage is Stage.ACTOR_TRAIN]
    assert row.time_s == row.t_end_s - row.t_start_s
    assert asked_s <= row.t_end_s <= closed_s
    assert row.n_sequences == 3
    assert run.counts() == (0, 0)
    with run.reader() as reader:
        assert [row.value for row in reader.metrics("loss")] == [2.0]
        assert reader.faults() == []
    with pytest.raises(ConfigError, match="scheduler"):
        handle.open(run.training)


def test_rows_that_the_scheduler_does_not_take_are_found_at_the_barrier(ray_cluster, tmp_path):
    run = ToyRun(tmp_path / "run", {"type": "ray", "address": ray_cluster.address})
    run.runtime.start()
    batch = make_batch()
    twice = ScoreBatch((*batch.sample_ids[:4], "s0.3"), batch.token_ids, batch.n_completion)
    started = run.start(1, twice)
    assert started.sent
    run.runtime.expect_totals()
    values = join(run.runtime, started, run.exact(batch, Stage.REWARD))
    assert same(values, batch, exact_rows=range(5))
    assert run.runtime.totals().roles == {}
    wait_until(lambda: run.runtime.settle() or run.runtime.totals().roles)
    other = make_batch(seed=2)
    assert same(run.step(2, other), other)
    run.close()
    (fault,) = run.faults()
    assert (fault.iteration, fault.where, fault.n_rows) == (1, "reward", 5)
    assert "could not be sent" in fault.detail
    assert [r.action for r in run.executions()] == [Action.GPU, Action.CONCURRENT]
    assert run.counts() == (0, 0)


# ---------------------------------------------------------------- helpers


def wait_until(condition, limit_s=240.0):
    limit_s += time.monotonic()
    while not condition():
        assert time.monotonic() < limit_s
        time.sleep(0.02)


def processes():
    """The processes below this one but for idle ones of Ray, by id and what they run."""
    found = set()
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            command = " ".join(child.cmdline())
            if not command.startswith("ray::IDLE") and "ray/_private/workers" not in command:
                found.add((child.pid, command[:60]))
    return found


def threads():
    return {t.name for t in threading.enumerate() if t.name.startswith("ecorl")}
