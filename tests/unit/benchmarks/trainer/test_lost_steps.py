"""Lost and doubled steps are found by what members note and by losses, not by the log alone."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

pytest.importorskip("torch")

from benchmarks.studies.trainer.elastic import WideTask
from benchmarks.studies.trainer.lost_steps import (
    AppliedStep,
    LostSteps,
    NotedTask,
    judge_lost,
    lost_figure,
    read_notes,
)
from ecorl.trainer.elastic.member import Member
from ecorl.trainer.elastic.records import (
    ElasticFault,
    FaultSeen,
    MemberOptions,
    StepDone,
    StepOrder,
    TrainingResult,
)

N = 6
TASK = WideTask(batch_rows=6, n_hidden=4)


class Training:
    """A member that trains alone, noting what it applies; its driver's log is a plain one."""

    def __init__(self, folder):
        task = NotedTask(TASK.batch_rows, TASK.n_hidden, folder / "notes")
        self.member = Member("member-1", task, MemberOptions(micro_batch_rows=4), "127.0.0.1")
        self.member.load(task.rows(0))
        self.notes, self.steps = folder / "notes", []

    def step(self, step, n_committed=None):
        rows = tuple(TASK.rows(step))
        done = step if n_committed is None else n_committed
        order = StepOrder(step, done, rows, 0, len(rows), ("member-1",))
        return StepDone(step, self.member.compute(order).loss, 1, rows, 1.0 + step, 1.0)

    def train(self, doubled=None, lost=None):
        """Train, the optimizer applying one step twice or not at all."""
        for step in range(N):
            self.steps.append(self.step(step))
            if step == lost:
                self.member.optimizer.step, own = lambda: None, self.member.optimizer.step
                self.member.settle(step + 1)
                self.member.optimizer.step = own
            if step == doubled:
                self.member._task.before_update(None, None, step)
                self.member.optimizer.step()
        self.member.settle(N)
        return self


@pytest.fixture
def losses(tmp_path):
    """Of an undisturbed training."""
    folder = tmp_path / "undisturbed"
    folder.mkdir()
    return [one.loss for one in Training(folder).train().steps]


def judged(steps, notes, losses, faults=()):
    result = TrainingResult(0, tuple(steps), (), tuple(faults), 0, True)
    return judge_lost(result, notes, TASK, losses, (3, 3))


def test_an_undisturbed_training_has_lost_nothing(tmp_path, losses):
    found = Training(tmp_path).train()
    lost = judged(found.steps, read_notes(found.notes), losses)
    assert (lost.n_lost, lost.n_off, lost.loss_gap) == (0, 0, 0.0)
    assert lost_figure(lost).holds is True


@pytest.mark.parametrize("defect", ["doubled", "lost"])
def test_an_update_that_is_doubled_or_lost_shows_though_the_log_is_whole(tmp_path, losses, defect):
    found = Training(tmp_path).train(**{defect: 2})
    assert [one.step for one in found.steps] == list(range(N))
    notes = read_notes(found.notes)
    lost = judged(found.steps, notes, losses)
    # By its notes the step itself, and by their losses those after it.
    assert lost.n_lost == 1 + lost.n_off
    assert lost.n_off == N - 3
    assert lost.loss_gap > 1e-3
    assert lost_figure(lost).holds is False
    # The losses alone suffice, and so do the notes.
    whole = [AppliedStep("a", step, tuple(TASK.rows(step))) for step in range(N)]
    assert judged(found.steps, whole, losses).n_lost == lost.n_off
    right = [replace(one, loss=losses[one.step]) for one in found.steps]
    assert judged(right, notes, losses).n_lost == 1


def test_a_last_step_that_is_doubled_has_no_loss_after_it_and_shows_in_the_notes(tmp_path, losses):
    found = Training(tmp_path).train(doubled=N - 1)
    lost = judged(found.steps, read_notes(found.notes), losses)
    assert (lost.n_lost, lost.n_off) == (1, 0)


def test_an_attempt_that_was_dropped_leaves_no_rows_in_the_notes(tmp_path):
    one = Training(tmp_path)
    one.step(0)
    one.step(0, n_committed=0)  # drops the one before, which nobody committed
    one.member.settle(1)
    (note,) = read_notes(one.notes)
    assert (note.step, note.rows) == (0, tuple(TASK.rows(0)))


@pytest.mark.parametrize(
    ("altered", "n_lost", "n_off"),
    [
        (lambda steps: steps[:2] + steps[3:], 1, 0),
        (lambda steps: [*steps, steps[2]], 1, 0),
        (lambda steps: [*steps[:-1], replace(steps[-1], rows=(0,))], 1, 0),
        (lambda steps: [*steps[:-1], replace(steps[-1], loss=steps[-1].loss * 1.001)], 1, 1),
        (lambda steps: [*steps[:-1], replace(steps[-1], loss=math.nan)], 1, 1),
        # What another order of summing does.
        (lambda steps: [replace(one, loss=one.loss * (1 + 5e-7)) for one in steps], 0, 0),
    ],
)
def test_a_log_that_is_not_whole_has_lost_steps(tmp_path, losses, altered, n_lost, n_off):
    found = Training(tmp_path).train()
    lost = judged(altered(found.steps), read_notes(found.notes), losses)
    assert (lost.n_lost, lost.n_off) == (n_lost, n_off)
    assert (lost.loss_gap is None) == any(math.isnan(one.loss) for one in altered(found.steps))
    assert lost_figure(lost).holds is (n_lost == 0)


def test_members_share_a_step_s_rows_and_apply_them_again_only_after_a_return(losses):
    rows = [tuple(TASK.rows(step)) for step in range(N)]
    steps = [StepDone(step, losses[step], 2, rows[step], 1.0, 1.0) for step in range(N)]
    shared = [
        AppliedStep(who, step, part)
        for step in range(N)
        for who, part in (("a", rows[step][:3]), ("b", rows[step][3:]))
    ]
    assert judged(steps, shared, losses).n_lost == 0
    # One of them has not applied a step that the other has.
    assert judged(steps, shared[:-1], losses).n_lost == 1
    again = [*shared, AppliedStep("c", 4, rows[4])]
    assert judged(steps, again, losses).n_lost == 1
    back = [FaultSeen(5, ElasticFault.ALL_LOST, "step 5", "")]
    assert judged(steps, again, losses, back).n_lost == 0
    assert judged(steps, [], losses).n_lost == N


def test_a_training_whose_kills_did_not_happen_is_not_judged(snapshot):
    whole = LostSteps(0, 40, 3, 3, 7, 0, 1e-7)
    assert lost_figure(whole).holds is True
    none = lost_figure(replace(whole, n_killed=0))
    assert none.value is None
    snapshot(none.note, "none")
    some = lost_figure(replace(whole, n_killed=1))
    assert (some.value, some.target) == (0.0, None)
    snapshot(some.note, "some")
    no_numbers = lost_figure(replace(whole, n_lost=4, n_off=4, loss_gap=None))
    assert no_numbers.holds is False
    assert no_numbers.spread["loss_gap"] is None
