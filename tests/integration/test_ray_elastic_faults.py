"""Elastic trainings whose parts are killed: each step counts once, and the curve is undisturbed.

Members are numbered in the order in which they are made, so that a drill knows whom to kill. By
default a member and the driver are killed; tests/unit/trainer/elastic has the matrix with members
in threads.
"""

from __future__ import annotations

import errno
import itertools
import os
import signal
import statistics
import subprocess
import sys
import threading
import time

import pytest

from ecorl.errors import RunError
from ecorl.trainer.elastic.checkpoints import CheckpointFolder
from ecorl.trainer.elastic.records import ElasticFault, Patience, Point
from tests.elastic_runs import check_whole, training
from tests.toy_runs import ROOT
from tests.toy_task import DIES, NAPS, STOPS, Drill, ToyTask

LOST, JOINER, REDONE = (
    ElasticFault.MEMBER_LOST,
    ElasticFault.JOINER_LOST,
    ElasticFault.STEP_REDONE,
)
PATIENCE = Patience(ping_s=60.0)
"""Where nobody falls silent."""


def until(trainer, width, after=""):
    """Stops at that width, once a certain member is lost."""

    def on_step(done):
        is_lost = not after or any(one.who == after for one in trainer._log.result(0).faults)
        if done.width == width and is_lost:
            trainer.stop()

    return on_step


def seen(result):
    return [(one.kind, one.who) for one in result.faults]


@pytest.mark.deep
def test_joiners_that_die_or_are_late_at_any_point(elastic_cluster, tmp_path):
    """While loading, at the meeting, and while they are given the state; training goes on."""
    task = ToyTask(step_s=0.02)
    drill = Drill(
        {
            (Point.LOADING, "member-2"): (DIES, 0),
            (Point.MEETING, "member-3"): (DIES, 0),
            (Point.SHARING, "member-4"): (DIES, 0),
            (Point.LOADING, "member-5"): (NAPS, 0),
        },
        nap_s=3.0,
    )
    with training(tmp_path, task, drill=drill, patience=PATIENCE) as trainer:
        trainer.set_width(2, at_step=1)
        trainer.train(1)
        trainer.set_width(2)
        trainer.train(100_000, until(trainer, 2))
        n_steps = trainer.n_done + 3
        result = trainer.train(n_steps)
        check_whole(trainer, result, task, n_steps)
    assert [who for kind, who in seen(result) if kind is JOINER] == [
        "member-2",
        "member-3",
        "member-4",
    ]
    assert {kind for kind, _ in seen(result)} <= {JOINER, ElasticFault.GROUP_FAILED}
    assert result.n_redone == 0  # no step was under way in a group of theirs
    gaps = [b.ended_s - a.ended_s for a, b in itertools.pairwise(result.steps)]
    # Training stood for none of them: the change took longer to prepare.
    assert statistics.median(gaps) < result.changes[-1].prepared_s
    assert result.changes[-1].stood_s < result.changes[-1].prepared_s


def test_members_that_die_in_a_step_and_then_all_of_them(elastic_cluster, tmp_path):
    """After one has applied a step, before it tells that it has summed, and in the switch."""
    task = ToyTask(step_s=0.02)
    drill = Drill(
        {
            (Point.APPLIED, "member-2"): (DIES, 3),
            (Point.REDUCED, "member-3"): (DIES, 1),
            # The first one sends its state to member-2, to member-3 and to member-4.
            (Point.SHARING, "member-1"): (DIES, 2),
        }
    )
    dying = {member for _, member in drill.plans}
    options = {"checkpoint_every": 5, "patience": PATIENCE, "drill": drill}
    with training(tmp_path, task, width=2, **options) as trainer:
        trainer.train(100_000, until(trainer, 2, after="member-1"))
        n_steps = trainer.n_done + 3
        result = trainer.train(n_steps)
        check_whole(trainer, result, task, n_steps)
    dead = [who for kind, who in seen(result) if kind in (LOST, JOINER) and who in dying]
    assert dead == ["member-2", "member-3", "member-1"]
    assert (LOST, "member-1") in seen(result)
    # A machine may be so busy that member-2 is given up before it has joined.
    if (LOST, "member-2") in seen(result):
        # It had applied step 3, as had the other or not: step 4 was not committed.
        assert (REDONE, "step 4") in seen(result)
    # Back to the newest checkpoint: no more than its steps were computed again.
    assert 2 <= result.n_redone <= 2 + 5


