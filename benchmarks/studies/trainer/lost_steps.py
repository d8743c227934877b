"""Whether a training whose members are killed loses or doubles a step.

The driver's log is not asked alone: it numbers the steps by itself. Each member notes beside it
what its optimizer has really applied, and an undisturbed training has the losses that come of it.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
import uuid
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor, nn
from torch.optim import Optimizer

from benchmarks.harness import Figure, FigureTable
from benchmarks.studies.trainer.elastic import MICRO_ROWS, WideTask, elastic_options, ray_here
from ecorl.trainer import ElasticTrainer
from ecorl.trainer.elastic.member import Member
from ecorl.trainer.elastic.records import (
    ElasticFault,
    MemberOptions,
    Point,
    StepDone,
    StepOrder,
    TrainingResult,
)

FIGURES = FigureTable("trainer")

LOSS_TOLERANCE = 1e-4
"""How far the loss of a step may be from that of an undisturbed training, relative to it. Summing
the rows in another order moves it by 5e-7 in 40 steps, and a step that is lost or doubled moves the
next one's by 2e-3 at least, both measured on this task."""

_KILLS = (
    (Point.COMPUTING, "member-2", 6),
    (Point.REDUCED, "member-3", 12),
    # Alone by now: member-4 is loading.
    (Point.COMPUTING, "member-1", 14),
)


@dataclass(frozen=True, slots=True)
class LostSteps:
    """A training whose members were killed.

    Attributes:
        n_lost: steps that were not committed once, whose rows were not theirs, that the members'
            optimizers have not applied once, or whose loss is off by more than `LOSS_TOLERANCE`.
        n_steps: steps that were asked for.
        n_killed: kills that happened.
        n_scripted: kills that were to happen.
        n_redone: steps that were computed again.
        n_off: how many of the lost steps have a loss that is off.
        loss_gap: largest difference between a step's loss and that of an undisturbed training,
            relative to it; None where a loss is not a number or no step was done.
    """

    n_lost: int
    n_steps: int
    n_killed: int
    n_scripted: int
    n_redone: int
    n_off: int
    loss_gap: float | None


def lost_steps(n_steps: int = 40) -> Figure:
    """Kill a member in a step, one that has summed and not answered, and then all of them.

    Args:
        n_steps: steps; at least 20 for all of it to happen.
    """
    plain = WideTask(batch_rows=30, n_hidden=32)
    with ray_here(), tempfile.TemporaryDirectory() as folder:
        notes, killed = Path(folder) / "notes", Path(folder) / "killed"
        task = NotedTask(plain.batch_rows, plain.n_hidden, notes)
        options = elastic_options(checkpoint_every=5, drill=_KillSome(_KILLS, killed))
        with ElasticTrainer(task, Path(folder) / "state", width=2, options=options) as trainer:
            # The second one is waited for: it is to die.
            trainer.set_width(2, at_step=10)
            result = trainer.train(n_steps)
            # Has each member apply the last step too, which else waits for the next one.
            trainer.digests()
        noted = read_notes(notes)
        n_killed = len(killed.read_text().splitlines()) if killed.exists() else 0
    kills = n_killed, len(_KILLS)
    return lost_figure(judge_lost(result, noted, plain, _undisturbed(plain, n_steps), kills))


# ---------------------------------------------------------------- what the members note


@dataclass(frozen=True, slots=True)
class AppliedStep:
    """What a member's optimizer has applied.

    Attributes:
        who: one name for each life of a member.
        step: number of the step, from 0.
        rows: whose gradients were added up in this member.
    """

    who: str
    step: int | None
    rows: tuple[int, ...]


@dataclass
class NotedTask(WideTask):
    """Notes in a file, inside each member, what its optimizer applies.

    Attributes:
        notes: the file, which all members append to.
    """

    notes: Path = Path(os.devnull)
    _rows: list[int] = field(default_factory=list, init=False, repr=False)
    _step: int | None = field(default=None, init=False, repr=False)

    def make_optimizer(self, model: nn.Module) -> Optimizer:
        """Make torch's AdamW, which notes each of its steps, wanted or not."""
        who, optimizer = uuid.uuid4().hex, super().make_optimizer(model)

        def note(*_: object) -> None:
            applied = {"who": who, "step": self._step, "rows": self._rows}
            _append(self.notes, json.dumps(applied))

        optimizer.register_step_post_hook(note)
        return optimizer

    def before_update(self, model: nn.Module, optimizer: Optimizer, step: int) -> None:
        """Remember which step the optimizer is about to apply."""
        self._step = step

    def loss(self, model: nn.Module, indices: Sequence[int]) -> Tensor:
        """Compute the squared error of each row, and remember the rows."""
        # Rows of an attempt that was dropped left no gradient, and count no more.
        if all(one.grad is None for one in model.parameters()):
            self._rows = []
        self._rows.extend(indices)
        return super().loss(model, indices)


