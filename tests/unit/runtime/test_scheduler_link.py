"""What is told to a scheduler that dies, forgets or stays away; Ray itself is a stand-in here."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from types import SimpleNamespace

import pytest

pytest.importorskip("ray")

from hypothesis import given, settings
from hypothesis import strategies as st

from ecorl.ledger import LEDGER_FILE, Ledger, LedgerReader
from ecorl.runtime.handles import Span
from ecorl.runtime.ray import link, outbox, scheduler
from ecorl.runtime.ray.outbox import Note
from ecorl.runtime.ray.scheduler import NotStarted, SchedulerActor
from tests.examples import examples
from tests.ray_stand_in import Actor, QuietSender, Ray


@pytest.fixture
def actor(monkeypatch):
    one = Actor()
    monkeypatch.setattr(link, "ray", Ray(one))
    return one


@pytest.fixture
def make(actor, monkeypatch):
    made = []

    def make(gather_s=None, **options):
        """A link; without a time it has no thread that sends."""
        with monkeypatch.context() as patch:
            if gather_s is None:
                patch.setattr(link, "Sender", QuietSender)
            made.append(link.SchedulerLink(actor, gather_s=gather_s or 0.0, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


def tell(one, *values):
    for value in values:
        one.tell("metric", value)


# ---------------------------------------------------------------- a scheduler that is away


def test_what_was_not_in_the_file_is_told_again_in_its_order(actor, make):
    one = make()
    tell(one, *range(6))
    one.confirm()
    actor.write(4)
    tell(one, 6)
    one.confirm()
    actor.die()
    tell(one, 7, 8)
    one.confirm()
    assert not one.is_up
    tell(one, 9)
    actor.is_dead = False
    assert one.await_up(240.0)
    assert actor.told() == list(range(10))


def test_a_scheduler_that_another_process_has_started_anew_asks_for_what_is_missing(actor, make):
    one = make()
    tell(one, *range(3))
    one.confirm()
    actor.die()
    actor.is_dead = actor.is_fresh = False
    tell(one, 3)
    assert one.await_up(240.0)
    assert actor.told() == [0, 1, 2, 3]


def test_beyond_its_limit_the_link_of_a_lost_scheduler_drops_notes_and_says_how_many(
    actor, make, caplog
):
    one = make(max_notes=5)
    actor.die()
    tell(one, *range(9))
    one.confirm()
    assert not one.is_up
    assert sum("further" in message for message in caplog.messages) == 1
    actor.is_dead = False
    assert one.await_up(240.0)
    assert actor.told() == [0, 1, 2, 3, 4]
    (fault,) = actor.named("record_fault")
    assert "4 notes" in fault.args[2]


def test_a_scheduler_whose_disk_hangs_is_told_on(actor, make):
    one = make(max_notes=5)
    for value in range(20):
        tell(one, value)
        one.confirm()
    assert actor.told() == list(range(20))
    actor.die()
    actor.is_dead = False
    tell(one, 20)
    assert one.await_up(240.0)
    # The newest that there was room for.
    assert actor.told()[-4:] == [17, 18, 19, 20]


@settings(max_examples=examples(60), deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("tell"), st.integers(1, 7)),
            st.tuples(st.just("write"), st.integers(1, 9)),
            st.tuples(st.just("break"), st.integers(0, 4)),
            st.sampled_from([("die", 0), ("back", 0), ("confirm", 0), ("ask", 0)]),
        ),
        max_size=25,
    )
)
def test_a_kill_at_any_moment_neither_loses_nor_doubles_a_note(steps):
    actor, n_told = Actor(), 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(link, "ray", Ray(actor))
        patch.setattr(outbox, "MAX_BATCH", 3)
        patch.setattr(link, "Sender", QuietSender)
        one = link.SchedulerLink(actor)
        for what, n in steps:
            if what == "tell":
                tell(one, *range(n_told, n_told + n))
                n_told += n
            elif what == "write":
                actor.write(n)
            elif what == "break":
                actor.breaks_after = n
            elif what == "die":
                actor.die()
            elif what == "back":
                actor.is_dead = False
            elif what == "confirm":
                one.confirm()
            else:
                told = one.ask("ask", "told")
                assert told in (None, list(range(n_told)))
        actor.is_dead, actor.breaks_after = False, None
        tell(one, n_told)
        assert one.await_up(240.0)
        assert actor.told() == list(range(n_told + 1))
        one.close()


def test_a_batch_that_a_kill_has_cut_is_taken_once(tmp_path):
    begun, cut = tmp_path / "begun" / LEDGER_FILE, tmp_path / "cut" / LEDGER_FILE
    notes = [Note(n, "metric", (1, "told", float(n))) for n in range(1, 10)]
    notes[4] = Note(5, "cut", ())
    cut.parent.mkdir()

    def copy_file():
        # The file as a kill would leave it now.
        assert actor._ledger.flush()
        with sqlite3.connect(begun) as source, sqlite3.connect(cut) as target:
            source.backup(target)

    ledger = Ledger.create(begun, run_id="toy", config_toml="", meta={}, node="here")
    actor = actor_with(ledger, copy_file)
    assert actor.notes("me", notes, False) in range(10)
    ledger.close()
    ledger = Ledger.reopen(cut)
    actor = actor_with(ledger, lambda: None)
    assert ledger.kept("me") == 4
    assert isinstance(actor.notes("me", notes[5:], False), NotStarted)
    actor.notes("me", notes[2:], False)
    ledger.flush()
    assert actor.kept("me") == 9
    ledger.close()
    with LedgerReader(cut.parent) as reader:
        assert [r.value for r in reader.metrics("told")] == [1, 2, 3, 4, 6, 7, 8, 9]


def test_a_note_that_cannot_be_taken_or_sent_keeps_no_other(actor, make, tmp_path):
    path = tmp_path / LEDGER_FILE
    ledger = Ledger.create(path, run_id="toy", config_toml="", meta={}, node="here")
    real = actor_with(ledger, lambda: None)
    notes = [Note(1, "metric", (1, "told", 1.0)), Note(2, "unheard", ()), Note(3, "metric", ())]
    notes.append(Note(4, "metric", (1, "told", 4.0)))
    real.notes("me", notes, False)
    ledger.close()
    with LedgerReader(tmp_path) as reader:
        assert [r.value for r in reader.metrics("told")] == [1, 4]
    assert real._scheduler.faults == ["KeyError", "TypeError"]

    def pickling(teller, notes, may_skip):
        if any(isinstance(n.args[-1], type(threading.Lock())) for n in notes):
            raise TypeError("cannot pickle a lock")
        return actor._notes(teller, notes, may_skip), lambda: 0

    actor.notes.remote = lambda *args: pickling(*args)[1]
    one = make()
    tell(one, 1, threading.Lock(), 3)
    one.confirm()
    assert actor.told() == [1, 3]
    assert [n.number for n in actor.named("record_fault")] == [2]


def test_a_stage_ends_once_and_after_the_notes_that_were_told_before(tmp_path, monkeypatch):
    ledger = Ledger.create(tmp_path / LEDGER_FILE, run_id="", config_toml="", meta={}, node="here")
    actor = actor_with(ledger, lambda: None)
    order = actor._scheduler.order
    monkeypatch.setattr(scheduler, "ray", SimpleNamespace(wait=lambda refs, **_: (refs, [])))
    stage = SimpleNamespace(serial=7, iteration=1, work=SimpleNamespace(role="critic"))
    args = (stage, [Span(1.0, float("inf"))], "here", ["ref"], "me", 2)
    ends = [threading.Thread(target=actor.end_when_ready, args=(*args, False)) for _ in range(2)]
    for thread in ends:
        thread.start()
    time.sleep(0.05)
    assert order == []
    actor.notes("me", [Note(1, "hold", (1,)), Note(2, "hold", (2,))], False)
    for thread in ends:
        thread.join()
    assert order == [1, 2, "end"]
    # Asked for again by a process that had no answer in time.
    actor.end_when_ready(*args, True)
    assert order == [1, 2, "end"]
    assert actor._scheduler.faults == []
    ledger.close()


# ---------------------------------------------------------------- order, and the thread that sends


def test_what_is_told_waits_and_an_ask_sends_it_first(actor, make):
    one = make()
    tell(one, 1, 2, 3)
    one.end_when_ready("stage", "spans")
    tell(one, 4)
    soon = one.call_soon("ask", "told")
    tell(one, 5)
    assert actor.calls == []
    assert one.ask("ask", "told") == [1, 2, 3, 4, 5]
    assert actor.calls == ["notes", "end_when_ready", "notes", "ask", "notes", "ask"]
    assert one.answer(soon) == [1, 2, 3, 4]
    (ending,) = actor.endings
    # Taken by the scheduler after the third note, and asked for the first time.
    assert ending[:2] == ("stage", "spans")
    assert ending[3:] == (3, False)


def test_an_end_that_waited_while_the_scheduler_was_away_is_asked_for_again_after_the_notes(
    actor, make
):
    one, actor.stages_end = make(), False
    tell(one, 1)
    one.end_when_ready("first")
    one.confirm()
    actor.die()
    tell(one, 2)
    one.confirm()
    one.end_when_ready("second")
    tell(one, 3)
    actor.is_dead = False
    actor.endings.clear()
    actor.calls.clear()
    assert one.await_up(240.0)
    assert actor.told() == [1, 2, 3]
    assert [(e[0], *e[2:]) for e in actor.endings] == [("first", 1, True), ("second", 2, True)]
    assert actor.calls.index("notes") < actor.calls.index("end_when_ready")


def test_threads_tell_and_ask_beside_each_other_each_in_its_order(actor, make):
    one = make(gather_s=0.001)
    wrong = []

    def follow(own):
        for n in range(40):
            tell(one, (own, n))
            if n % 5 == own:
                seen = [value for who, value in one.ask("ask", "told") if who == own]
                if seen != list(range(n + 1)):
                    wrong.append((own, n, seen))

    threads = [threading.Thread(target=follow, args=(own,)) for own in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    wait_until(lambda: len(actor.told()) == 160)
    for own in range(4):
        assert [value for who, value in actor.told() if who == own] == list(range(40))


def test_the_thread_that_sends_takes_a_lost_scheduler_back_by_itself(actor, make):
    one = make(gather_s=0.001)
    actor.die()
    tell(one, 1)
    wait_until(lambda: not one.is_up)
    tell(one, 2)
    actor.is_dead = False
    wait_until(lambda: one.is_up and actor.named("record_fault"))
    assert actor.told() == [1, 2]
    actor.write(9)
    one.drain(240.0)
    assert one._outbox.n_arrived == 0


def test_to_tell_does_not_wait_for_a_call_of_ray_that_hangs(actor, make):
    one, hangs, gate = make(gather_s=0.001), threading.Event(), threading.Event()
    sent, order = actor.notes.remote, []

    def hang(*args):
        hangs.set()
        gate.wait(240)
        order.append("sent")
        return sent(*args)

    actor.notes.remote = hang
    tell(one, 0)
    assert hangs.wait(240)
    tell(one, *range(1, 101))
    order.append("told")
    gate.set()
    wait_until(lambda: len(actor.told()) == 101)
    # What was told meanwhile goes in one call.
    assert order == ["told", "sent", "sent"]


def test_a_link_that_is_closed_or_was_forked_off_sends_nothing(actor, make):
    closed = make(gather_s=0.0)
    tell(closed, 1)
    wait_until(lambda: actor.told() == [1])
    closed.close()
    tell(closed, 2)
    time.sleep(0.05)
    assert actor.told() == [1]
    assert not [t for t in threading.enumerate() if t.name == "ecorl-sender"]
    forked = make()
    tell(forked, 3)
    pid = os.fork()
    if pid == 0:
        tell(forked, 4)
        forked.drain(1.0)
        forked._flush_at_exit()
        os._exit(len(actor.calls) - 1 + (forked.ask("ask", "told") is not None))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_the_end_of_a_process_sends_what_waits_and_waits_for_no_lost_scheduler(
    actor, make, monkeypatch
):
    one = make()
    tell(one, 1, 2)
    one._flush_at_exit()
    assert actor.told() == [1, 2]
    actor.die()
    other = make()
    tell(other, 3)

    def sleep(time_s):
        pytest.fail("it waits")

    monkeypatch.setattr(link, "time", SimpleNamespace(monotonic=time.monotonic, sleep=sleep))
    other._flush_at_exit()
    assert not other.is_up


# ---------------------------------------------------------------- helpers


class Scheduler:
    def __init__(self):
        self.faults, self.order = [], []

    def record_fault(self, kind, where, detail, **_):
        self.faults.append(kind)

    def end_stage(self, stage, spans, node):
        assert spans[-1].t_end_s < float("inf")
        self.order.append("end")


def actor_with(ledger, cut):
    """A scheduler's own actor, outside Ray, that writes to a ledger."""
    actor = SchedulerActor(SimpleNamespace(path=ledger.path))
    actor._scheduler, actor._ledger, actor._records = Scheduler(), ledger, object()
    actor._monitors = {"here": SimpleNamespace(ahead_s=0.0)}
    hold = actor._scheduler.order.append
    actor._notes = {"metric": ledger.metric, "cut": cut, "hold": hold}
    return actor


def wait_until(condition, limit_s=240.0):
    limit_s += time.monotonic()
    while not condition():
        assert time.monotonic() < limit_s
        time.sleep(0.005)