@pytest.mark.deep
def test_an_old_member_dies_in_the_switch_and_another_falls_silent(elastic_cluster, tmp_path):
    """The others go on from where all of them are; a silent one is ended, not waited for."""
    task = ToyTask(step_s=0.02)
    drill = Drill(
        {
            (Point.SHARING, "member-2"): (DIES, 1),
            (Point.COMPUTING, "member-1"): (STOPS, 12),
        }
    )
    options = {"patience": Patience(ping_s=10.0), "timeout_s": 12.0}
    with training(tmp_path, task, width=2, drill=drill, **options) as trainer:
        trainer.set_width(3, at_step=5)
        trainer.train(100_000, until(trainer, 3, after="member-1"))
        n_steps = trainer.n_done + 3
        result = trainer.train(n_steps)
        check_whole(trainer, result, task, n_steps)
    assert [who for kind, who in seen(result) if kind is LOST] == ["member-2", "member-1"]
    assert ElasticFault.ALL_LOST not in {kind for kind, _ in seen(result)}
    # The silent member costs one step. On a busy machine a collective may run past its short
    # limit while all members live; that step is redone as well, with a longer limit.
    causes = [one.message for one in result.faults if one.kind is REDONE]
    n_late = sum("from now on a collective may take" in cause for cause in causes)
    assert len(causes) == result.n_redone == 1 + n_late


@pytest.mark.deep
def test_training_begins_without_a_member_that_is_late(elastic_cluster, tmp_path):
    task = ToyTask(step_s=0.02)
    drill = Drill({(Point.LOADING, "member-1"): (NAPS, 0)}, nap_s=600.0)
    options = {"patience": Patience(begin_s=0.5), "drill": drill}
    with training(tmp_path, task, width=2, **options) as trainer:
        trainer.train(100_000, until(trainer, 2))
        n_steps = trainer.n_done + 3
        result = trainer.train(n_steps)
        check_whole(trainer, result, task, n_steps)
    assert seen(result) == [(JOINER, "member-1")]
    assert result.widths[0] == 1


DRIVER = """
import os, sys, threading
from pathlib import Path
import ray
ray.init(address=sys.argv[1], log_to_driver=False, configure_logging=False)
from tests.elastic_runs import training
from tests.toy_task import ToyTask
folder = Path(sys.argv[2])
def on_step(done):
    # Checkpoints are written beside the training: one to damage, and one to go on from.
    if done.step >= 12 and len(list(folder.glob("step-*.ckpt"))) == 2:
        os.kill(os.getpid(), 9)
with training(folder, ToyTask(step_s=0.02), width=1, checkpoint_every=4) as trainer:
    trainer.train(1_000, on_step)
"""


def test_a_killed_driver_a_damaged_checkpoint_and_a_full_disk(
    elastic_cluster, tmp_path, monkeypatch
):
    task = ToyTask(step_s=0.02)
    command = [sys.executable, "-c", DRIVER, elastic_cluster.address, str(tmp_path)]
    killed = subprocess.run(command, cwd=ROOT, check=False, timeout=240)
    assert killed.returncode == -signal.SIGKILL
    newest = max(tmp_path.glob("step-*.ckpt"))
    newest.write_bytes(newest.read_bytes()[:-1])
    kept = max(tmp_path.glob("step-*.ckpt"), key=lambda path: (path != newest, path))
    n_kept = int(kept.stem.removeprefix("step-"))

    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with training(tmp_path, task, checkpoint_every=4) as trainer:
        trainer.train(n_kept + 2)
        monkeypatch.setattr("ecorl.files.os.fsync", full)
        trainer.set_width(0, at_step=n_kept + 10)
        widths = []
        ends_pause = threading.Thread(target=end_pause, args=(trainer, monkeypatch, widths))
        ends_pause.start()
        result = trainer.train(n_kept + 14)
        ends_pause.join()
        check_whole(trainer, result, task, n_kept + 14, first=n_kept)
    # The pause let nobody go whose state was nowhere else.
    assert widths == [1]
    kinds = [kind for kind, _ in seen(result)]
    assert kinds[0] is ElasticFault.CHECKPOINT_DAMAGED
    assert set(kinds[1:]) == {ElasticFault.CHECKPOINT_FAILED}
    assert result.first_step == n_kept
    assert result.n_redone == 0
    names = sorted(path.name for path in tmp_path.iterdir())
    assert f"step-{n_kept + 14:08d}.ckpt" in names
    assert newest.with_suffix(".damaged").name in names
    assert not [name for name in names if name.endswith(".part")]


