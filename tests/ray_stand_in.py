"""A scheduler's actor and the part of Ray that a link to it needs, without either.

A reference of Ray is a call here, which answers or raises.
"""

from __future__ import annotations

import threading

from ray.exceptions import ActorUnavailableError

from ecorl.engines.lanes.threaded import fault_of
from ecorl.errors import EngineError
from ecorl.records import Action, Placement
from ecorl.runtime.handles import Landed, PlacedStage, RunTotals
from ecorl.runtime.ray.scheduler import NotStarted


class Method:
    def __init__(self, call):
        self.remote = call


class Actor:
    """Takes notes as a scheduler's actor does, and keeps some of them in its file.

    Attributes:
        calls: names of the methods that were called, in their order.
        breaks_after: notes that it still takes before it dies in the middle of a batch, or None.
        refuses: whether it takes no rows.
        stages_end: whether stages that end by themselves do so.
        placed: the stages that it has placed: on an engine where they may leave the GPU.
    """

    def __init__(self):
        self.file, self.memory, self.calls, self.endings = [], [], [], []
        self.is_dead = self.is_fresh = self.refuses = False
        self.breaks_after, self.n_deaths, self.stages_end = None, 0, True
        self.submitted, self.placed = {}, []
        self.lock = threading.Lock()
        for name in ("notes", "end_when_ready", "start_stage", "submit", "land", "ask"):
            setattr(self, name, Method(self._called(name, getattr(self, f"_{name}"))))
        self.start = Method(self._start)
        self.kept = Method(lambda teller: self._away or (lambda: len(self.file)))

    def die(self):
        """Lose what is not in the file, and be started anew by nobody yet."""
        self.memory, self.submitted, self.is_dead, self.is_fresh = [], {}, True, True
        self.n_deaths += 1

    def write(self, n_notes):
        self.file, self.memory = self.file + self.memory[:n_notes], self.memory[n_notes:]

    def told(self):
        notes = self.file + self.memory
        assert [n.number for n in notes] == sorted({n.number for n in notes})
        return [n.args[-1] for n in notes if n.method == "metric"]

    def named(self, method):
        return [n for n in self.file + self.memory if n.method == method]

    @property
    def _away(self):
        if self.is_dead:
            return raise_unavailable
        return NotStarted if self.is_fresh else None

    def _called(self, name, method):
        def call(*args):
            with self.lock:
                self.calls.append(name)
                answer = self._away or method(*args)
            return answer if callable(answer) else lambda: answer

        return call

    def _start(self):
        def revived():
            self.is_fresh = False

        return revived

    def _notes(self, teller, notes, may_skip):
        taken = max((n.number for n in self.file + self.memory), default=0)
        for note in notes:
            if self.breaks_after == 0:
                self.breaks_after = None
                self.die()
                return raise_unavailable
            if note.number > taken + 1 and not may_skip:
                return NotStarted
            if note.number > taken:
                self.memory.append(note)
                taken = note.number
                if self.breaks_after is not None:
                    self.breaks_after -= 1
        return self.file[-1].number if self.file else 0

    def _end_when_ready(self, *args):
        self.endings.append(args)
        n_deaths = self.n_deaths

        def ended():
            if self.n_deaths > n_deaths:
                raise_unavailable()

        ended.is_there = lambda: self.stages_end or self.n_deaths > n_deaths
        return ended

    def _start_stage(self, iteration, work, may_offload):
        action = Action.CONCURRENT if may_offload else Action.GPU
        placement = Placement(iteration.number, work.stage, action, action, "", "")
        self.placed.append(PlacedStage(len(self.placed) + 1, iteration, work, placement))
        return self.placed[-1]

    def _submit(self, stage, batch):
        if self.refuses:
            return fault_of(EngineError("ids repeat"))
        self.submitted[stage.serial] = batch
        return stage

    def _land(self, stage):
        if stage.serial not in self.submitted:
            return fault_of(EngineError("not submitted"))
        return Landed({i: i for i in range(len(self.submitted.pop(stage.serial)))}, ())

    def _ask(self, method, *args):
        if method == "totals":
            return RunTotals(drawn_j=float(len(self.named("metric"))))
        return {"told": self.told, "offloads": lambda role: True}[method](*args)


class QuietSender:
    """Stands for the thread that sends: nothing is sent but by those who ask or confirm."""

    def __init__(self, work, gather_s, at_exit):
        pass

    def wake(self, *, at_once=False):
        pass

    def stop(self):
        pass

    def take_cpu_s(self):
        return 0.0


def raise_unavailable():
    raise ActorUnavailableError("away", None)


class Ray:
    """The functions of Ray; the call that starts a dead actor is not there until it is back.

    Args:
        actor: the only one.
    """

    def __init__(self, actor):
        self.actor = actor

    def is_initialized(self):
        return True

    def wait(self, refs, timeout):
        (ref,) = refs
        held_back = self.actor.is_dead and ref.__name__ == "revived"
        held_back |= not getattr(ref, "is_there", lambda: True)()
        return ([], refs) if held_back else (refs, [])

    def get(self, ref, timeout=None):
        answer = ref()
        assert answer is None or not isinstance(answer, type)
        return answer
