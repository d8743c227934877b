"""A training goes on whatever its members do, and stands for as short as it can meanwhile."""

from __future__ import annotations

import threading
import time
from collections import Counter
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("ray")

from ray.exceptions import ActorDiedError, RayError, RayTaskError

from ecorl.errors import DataError, RunError
from ecorl.trainer.elastic import member
from ecorl.trainer.elastic.checkpoints import CheckpointFolder
from ecorl.trainer.elastic.crew import reason_of
from ecorl.trainer.elastic.groups import CollectiveFailed
from ecorl.trainer.elastic.records import ElasticFault, Patience, Point
from tests.elastic_runs import training
from tests.local_members import dies, falls_silent, naps, use_local_members
from tests.toy_task import ToyTask

PATIENCE = Patience(ping_s=0.3)


@pytest.fixture
def local(monkeypatch):
    return use_local_members(monkeypatch)


def drill(plans):
    """Calls what is planned for a (point, member) at the nth time, from 0; None: each time."""
    calls = Counter()

    def at(point, who, step):
        act, nth = plans.get((point, who), (None, None))
        calls[point, who] += 1
        if act is not None and nth in (None, calls[point, who] - 1):
            act()

    return at


def seen(result):
    return [(one.kind, one.who) for one in result.faults]


def until(condition):
    limit_s = time.monotonic() + 240
    while not condition():
        assert time.monotonic() < limit_s
        time.sleep(0.005)


def when(condition, call, *args):
    """Call something in a thread of its own once it is time for it."""
    thread = threading.Thread(target=lambda: (until(condition), call(*args)))
    thread.start()
    return thread


def out_of_memory():
    raise MemoryError("no room for the moments")


def refuses(*_):
    raise CollectiveFailed("group-1: Invalid scalar type")


def test_survivors_lose_a_member_that_falls_silent_while_they_meet(local, tmp_path):
    def falls_silent_later():
        if local["member-3"].ended.is_set():
            falls_silent()

    plans = {
        (Point.MEETING, "member-1"): (falls_silent_later, None),
        (Point.COMPUTING, "member-3"): (dies, 2),
    }
    options = {"drill": drill(plans), "patience": PATIENCE, "timeout_s": 1.0}
    with training(tmp_path, ToyTask(), width=3, **options) as trainer:
        result = trainer.train(6)
        assert [one.name for one in trainer._crew.members][:1] == ["member-2"]
    assert result.is_complete
    lost = [who for kind, who in seen(result) if kind is ElasticFault.MEMBER_LOST]
    assert lost == ["member-3", "member-1"]


def test_a_member_alone_that_falls_silent_is_lost(local, tmp_path):
    plans = {(Point.COMPUTING, "member-1"): (falls_silent, 2)}
    patience = Patience(ping_s=0.1)
    with training(tmp_path, ToyTask(), drill=drill(plans), patience=patience) as trainer:
        result = trainer.train(4)
    assert seen(result)[0] == (ElasticFault.MEMBER_LOST, "member-1")
    assert result.is_complete


def test_what_a_joiner_raises_while_it_is_given_the_state_is_its_own_end(local, tmp_path):
    plans = {(Point.SHARING, "member-2"): (out_of_memory, 0)}
    options = {"drill": drill(plans), "patience": PATIENCE}
    with training(tmp_path, ToyTask(), **options) as trainer:
        trainer.set_width(2, at_step=2)
        result = trainer.train(4)
    assert result.widths == [1, 1, 2, 2]
    (lost,) = [one for one in result.faults if one.kind is ElasticFault.JOINER_LOST]
    assert (lost.who, lost.message) == ("member-2", "MemoryError: no room for the moments")


def test_a_joiner_that_is_stuck_with_the_state_is_not_waited_for(local, tmp_path):
    woken = []

    def sleeps():
        naps(600.0)
        woken.append("by itself")

    plans = {(Point.SHARING, "member-2"): (sleeps, 0)}
    # The next one has this time too.
    options = {"drill": drill(plans), "patience": PATIENCE, "timeout_s": 3.0}
    with training(tmp_path, ToyTask(), **options) as trainer:
        trainer.set_width(2, at_step=2)
        result = trainer.train(4)
    assert result.widths == [1, 1, 2, 2]
    assert (ElasticFault.JOINER_LOST, "member-2") in seen(result)
    assert woken == []