def read_notes(path: Path) -> list[AppliedStep]:
    """Read what the members have noted.

    Args:
        path: of the notes; without the file nobody has noted anything.
    """
    lines = path.read_text().splitlines() if path.exists() else []
    found = map(json.loads, lines)
    return [AppliedStep(one["who"], one["step"], tuple(one["rows"])) for one in found]


def _append(path: Path, line: str) -> None:
    """Append a line at once: the process may be ended any time, and others write as well."""
    with path.open("a") as file:
        file.write(f"{line}\n")


@dataclass(frozen=True, slots=True)
class _KillSome:
    """Ends members at some points, and notes it: a drill."""

    at: tuple[tuple[Point, str, int], ...]
    killed: Path

    def __call__(self, point: Point, member: str, step: int) -> None:
        if (point, member, step) in self.at:
            _append(self.killed, member)
            os._exit(1)


# ---------------------------------------------------------------- the judgement


def judge_lost(
    result: TrainingResult,
    noted: Sequence[AppliedStep],
    task: WideTask,
    undisturbed: Sequence[float],
    kills: tuple[int, int],
) -> LostSteps:
    """Hold what the driver tells against what its members applied and an undisturbed training.

    Args:
        result: what the driver tells.
        noted: what the members tell.
        task: that was trained.
        undisturbed: loss of each step that was asked for, in a training that nothing happens to.
        kills: how many happened, and how many were to happen.
    """
    done: dict[int, list[StepDone]] = defaultdict(list)
    for one in result.steps:
        done[one.step].append(one)
    applied: dict[int | None, list[AppliedStep]] = defaultdict(list)
    for note in noted:
        applied[note.step].append(note)
    returns = [one.step for one in result.faults if one.kind is ElasticFault.ALL_LOST]
    off = {one.step for one in result.steps if not _is_near(one.loss, undisturbed[one.step])}
    n_steps, lost = len(undisturbed), set(off)
    for step in range(n_steps):
        rows = tuple(task.rows(step))
        is_own = [one.rows for one in done[step]] == [rows]
        # After a return to a checkpoint the steps since then are applied again, by others.
        most = 1 + sum(step < at for at in returns)
        if not is_own or not _is_applied(applied[step], rows, most):
            lost.add(step)
    gaps = [abs(one.loss / undisturbed[one.step] - 1) for one in result.steps]
    is_known = bool(gaps) and all(map(math.isfinite, gaps))
    n_killed, n_scripted = kills
    return LostSteps(
        n_lost=len(lost),
        n_steps=n_steps,
        n_killed=n_killed,
        n_scripted=n_scripted,
        n_redone=result.n_redone,
        n_off=len(off),
        loss_gap=max(gaps) if is_known else None,
    )


def _is_near(loss: float, wanted: float) -> bool:
    """Whether a loss is that of an undisturbed training; one that is no number is not."""
    return abs(loss - wanted) <= LOSS_TOLERANCE * abs(wanted)


def _is_applied(notes: Sequence[AppliedStep], rows: Sequence[int], most: int) -> bool:
    """Whether members have applied all rows of a step together, and each member once."""
    if len({note.who for note in notes}) != len(notes):
        return False
    found = Counter(row for note in notes for row in note.rows)
    times = found.total() // len(rows)
    return 1 <= times <= most and found == Counter(list(rows) * times)


def _undisturbed(task: WideTask, n_steps: int) -> list[float]:
    """Losses of one member in this process that nothing happens to."""
    member = Member("alone", task, MemberOptions(micro_batch_rows=MICRO_ROWS), "127.0.0.1")
    member.load(task.rows(0))
    losses: list[float] = []
    for step in range(n_steps):
        rows = tuple(task.rows(step))
        answer = member.compute(StepOrder(step, step, rows, 0, len(rows), ("alone",)))
        assert answer.loss is not None  # a member alone has nobody to fail with
        losses.append(answer.loss)
    return losses


def lost_figure(lost: LostSteps) -> Figure:
    """The steps that faults cost, judged where all faults that were to happen did.

    Args:
        lost: the training whose members were killed.
    """
    is_whole = 0 < lost.n_killed == lost.n_scripted
    return FIGURES.figure(
        "trainer.lost_steps",
        float(lost.n_lost) if lost.n_killed else None,
        {"loss_gap": lost.loss_gap, "loss_off": lost.n_off} if lost.n_killed else None,
        judged=is_whole or not lost.n_killed,
        not_judged="" if is_whole else f"; not judged: {lost.n_scripted} kills were scripted",
        gap="no numbers" if lost.loss_gap is None else f"off by {lost.loss_gap:.1e} at most",
        tolerance=LOSS_TOLERANCE,
        lost=lost,
    )
