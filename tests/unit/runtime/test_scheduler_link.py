"""What is told to a scheduler that dies, forgets or stays away; Ray itself is a stand-in here."""

from __future__ import annotations

import pytest

pytest.importorskip("ray")

from ray.exceptions import ActorUnavailableError

from ecorl.runtime.ray import link
from ecorl.runtime.ray.scheduler import NotStarted


class Method:
    def __init__(self, call):
        self.remote = call


class Actor:
    """Takes notes as a scheduler's actor does, and keeps some of them in its file."""

    def __init__(self):
        self.file, self.memory = [], []
        self.is_dead = self.is_fresh = False
        self.note = Method(self._note)
        self.start = Method(self._start)
        self.kept = Method(lambda teller: lambda: len(self.file))

    def die(self):
        """Lose what is not in the file, and be started anew by nobody yet."""
        self.memory, self.is_dead, self.is_fresh = [], True, True

    def write(self, n_notes):
        self.file, self.memory = self.file + self.memory[:n_notes], self.memory[n_notes:]

    def _start(self):
        def revived():
            self.is_fresh = False

        return revived

    def _note(self, teller, note, may_skip):
        if self.is_dead:
            return raise_unavailable
        if self.is_fresh:
            return NotStarted
        assert may_skip or not self.memory or self.memory[-1].number == note.number - 1
        self.memory.append(note)
        kept = self.file[-1].number if self.file else 0
        return lambda: kept

    def told(self):
        notes = self.file + self.memory
        assert [n.number for n in notes] == sorted({n.number for n in notes})
        return [n.args[0] for n in notes if n.method == "metric"]


def raise_unavailable():
    raise ActorUnavailableError("away", None)


class Ray:
    """A reference is a call; the one that starts a dead actor is not there until it is back.

    Args:
        actor: the only one.
    """

    def __init__(self, actor):
        self.actor = actor

    def wait(self, refs, timeout):
        held_back = self.actor.is_dead and refs[0].__name__ == "revived"
        return ([], refs) if held_back else (refs, [])

    def get(self, ref, timeout=None):
        return ref()


@pytest.fixture
def actor(monkeypatch):
    one = Actor()
    monkeypatch.setattr(link, "ray", Ray(one))
    return one


def test_what_was_not_in_the_file_is_told_again_in_its_order(actor):
    one = link.SchedulerLink(actor)
    for value in range(6):
        one.tell("metric", value)
    actor.write(4)
    one.tell("metric", 6)
    actor.die()
    one.tell("metric", 7)
    one.tell("metric", 8)
    assert not one.is_up
    one.tell("metric", 9)
    actor.is_dead = False
    assert one.await_up(5.0)
    assert actor.told() == list(range(10))


def test_a_scheduler_that_another_process_has_started_anew_asks_for_what_is_missing(actor):
    one = link.SchedulerLink(actor)
    for value in range(3):
        one.tell("metric", value)
    actor.die()
    actor.is_dead = False
    one.tell("metric", 3)
    one.confirm()
    assert one.is_up
    assert actor.told() == [0, 1, 2, 3]


def test_beyond_its_limit_the_link_of_a_lost_scheduler_drops_notes_and_says_how_many(actor, caplog):
    one = link.SchedulerLink(actor, max_notes=5)
    actor.die()
    for value in range(9):
        one.tell("metric", value)
    assert sum("further ones are lost" in r.message for r in caplog.records) == 1
    actor.is_dead = False
    assert one.await_up(5.0)
    assert actor.told() == [0, 1, 2, 3, 4]
    (fault,) = [n for n in actor.memory if n.method == "record_fault"]
    assert "4 notes" in fault.args[2]


def test_a_scheduler_whose_disk_hangs_is_told_on(actor):
    one = link.SchedulerLink(actor, max_notes=5)
    for value in range(20):
        one.tell("metric", value)
    assert actor.told() == list(range(20))
    actor.die()
    actor.is_dead = False
    one.confirm()
    one.tell("metric", 20)
    assert one.await_up(5.0)
    # The newest that there was room for.
    assert actor.told()[-4:] == [17, 18, 19, 20]