def test_a_state_that_never_gets_through_is_given_up(local, tmp_path, monkeypatch):
    """As with a buffer of a kind that the process group cannot send."""
    monkeypatch.setattr("ecorl.trainer.elastic.trainer._JOINS", 2)
    monkeypatch.setattr("ecorl.trainer.elastic.member.send_state", refuses)
    with training(tmp_path, ToyTask(), patience=PATIENCE) as trainer:
        trainer.set_width(2, at_step=2)
        result = trainer.train(4)
    assert result.widths == [1] * 4
    kinds = [kind for kind, _ in seen(result)]
    assert kinds.count(ElasticFault.WIDTH_GIVEN_UP) == 1
    # Each of two tries ended with the third time.
    assert len([one for one in result.faults if "Invalid scalar type" in one.message]) == 6


@pytest.mark.parametrize("what", ["member.send_state", "groups.GroupCache.join"])
def test_a_group_that_fails_at_the_start_leaves_one_to_begin(local, tmp_path, monkeypatch, what):
    monkeypatch.setattr("ecorl.trainer.elastic.trainer._JOINS", 1)
    monkeypatch.setattr(f"ecorl.trainer.elastic.{what}", refuses)
    with training(tmp_path, ToyTask(), width=2, patience=PATIENCE) as trainer:
        result = trainer.train(3)
    assert result.is_complete
    assert result.changes[0].after == 1


def test_one_that_dies_at_the_start_does_not_hurry_the_others(local, tmp_path, monkeypatch):
    clock, is_late = SimpleNamespace(now_s=0.0, n_looks=0), threading.Event()

    def look():
        clock.n_looks += 1
        return clock.now_s

    def pass_time(time_s):
        clock.now_s += time_s
        n_looks = clock.n_looks
        until(lambda: clock.n_looks > n_looks + 1)

    def waits():
        assert is_late.wait(240)

    def go_on():
        pass_time(0.0)
        pass_time(2 * patience.begin_s)
        is_late.set()

    monkeypatch.setattr("ecorl.trainer.elastic.switch.time", SimpleNamespace(monotonic=look))
    plans = {
        (Point.LOADING, "member-1"): (dies, 0),
        (Point.LOADING, "member-2"): (waits, 0),
        (Point.LOADING, "member-3"): (waits, 0),
    }
    patience = Patience(ping_s=0.3, begin_s=60.0, join_s=600.0)
    with training(tmp_path, ToyTask(), width=3, drill=drill(plans), patience=patience) as trainer:
        later = when(lambda: trainer._log.result(0).faults, go_on)
        result = trainer.train(1)
        later.join()
    assert seen(result) == [(ElasticFault.JOINER_LOST, "member-1")]
    assert result.widths == [2]


IN_ITS_CREATION = (
    "The actor died because of an error raised in its creation task, "
    "\x1b[36mray::TrainerActor.__init__()\x1b[39m (pid=18863)\n"
    "  At least one of the input arguments for this task could not be computed:\n"
    "traceback: Traceback (most recent call last):\n"
    "ModuleNotFoundError: No module named 'my_task'\n"
)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (RayError(IN_ITS_CREATION), "ModuleNotFoundError: No module named 'my_task'"),
        (RayError("\x1b[36mThe actor died.\x1b[39m\n  pid: 5"), "The actor died."),
        (RayTaskError("load", "Traceback", DataError("no rows")), "no rows"),
        (RayTaskError("load", "Traceback", KeyError("a\nb")), "KeyError: 'a\\nb'"),
    ],
)
def test_a_reason_names_the_cause_on_one_line(error, reason):
    assert reason_of(error) == reason


def test_what_keeps_all_actors_from_coming_up_is_told(local, tmp_path, monkeypatch):
    monkeypatch.setattr("ecorl.trainer.elastic.trainer._TRIES", 1)
    monkeypatch.setattr(ActorDiedError, "__str__", lambda _: IN_ITS_CREATION)
    plans = {(Point.LOADING, "member-1"): (dies, 0)}
    with (
        training(tmp_path, ToyTask(), drill=drill(plans)) as trainer,
        pytest.raises(RunError, match="ModuleNotFoundError: "),
    ):
        trainer.train(1)