def end_pause(trainer, monkeypatch, widths):
    """Ends a pause whose checkpoint was not written; then there is space again."""
    while not any(fault.step == trainer.n_done for fault in trainer._log.result(0).faults):
        time.sleep(0.01)
    time.sleep(0.5)
    widths.append(trainer.width)
    monkeypatch.undo()
    trainer.set_width(1)


@pytest.mark.deep
def test_a_member_that_dies_after_the_last_step_does_not_take_the_state_with_it(
    elastic_cluster, tmp_path
):
    task = ToyTask()
    drill = Drill({(Point.APPLIED, "member-1"): (DIES, 3)})
    with training(tmp_path, task, width=2, drill=drill, patience=PATIENCE) as trainer:
        assert trainer.train(4).is_complete
        assert CheckpointFolder(tmp_path).n_done() == 4
        assert len(trainer.weights()) > 0
        result = trainer.train(6)
        check_whole(trainer, result, task, 6)
    assert ElasticFault.ALL_LOST not in {kind for kind, _ in seen(result)}


@pytest.mark.deep
def test_a_last_state_that_cannot_be_written_is_told_and_can_be_written_later(
    elastic_cluster, tmp_path, monkeypatch
):
    monkeypatch.setattr("ecorl.trainer.elastic.trainer._SAVE_AGAIN_S", 0.1)

    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    task = ToyTask()
    with training(tmp_path, task) as trainer:
        with monkeypatch.context() as patched:
            patched.setattr("ecorl.files.os.fsync", full)
            with pytest.raises(RunError, match=r"after 4 steps is on no disk: .*No space left"):
                trainer.train(4)
            assert trainer.width == 1
            assert len(trainer.weights()) > 0
            # A pause tries it again until there is space.
            trainer.set_width(0)
            ends = threading.Thread(target=make_space, args=(trainer, patched))
            ends.start()
            result = trainer.train(6)
            ends.join()
        check_whole(trainer, result, task, 6)
    assert [one.after for one in result.changes] == [1, 0, 1]


def make_space(trainer, patched):
    """Ends a lack of space, and the pause once the actors were let go."""
    while len(trainer._log.result(0).faults) < 3:
        time.sleep(0.01)
    patched.undo()
    while trainer.width:
        time.sleep(0.01)
    trainer.set_width(1)


@pytest.mark.deep
def test_rows_that_kill_whoever_computes_them_end_the_training(
    elastic_cluster, tmp_path, monkeypatch
):
    monkeypatch.setattr("ecorl.trainer.elastic.trainer._TRIES", 1)

    # A checkpoint is written beside the training: the actor dies once its own is on the disk.
    saved_after_2 = tmp_path / "step-00000002.ckpt"

    class Deadly(ToyTask):
        def loss(self, model, indices):
            if set(indices) & set(self.rows(2)):
                end_s = time.monotonic() + 240
                while not saved_after_2.exists() and time.monotonic() < end_s:
                    time.sleep(0.01)
                os._exit(1)
            return super().loss(model, indices)

    with (
        training(tmp_path, Deadly(), checkpoint_every=2) as trainer,
        pytest.raises(RunError, match="no trainer actors came up"),
    ):
        trainer.train(5)
    saved, _ = CheckpointFolder(tmp_path).newest()
    assert saved.n_done == 2
