"""Gears of a job: chosen in one process, engaged in those that train, all alike."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest

pytest.importorskip("ray")
pytest.importorskip("torch")

from ray.exceptions import RayActorError

from ecorl.config.trainer import GearsConfig
from ecorl.control import AS_IT_IS, Gear
from ecorl.errors import ConfigError
from ecorl.records import FaultKind, Stage, StageWork
from ecorl.runtime.control.governor import ungoverned
from roll_adapters.ray_jobs.gears import control, devices, worker
from roll_adapters.ray_jobs.gears.control import JobGears, agreed
from roll_adapters.ray_jobs.gears.orders import GearRefusal, Prepared, StepEnd, StepReport
from roll_adapters.ray_jobs.gears.worker import ATTRIBUTE
from roll_adapters.ray_jobs.policy_training import PolicyTraining
from tests.fakes.openrlhf import FakeRecord, FakeRuntime


class Actor:
    """A process that trains: calls by Ray run here when they are asked for."""

    def __init__(self):
        self.shifts = []
        own = SimpleNamespace(gear=None, safe=None, due=(), report=StepReport())
        setattr(self, ATTRIBUTE, own)
        self.__ray_call__ = SimpleNamespace(remote=lambda call, *args: (call, self, args))

    @property
    def own(self):
        return getattr(self, ATTRIBUTE)


@pytest.fixture(autouse=True)
def calls(monkeypatch):
    """Runs what was asked for; notes the names of the functions."""
    made = []

    def get(refs, timeout):
        made.extend(call.__name__ for call, _, _ in refs)
        return [call(actor, *args) for call, actor, args in refs]

    for module in (control, devices):
        monkeypatch.setattr(module, "ray", SimpleNamespace(get=get))
    return made


def prepare(actor, order):
    return Prepared(simulated=(Gear.FP8,), optimizer="FusedAdam", n_steps=12)


def gears_of(actors, answer=prepare, low_share=1.0, memory=None, **settings):
    config = GearsConfig(
        allowed=(Gear.BF16, Gear.FP8), simulate_fp8=True, **({"measure_every": 0} | settings)
    )
    return JobGears(config, low_share, actors, answer, FakeRecord(), memory)


def test_all_processes_are_told_when_the_gear_changes_and_else_nobody_is_asked(
    calls, caplog, snapshot
):
    actors = [Actor(), Actor()]
    gears = gears_of(actors)
    assert gears.stage(9) == AS_IT_IS
    assert gears.label is None
    for number, wanted in enumerate([None, Gear.FP8, Gear.FP8, Gear.BF16], 1):
        gears.make_ready(number)
        gears.begin_step(wanted, number, 9)
        assert {actor.own.gear for actor in actors} == {wanted or Gear.BF16}
        gears.end_step(number, 100.0)
    assert calls == [
        "prepare", "prepare", "shift", "shift", "shift", "shift", "take_report", "take_report",
        "take_report", "take_report", "shift", "shift",
    ]  # fmt: skip
    assert gears.label == "BF16"
    assert gears.n_optimizer_steps == 12
    stage = gears.stage(5)
    assert (stage.gear, stage.gears) == (Gear.BF16, (Gear.BF16, Gear.FP8))
    assert stage.simulated == (Gear.FP8,)
    snapshot("\n".join(caplog.messages))


def test_one_process_that_cannot_shift_keeps_all_of_them_as_they_are(calls, caplog):
    answers = iter([Prepared(), Prepared(why_not="its weights are in float16")])
    gears = gears_of([Actor(), Actor()], lambda actor, order: next(answers))
    for number in (1, 2):
        gears.make_ready(number)
        gears.begin_step(Gear.FP8, number, 9)
        gears.end_step(number, 100.0)
    assert gears.stage(9) == AS_IT_IS
    assert gears.label is None
    assert gears.memory() is None
    assert "shift" not in calls
    (fault,) = gears._record.faults
    assert (fault.iteration, fault.kind) == (1, FaultKind.GEAR_BARRED)
    assert "its weights are in float16" in fault.detail
    assert "its weights are in float16" in caplog.text


def test_a_process_that_is_gone_ends_the_gears_and_not_the_training(monkeypatch, snapshot):
    gears = gears_of([Actor()])
    gears.make_ready(1)

    def get(refs, timeout):
        raise RayActorError

    monkeypatch.setattr(control, "ray", SimpleNamespace(get=get))
    with pytest.raises(RuntimeError) as caught:
        gears.begin_step(Gear.FP8, 1, 9)
    snapshot(str(caught.value).partition(" (")[0])  # and Ray's words
    assert gears.label is None
    assert gears.stage(9) == AS_IT_IS
    gears.begin_step(Gear.FP8, 2, 9)
    gears.end_step(2, 100.0)


WELL, REDONE, SKIPPED = StepEnd.WELL, StepEnd.REDONE, StepEnd.SKIPPED


def staged(gears, actors, *stages, n_tokens=100.0):
    """Train stages in FP8, of optimizer steps that end like that."""
    gears.make_ready(1)
    for number, ends in enumerate(stages, 1):
        gears.begin_step(Gear.FP8, number, 9)
        if actors[-1].own.gear is Gear.FP8:
            actors[-1].own.report = StepReport(ends=list(ends))
        gears.end_step(number, n_tokens)
    return [(fault.iteration, fault.kind) for fault in gears._record.faults]


OVERFLOW, RETIRED = FaultKind.GEAR_OVERFLOW, FaultKind.GEAR_RETIRED


def test_three_redone_steps_in_a_row_retire_a_gear(caplog, snapshot):
    actors = [Actor(), Actor()]
    gears = gears_of(actors)
    found = staged(gears, actors, [REDONE], [REDONE], [REDONE], [REDONE])
    assert found == [(1, OVERFLOW), (2, OVERFLOW), (3, OVERFLOW), (3, RETIRED)]
    snapshot("\n".join(fault.detail for fault in gears._record.faults))
    assert gears._record.faults[3].detail in caplog.text
    assert gears.label == "BF16"
    assert gears.stage(9).gears == (Gear.BF16,)
    # A resumed run knows of it.
    again = gears_of([Actor()], memory=gears.memory())
    again.make_ready(5)
    assert again.stage(9).gears == (Gear.BF16,)


@pytest.mark.parametrize(
    ("stages", "retires_in"),
    [
        # As many as retire a gear, and never three in a row.
        ([[REDONE, WELL, REDONE, WELL, REDONE, REDONE, WELL]], None),
        ([[REDONE, REDONE, WELL], [REDONE, REDONE]], None),
        ([[REDONE, REDONE], [WELL, REDONE]], None),
        # In a row: within one stage, and from the end of one into the next.
        ([[WELL, REDONE, REDONE, REDONE, WELL]], 1),
        ([[WELL, REDONE, REDONE], [REDONE, WELL]], 2),
        ([[REDONE, SKIPPED], [REDONE]], 2),
        # A stage without a step says nothing.
        ([[REDONE, REDONE], [], [REDONE]], 3),
    ],
)
def test_only_optimizer_steps_that_follow_each_other_count_as_in_a_row(stages, retires_in):
    actors = [Actor()]
    found = staged(gears_of(actors), actors, *stages)
    retired = [number for number, kind in found if kind is RETIRED]
    assert retired == ([] if retires_in is None else [retires_in])


def test_a_stage_in_which_steps_were_redone_is_told():
    """What it took was computed in two gears, and tells of neither."""
    actors = [Actor()]
    gears = gears_of(actors)
    staged(gears, actors, [WELL, REDONE])
    assert gears.stage(9).is_redone
    gears.begin_step(Gear.FP8, 2, 9)
    actors[0].own.report = StepReport(ends=[WELL, WELL])
    gears.end_step(2, 100.0)
    assert not gears.stage(9).is_redone


def test_tokens_of_redone_steps_count_to_the_gear_that_computed_them():
    actors = [Actor()]
    gears = gears_of(actors)
    staged(gears, actors, [WELL, REDONE, WELL, WELL], [WELL, WELL], [SKIPPED, WELL])
    memory = gears.memory()
    # A step that was skipped was computed in no other gear.
    assert (memory["tokens"], memory["low_tokens"]) == (300.0, 275.0)
    assert memory["n_steps"] == 3


def test_skipped_steps_are_not_told_as_redone(snapshot):
    actors = [Actor()]
    gears = gears_of(actors)
    found = staged(gears, actors, [SKIPPED, WELL], [REDONE, SKIPPED, WELL, WELL])
    assert found == [
        (1, FaultKind.GEAR_SKIPPED), (2, OVERFLOW), (2, FaultKind.GEAR_SKIPPED),
    ]  # fmt: skip
    first, second, third = (fault.detail for fault in gears._record.faults)
    assert "1 of 2" in first
    assert "1 of 4" in second
    assert "1 of 4" in third
    snapshot(f"{first}\n{second}\n{third}")


def test_processes_tell_together_what_became_of_each_step():
    assert agreed([[WELL, WELL, REDONE], [WELL, SKIPPED], []]) == [WELL, SKIPPED, REDONE]
    assert agreed([[], []]) == []


def test_a_gear_that_cannot_overflow_is_not_retired_by_what_is_told_of_it():
    """Its report is asked for where other gears were measured in its stage."""
    actors = [Actor()]
    gears = gears_of(actors, measure_every=1)
    gears.make_ready(1)
    for number in (1, 2, 3):
        gears.begin_step(Gear.BF16, number, 9)
        actors[0].own.report = StepReport(ends=[REDONE, REDONE])
        gears.end_step(number, 100.0)
    assert gears._record.faults == []
    assert gears.stage(9).gears == (Gear.BF16, Gear.FP8)


def test_what_nobody_asked_for_is_forgotten_when_the_gear_changes():
    actor = Actor()
    actor.own.report = StepReport(ends=[REDONE] * 3)
    worker.shift(actor, Gear.FP8, Gear.BF16, ())
    assert worker.take_report(actor) == StepReport()


def test_a_mismatch_that_is_no_number_bars_and_is_missing_in_the_record(snapshot):
    actors = [Actor()]
    gears = gears_of(actors, measure_every=1)
    gears.make_ready(1)
    gears.begin_step(Gear.BF16, 1, 9)
    actors[0].own.report = StepReport(mismatch={Gear.FP8: math.inf})
    gears.end_step(1, 100.0)
    assert gears._record.metrics[1, "probability_mismatch_FP8"] is None
    (fault,) = gears._record.faults
    snapshot(fault.detail)
    assert gears.stage(9).gears == (Gear.BF16,)


def test_the_mismatch_of_all_processes_bars_a_gear():
    actors = [Actor(), Actor()]
    gears = gears_of(actors, measure_every=2, mismatch_limit=1.2)
    gears.make_ready(1)
    found = {1: (1.1, 1.2), 2: (None, None), 3: (1.1, 1.5)}
    for number, values in found.items():
        gears.begin_step(None, number, 9)
        due = [actor.own.due for actor in actors]
        assert due == [(Gear.FP8,) if number % 2 else ()] * 2
        for actor, value in zip(actors, values, strict=True):
            actor.own.due = ()  # the training stage has measured
            if due[0]:
                actor.own.report = StepReport(mismatch={Gear.FP8: value}, measured_s=0.5)
        gears.end_step(number, 100.0)
    metrics = gears._record.metrics
    assert metrics[1, "probability_mismatch_FP8"] == pytest.approx(1.15)
    assert metrics[3, "probability_mismatch_FP8"] == pytest.approx(1.3)
    assert metrics[3, "gear_measurement_s"] == 0.5
    (fault,) = gears._record.faults
    assert (fault.iteration, fault.kind) == (3, FaultKind.GEAR_BARRED)
    assert gears.stage(9).gears == (Gear.BF16,)


@pytest.mark.parametrize(("steps_left", "low"), [(4, 2), (None, 1)])
def test_the_cap_on_low_precision_holds(steps_left, low):
    """Unknown how many steps are left, no more than the share of those done is taken."""
    gears = gears_of([Actor()], low_share=0.5)
    gears.make_ready(1)
    labels = []
    for number in (1, 2, 3, 4):
        left = None if steps_left is None else steps_left - number + 1
        gears.begin_step(Gear.FP8, number, left)
        labels.append(gears.label)
        gears.end_step(number, 100.0)
    assert sum(label == "FP8 simulated" for label in labels) <= 2
    assert sum(label == "FP8 simulated" for label in labels) >= low


def test_what_devices_lack_is_one_line(monkeypatch):
    actors = [Actor(), Actor()]
    config = GearsConfig(allowed=(Gear.BF16, Gear.FP8))
    with pytest.raises(ConfigError, match=r"gears\.simulate_fp8 = true"):
        devices.check_refusals(devices.ask_refusals(config, actors))
    fine = GearsConfig(allowed=(Gear.BF16,))
    devices.check_refusals(devices.ask_refusals(fine, actors))
    refused = GearRefusal("gears.allowed", ["FP8"], "a list without FP8")
    monkeypatch.setattr(devices, "refusal", lambda actor, order: refused)
    with pytest.raises(ConfigError, match="a list without FP8"):
        devices.check_refusals(devices.ask_refusals(fine, actors))


# ---------------------------------------------------------------- the policy's training


WORK = StageWork(Stage.ACTOR_TRAIN, 4, 40, 16, 0, None)


def test_executions_carry_gear_and_width():
    runtime = FakeRuntime()
    training = PolicyTraining(2, gears_of([Actor(), Actor()]))
    assert training.make_ready(1) == 12
    training.stand(runtime, 1, 9)
    work = training.begin(WORK)
    assert (work.gear, work.width) == ("BF16", 2)
    training.end(1)
    assert training.memory()["tokens"] == WORK.n_tokens
    # A step in which the policy was not trained counts for no gear.
    training.stand(runtime, 2, 8)
    training.end(2)
    assert training.memory()["n_steps"] == 1


def test_without_gears_the_control_path_is_asked_as_before():
    asked = []

    class Runtime(FakeRuntime):
        def tick(self, now_s, **told):
            asked.append(told)
            return ungoverned(now_s)

    training = PolicyTraining(2)
    assert training.make_ready(1) is None
    training.stand(Runtime(), 1, None)
    assert asked == [{"steps_left": None, "is_stopping": False, "stage": AS_IT_IS}]
    assert (training.begin(WORK).gear, training.begin(WORK).width) == (None, 2)
    assert training.memory() is None