def test_a_stop_and_fewer_members_are_heard_while_actors_come_up(local, tmp_path):
    loading = []

    def naps_long():
        loading.append("loads")
        naps(600.0)
        loading.append("has loaded")

    plans = {(Point.LOADING, f"member-{number}"): (naps_long, 0) for number in (1, 2)}
    with training(tmp_path / "fewer", ToyTask(), width=2, drill=drill(plans)) as trainer:
        fewer = when(lambda: len(loading) == 2, trainer.set_width, 1)
        assert trainer.train(1).widths == [1]
        assert [one.name for one in trainer._crew.members] == ["member-3"]
        fewer.join()
    with training(tmp_path / "stop", ToyTask(), drill=drill(plans)) as trainer:
        stop = when(lambda: len(loading) == 3, trainer.stop)
        assert trainer.train(1).steps == ()
        stop.join()
    assert loading == ["loads"] * 3


def test_a_stop_before_the_training_is_not_forgotten(local, tmp_path):
    with training(tmp_path, ToyTask()) as trainer:
        trainer.stop()
        assert trainer.train(2).steps == ()
        assert local == {}
        assert trainer.train(2).is_complete


def test_actors_end_though_the_last_checkpoint_never_comes(local, tmp_path, monkeypatch):
    monkeypatch.setattr("ecorl.trainer.elastic.trainer._CLOSE_S", 0.2)
    with training(tmp_path, ToyTask()) as trainer:
        trainer.train(1)
        local["member-1"].is_silent = True
        never = trainer._crew.members[0].call("snapshot", 1)
        trainer._saver.save(1, never)
    assert local["member-1"].ended.is_set()
    # Its end was the only answer.
    assert isinstance(never.exception(timeout=0), ActorDiedError)


def test_actors_end_though_a_checkpoint_cannot_be_written_at_all(local, tmp_path, monkeypatch):
    def write(*_):
        raise ValueError("no such kind of number")

    with training(tmp_path, ToyTask()) as trainer:
        trainer.train(1)
        monkeypatch.setattr("ecorl.trainer.elastic.checkpoints.CheckpointFolder.write", write)
        trainer._saver.save(1, trainer._crew.snapshot())
        with pytest.raises(ValueError, match="no such kind of number"):
            trainer.close()
        assert local["member-1"].ended.is_set()


def test_a_member_that_is_slower_than_a_collective_may_take_is_given_the_time(
    local, tmp_path, monkeypatch
):
    reduces, has_failed = member.reduce_gradients, threading.Event()

    def reduce(*args, **kwargs):
        try:
            return reduces(*args, **kwargs)
        except CollectiveFailed:
            has_failed.set()
            raise

    class Skewed(ToyTask):
        """A member's share takes longer than a collective may, at first."""

        def loss(self, model, indices):
            if len(indices) == 1:
                assert has_failed.wait(240)
                time.sleep(1.2)
            return super().loss(model, indices)

    monkeypatch.setattr("ecorl.trainer.elastic.member.reduce_gradients", reduce)
    monkeypatch.setattr("ecorl.trainer.elastic.driver._TRIES", 1)
    with training(tmp_path, Skewed(), width=2, patience=PATIENCE, timeout_s=0.8) as trainer:
        result = trainer.train(2)
    assert result.widths == [2, 2]
    causes = [one.message for one in result.faults if one.kind is ElasticFault.STEP_REDONE]
    assert " 1.6 s" in causes[0]
    # On a busy machine that may be too short as well.
    assert all("from now on a collective may take" in cause for cause in causes)
    assert result.n_redone == len(causes)


def newest(folder):
    saved, _ = CheckpointFolder(folder).newest()
    return saved and saved.n_done


