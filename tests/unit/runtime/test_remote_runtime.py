"""`RemoteRuntime` against a scheduler that refuses, hangs or dies between two calls."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("ray")

from ecorl.config import validate_config
from ecorl.errors import EngineError
from ecorl.records import Action, FaultKind, GuardRefusal, Placement, Stage
from ecorl.runtime.handles import PlacedStage, RunTotals, StageRun
from ecorl.runtime.ray import link, remote
from ecorl.runtime.training import TrainingSide
from tests.ray_stand_in import Actor, QuietSender, Ray
from tests.toy_runs import make_batch, work_of

ALL = (0, 1, 2, 3, 4)


@pytest.fixture
def actor(monkeypatch):
    one = Actor()
    monkeypatch.setattr(link, "ray", Ray(one))
    monkeypatch.setattr(link, "Sender", QuietSender)
    return one


@pytest.fixture
def make(actor):
    links = []

    def make(engines=()):
        links.append(link.SchedulerLink(actor))
        config = validate_config({"run_dir": "unused"})
        engines = dict.fromkeys(engines, Path("model"))
        return remote.RemoteRuntime(config, TrainingSide(), links[-1], engines)

    yield make
    for one in links:
        one.close()


@pytest.fixture
def runtime(make):
    return make()


def start(runtime, serial=1):
    """A stage that a scheduler has placed on an engine, and its rows."""
    batch = make_batch()
    placement = Placement(1, Stage.REWARD, Action.CONCURRENT, Action.CONCURRENT, "", "")
    iteration = runtime.begin_iteration(1)
    stage = PlacedStage(serial, iteration, work_of(batch, Stage.REWARD), placement)
    return StageRun(stage, None), batch


def told(runtime, actor):
    runtime._link.await_up(5.0)
    return [(n.method, n.args[1:]) for n in actor.file + actor.memory]


@pytest.mark.parametrize("lands_here", [False, True])
def test_rows_are_sent_without_waiting_and_land(runtime, actor, lands_here):
    run, batch = start(runtime)
    assert runtime.submit(run, lambda: batch, lands_here=lands_here)
    assert run.sent
    assert actor.calls == ([] if lands_here else ["submit"])
    run = pickle.loads(pickle.dumps(run))
    assert runtime.land(run).bad_rows == ()
    assert actor.calls == ["submit", "land"]
    assert told(runtime, actor) == []


def test_what_was_told_before_is_taken_before_the_rows(runtime, actor):
    run, batch = start(runtime)
    runtime.record.metric(1, "loss", 2.0)
    assert runtime.submit(run, lambda: batch)
    assert actor.calls == ["notes", "submit"]


def test_a_scheduler_that_refuses_the_rows_is_found_at_the_barrier_and_recorded_once(
    runtime, actor
):
    run, batch = start(runtime)
    actor.refuses = True
    assert runtime.submit(run, lambda: batch)
    assert run.sent
    landed = runtime.land(run)
    assert (landed.values, landed.bad_rows) == ({}, ALL)
    assert "land" not in actor.calls
    assert told(runtime, actor) == [("refuse", ("EngineError", "ids repeat"))]
    values = runtime.fill(run, landed, lambda rows: [float(i) for i in rows])
    assert values == [0.0, 1.0, 2.0, 3.0, 4.0]
    # The exact path's own execution is the only one.
    assert [m for m, _ in told(runtime, actor)] == ["refuse", "hold", "end_stage"]


def test_a_batch_that_cannot_be_made_or_sent_is_known_at_once(runtime, actor):
    def broken():
        raise ValueError("no such row")

    run, batch = start(runtime)
    assert not runtime.submit(run, broken)
    assert not run.sent
    assert run.placement.on_gpu
    with pytest.raises(EngineError, match="not submitted"):
        runtime.land(run)
    runtime._link._lose("test")
    run, batch = start(runtime, serial=2)
    assert not runtime.submit(run, lambda: batch)
    assert run.placement.on_gpu
    assert [m for m, _ in told(runtime, actor) if m == "refuse"] == ["refuse", "refuse"]


@pytest.mark.parametrize(("lands_here", "is_back"), [(False, False), (False, True), (True, False)])
def test_a_scheduler_that_dies_before_the_rows_land_leaves_them_to_the_exact_path(
    runtime, actor, lands_here, is_back
):
    run, batch = start(runtime)
    assert runtime.submit(run, lambda: batch, lands_here=lands_here)
    actor.die()
    if is_back:
        # Another process has started it anew.
        actor.is_dead = actor.is_fresh = False
    landed = runtime.land(run)
    assert (landed.values, landed.bad_rows) == ({}, ALL)
    actor.is_dead = False
    faults = [args for method, args in told(runtime, actor) if method == "fault"]
    assert len(faults) == 1
    (fault,) = [n.args[0] for n in actor.named("fault")]
    assert (fault.kind, fault.where, fault.n_rows) == (FaultKind.SCHEDULER_LOST, "reward", 5)
    assert len(actor.named("forget")) == 1


def test_a_scheduler_that_is_gone_when_it_is_asked_for_the_answer_costs_the_rows_alone(
    runtime, actor
):
    run, batch = start(runtime)
    submit = actor.submit.remote

    def dying(*args):
        submit(*args)
        actor.die()
        return lambda: actor._away() if actor._away else None

    actor.submit.remote = dying
    assert runtime.submit(run, lambda: batch)
    assert runtime.land(run).bad_rows == ALL
    assert "land" not in actor.calls
    actor.is_dead = False
    assert [m for m, _ in told(runtime, actor)] == ["fault", "forget", "record_fault"]


def test_rows_that_another_process_has_sent_land_behind_a_question(make, actor):
    sender, other = make(), make()
    run, batch = start(sender)
    assert sender.submit(run, lambda: batch)
    assert other.land(pickle.loads(pickle.dumps(run))).bad_rows == ()
    assert actor.calls == ["submit", "ask", "land"]


def test_answers_are_kept_for_so_many_batches_and_not_for_forgotten_ones(runtime, monkeypatch):
    monkeypatch.setattr(remote, "_MAX_SENT", 3)
    runs = []
    for serial in range(5):
        run, batch = start(runtime, serial)
        runs.append(run)
        assert runtime.submit(run, lambda batch=batch: batch)
    assert list(runtime._sent) == [2, 3, 4]
    runtime.forget(runs[3])
    assert list(runtime._sent) == [2, 4]
    assert runtime.land(runs[0]).bad_rows == ()


def test_totals_that_were_expected_are_as_of_then_and_taken_once(runtime, actor):
    runtime.record.metric(1, "loss", 1.0)
    runtime.expect_totals()
    runtime.record.metric(1, "loss", 2.0)
    assert actor.calls == []
    assert runtime.totals().drawn_j == 1.0
    assert runtime.totals().drawn_j == 2.0
    runtime.expect_totals()
    runtime._link.confirm()
    actor.die()
    runtime.record.metric(1, "loss", 3.0)
    assert runtime.totals().drawn_j is not None  # answered before
    runtime.expect_totals()
    assert runtime.totals() == RunTotals()
    runtime.expect_totals()
    assert runtime.totals() == RunTotals()


def test_settling_and_telling_call_nobody(runtime, actor):
    run, _ = start(runtime)
    runtime.settle()
    runtime.restart(run)
    runtime.on_stage_end(run)
    runtime.end_when_ready(run, ["ref"])
    assert actor.calls == []
    runtime._link.confirm()
    assert actor.calls == ["notes", "end_when_ready"]


# ---------------------------------------------------------------- decisions asked for beforehand


@pytest.fixture
def expecting(make):
    """A process whose next two stages are expected, and these."""
    runtime, batch = make([Stage.REWARD, Stage.REFERENCE]), make_batch()
    iteration = runtime.begin_iteration(1)
    works = [work_of(batch, stage) for stage in (Stage.REWARD, Stage.REFERENCE)]
    runtime.expect_stages(iteration, works)
    return runtime, iteration, works


def test_an_expected_stage_starts_without_a_further_question(expecting, actor):
    runtime, iteration, works = expecting
    assert actor.calls == []
    runs = [runtime.on_stage_start(iteration, work, starts_now=False) for work in works]
    assert actor.calls == ["start_stage", "start_stage"]
    assert [run.stage for run in runs] == actor.placed
    # It was for one start: the next is decided anew.
    assert runtime.on_stage_start(iteration, works[0], starts_now=False).stage == actor.placed[2]
    assert "forget" not in [m for m, _ in told(runtime, actor)]


@pytest.mark.parametrize("what", ["work", "iteration", "images", "retired"])
def test_a_stage_that_is_not_as_expected_is_decided_anew_and_the_other_one_forgotten(
    expecting, actor, what
):
    runtime, iteration, (work, _) = expecting
    may_offload = what != "images"
    if what == "work":
        work = replace(work, n_sequences=work.n_sequences - 1)
    if what == "iteration":
        iteration = runtime.begin_iteration(2)
    if what == "retired":
        runtime.retire(Stage.REWARD, "its model changes")
    run = runtime.on_stage_start(iteration, work, may_offload=may_offload, starts_now=False)
    assert run.stage == actor.placed[-1]
    assert (run.work, run.stage.iteration) == (work, iteration)
    assert run.placement.on_gpu == (what in ("images", "retired"))
    told(runtime, actor)
    (note,) = actor.named("forget")
    assert note.args == (actor.placed[0],)


def test_what_never_starts_is_forgotten_when_the_next_stages_are_expected(expecting, actor):
    runtime, iteration, works = expecting
    runtime.expect_stages(iteration, works[1:])
    run = runtime.on_stage_start(iteration, works[1], starts_now=False)
    told(runtime, actor)
    assert [n.args for n in actor.named("forget")] == [(stage,) for stage in actor.placed[:2]]
    assert run.stage == actor.placed[2]


def test_a_scheduler_that_dies_with_the_questions_leaves_the_stages_on_the_gpu(expecting, actor):
    runtime, iteration, works = expecting
    actor.die()
    for work in works:
        run = runtime.on_stage_start(iteration, work, starts_now=False)
        assert run.placement.on_gpu
        assert run.placement.refusal is GuardRefusal.UNAVAILABLE
    assert actor.placed == []


def test_roles_without_an_engine_are_not_asked_about(make, actor):
    runtime = make([Stage.REFERENCE])
    work = work_of(make_batch(), Stage.REWARD)
    runtime.expect_stages(runtime.begin_iteration(1), [work])
    runtime._link.confirm()
    assert actor.calls == []
