"""The boundary of two steps, without a trainer: when all processes stop, leave or stay."""

from __future__ import annotations

import socket
from types import SimpleNamespace

import pytest
from rich.console import Console

from ecorl.control import Command, GearChoice, Why
from ecorl.records import FaultKind
from roll_adapters.trl.launch.boundary import StepBoundary, StepStopSignals
from roll_adapters.trl.launch.crew import Crew
from roll_adapters.trl.launch.messages import (
    Begun,
    Channel,
    Dropped,
    Go,
    Left,
    StandbyReady,
    Stayed,
    Wanted,
)

N_STEPS = 9


class Record:
    def __init__(self):
        self.metrics, self.faults = [], []

    def metric(self, step, name, value):
        self.metrics.append((step, name, value))

    def fault(self, fault):
        self.faults.append(fault)


class Training:
    """A trainer's loop as its callbacks see it; checkpoints are complete unless told otherwise."""

    def __init__(self, folder, go=None, is_complete=True):
        own, there = socket.socketpair()
        self.supervisor = Channel(there)
        self.crew = Crew(Channel(own), 0, 1, (1, 2))
        self.crew.handover._steady = 1  # each wish counts at once
        self.stop = StepStopSignals(Console(quiet=True))
        self.record = Record()
        self.attachment = SimpleNamespace(choice=None, runtime=SimpleNamespace(record=self.record))
        self.boundary = StepBoundary(self.crew, self.stop, self.attachment, go)
        self.args = SimpleNamespace(output_dir=str(folder))
        self.folder, self.is_complete = folder, is_complete
        self.n_done = 0 if go is None else go.left.step

    def step(self, width=None, n_questions=1):
        """Make a step; whether the training ends after it."""
        state = SimpleNamespace(global_step=self.n_done, max_steps=N_STEPS)
        control = SimpleNamespace(should_save=False, should_training_stop=False)
        for _ in range(n_questions):
            self.boundary.is_stopping()
        told = "as the test says"
        self.attachment.choice = GearChoice(
            0.0, Command.RUN, Why.PRICED, "test", told, 0.0, width=width
        )
        self.boundary.on_step_begin(self.args, state, control)
        self.n_done = state.global_step = self.n_done + 1
        self.boundary.on_step_end(self.args, state, control)
        if control.should_save:
            checkpoint = self.folder / f"checkpoint-{self.n_done}"
            checkpoint.mkdir()
            if self.is_complete:
                (checkpoint / "ecorl_state.json").touch()
            self.boundary.on_save(self.args, state, control)
        return control.should_training_stop

    def heard(self):
        return self.supervisor.receive()


@pytest.fixture
def training(tmp_path):
    return Training(tmp_path)


def test_a_training_leaves_after_the_step_in_which_the_others_are_ready(training):
    assert not training.step()
    assert not training.step(2)
    assert training.heard() == [Begun(1), Wanted(2, 1)]
    training.supervisor.send(StandbyReady(1))
    assert training.step(2)
    assert training.boundary.has_left
    assert training.record.metrics == [(3, "next_width", 2.0)]
    left = training.crew.left
    assert (left.width, left.step) == (2, 3)
    assert left.usual_step_s > 0


def test_a_checkpoint_that_is_not_complete_keeps_the_training_where_it_is(tmp_path):
    training = Training(tmp_path, is_complete=False)
    training.step(2)
    training.supervisor.send(StandbyReady(1))
    assert not training.step(2)
    assert not training.boundary.has_left
    assert training.heard() == [Wanted(2, 1), Begun(1), Stayed(2)]
    assert not training.step(2)
    assert training.record.metrics == []
    (fault,) = training.record.faults
    assert fault.kind is FaultKind.WIDTH_UNCHANGED
    assert "is not complete" in fault.detail
    assert training.crew.left is None


def test_what_cannot_be_begun_with_is_a_fault_of_the_record(training):
    training.step(2)
    training.supervisor.send(Dropped(2, "no memory"))
    assert not training.step(2)
    (fault,) = training.record.faults
    assert (fault.iteration, fault.kind) == (2, FaultKind.WIDTH_UNCHANGED)
    assert fault.detail == "2 training processes cannot be begun with: no memory"


def test_a_signal_goes_before_a_change(training):
    training.step(2)
    training.supervisor.send(StandbyReady(1))
    training.stop.asked = True
    assert training.step(2)
    assert not training.boundary.has_left
    assert training.record.metrics == []


def test_nobody_leaves_after_the_last_step(training):
    for _ in range(N_STEPS - 1):
        training.step(2)
    training.supervisor.send(StandbyReady(1))
    training.step(2)
    assert training.n_done == N_STEPS
    assert not training.boundary.has_left


@pytest.mark.parametrize(
    ("usual_s", "n_questions", "dropped", "is_known"),
    [
        (0.25, 2, None, True),
        (None, 2, None, False),
        (0.25, 3, None, False),
        # As many processes as before went on: what passed is no price of a change.
        (0.25, 2, Dropped(2, "no memory"), False),
    ],
)
def test_the_time_of_a_change_is_missing_where_it_cannot_be_told(
    tmp_path, monkeypatch, usual_s, n_questions, dropped, is_known
):
    monkeypatch.setattr("time.monotonic", lambda: 105.0)
    training = Training(tmp_path, Go(Left(1, 4, 100.0, usual_s), dropped))
    training.step(n_questions=n_questions)
    # Standing still meanwhile is no part of what the change costs.
    assert training.record.metrics == [(5, "width_change_s", 4.75 if is_known else None)]
    training.step()
    assert len(training.record.metrics) == 1