def test_a_step_that_always_fails_loses_none_of_those_before_it(local, tmp_path, monkeypatch):
    reduces = member.reduce_gradients
    monkeypatch.setattr(
        "ecorl.trainer.elastic.member.reduce_gradients",
        lambda *args, **kw: refuses() if len(calls) > 2 else reduces(*args, **kw),
    )
    calls = []
    with training(tmp_path, ToyTask(), width=2, patience=PATIENCE) as trainer:
        with pytest.raises(RunError, match="Invalid scalar type"):
            trainer.train(5, calls.append)
        assert newest(tmp_path) == 3


def test_steps_are_saved_when_the_users_own_code_raises(local, tmp_path):
    class BadRow(ToyTask):
        def loss(self, model, indices):
            if indices[0] in self.rows(3):
                raise ValueError("a bad row")
            return super().loss(model, indices)

    def on_step(done):
        if done.step == 4:
            raise KeyboardInterrupt

    with (
        training(tmp_path / "loss", BadRow()) as trainer,
        pytest.raises(ValueError, match="a bad row"),
    ):
        trainer.train(5)
    assert newest(tmp_path / "loss") == 3
    with training(tmp_path / "told", ToyTask()) as trainer, pytest.raises(KeyboardInterrupt):
        trainer.train(9, on_step)
    assert newest(tmp_path / "told") == 5


def test_a_step_that_was_applied_in_part_is_not_saved(local, tmp_path):
    calls = []

    class FailsOnce(ToyTask):
        def before_update(self, model, optimizer, step):
            calls.append(step)
            if len(calls) == 3:
                raise ValueError("out of memory")

    with (
        training(tmp_path, FailsOnce()) as trainer,
        pytest.raises(ValueError, match="out of memory"),
    ):
        trainer.train(5)
    assert newest(tmp_path) is None
    (fault,) = trainer._log.result(0).faults
    assert fault.kind is ElasticFault.CHECKPOINT_FAILED


def test_a_member_that_falls_silent_over_a_checkpoint_is_lost(local, tmp_path):
    plans = {(Point.APPLIED, "member-1"): (falls_silent, 1)}  # the second step, for the checkpoint
    options = {"drill": drill(plans), "patience": Patience(ping_s=0.1), "checkpoint_every": 2}
    with training(tmp_path, ToyTask(), width=2, **options) as trainer:
        result = trainer.train(5)
    assert result.widths[:2] == [2, 2]
    assert [one.step for one in result.steps] == list(range(5))
    assert seen(result)[0] == (ElasticFault.MEMBER_LOST, "member-1")
    assert newest(tmp_path) == 5


def test_a_late_abort_leaves_the_next_group_of_the_same_members_alone(local, tmp_path, monkeypatch):
    aborts, reduces, calls = member.Member.abort, member.reduce_gradients, []

    def abort(*args):
        time.sleep(0.2)
        aborts(*args)

    def reduce(*args, **kwargs):
        calls.append(args)
        return refuses() if len(calls) == 3 else reduces(*args, **kwargs)

    monkeypatch.setattr("ecorl.trainer.elastic.member.Member.abort", abort)
    monkeypatch.setattr("ecorl.trainer.elastic.member.reduce_gradients", reduce)
    with training(tmp_path, ToyTask(step_s=0.15), width=2, patience=PATIENCE) as trainer:
        result = trainer.train(4)
    assert result.n_redone == 1
    assert result.widths == [2] * 4


def test_weights_are_those_of_the_checkpoint_where_no_member_is_left(local, tmp_path):
    with training(tmp_path, ToyTask(), patience=PATIENCE) as trainer:
        trainer.train(3)
        wanted = trainer.weights()
        local["member-1"].kill()
        found = trainer.weights()
    assert wanted.keys() == found.keys()
    assert all(torch.equal(wanted[name], found[name]) for name in wanted)
    assert trainer.width == 0


def test_a_last_member_that_is_lost_over_the_last_state_is_replaced(local, tmp_path):
    """What it had done since the checkpoint is done again, and only then the training is over."""
    with training(tmp_path, ToyTask(), patience=PATIENCE, checkpoint_every=2) as trainer:
        result = trainer.train(5, lambda done: local["member-1"].kill() if done.step == 4 else None)
        assert [one.name for one in trainer._crew.members] == ["member-2"]
    assert result.is_complete
    assert newest(tmp_path) == 5
