"""What an elastic trainer is told, what it tells, and the log of its training."""

from __future__ import annotations

import logging
import statistics
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from ecorl.control import Gear
from ecorl.errors import ConfigError
from ecorl.trainer.elastic.groups import GroupOptions


class Point(StrEnum):
    """Where a member is; a drill is called there, see `MemberOptions`."""

    LOADING = "loading"  # before the model is made
    MEETING = "meeting"  # before a process group is made
    COMPUTING = "computing"  # a step's rows are about to be computed
    REDUCED = "reduced"  # the gradients are summed, and the driver does not know it yet
    APPLIED = "applied"  # the optimizer has applied a step
    SHARING = "sharing"  # the state is about to be sent or received


Drill = Callable[[Point, str, int], None]
"""Called with the point, the member's name and the step; it may end its process or sleep."""


@dataclass(frozen=True, slots=True)
class MemberOptions:
    """How members train.

    Attributes:
        micro_batch_rows: rows of one forward pass at most; None: all rows of the member.
        seed: of the model's first weights and of all random numbers.
        compare_every: steps between two comparisons of the members' weights, which read all of
            them once; 0 compares none, for machines whose arithmetic differs in the last bits. 50
            is invented: each step reads the weights several times, so that it costs well below a
            hundredth, and members that differ are found about when a checkpoint is due.
        n_threads: threads of torch in each member; 0 leaves torch's own choice.
        groups: how process groups are made.
        drill: for drills of faults: called at each point of each member's life.
    """

    micro_batch_rows: int | None = None
    seed: int = 0
    compare_every: int = 50
    n_threads: int = 1
    groups: GroupOptions = field(default_factory=GroupOptions)
    drill: Drill | None = None

    def __post_init__(self) -> None:
        if self.micro_batch_rows is not None and self.micro_batch_rows < 1:
            raise ConfigError("micro_batch_rows", self.micro_batch_rows, "at least 1, or none")
        if self.compare_every < 0:
            raise ConfigError("compare_every", self.compare_every, "at least 0")
        if self.n_threads < 0:
            raise ConfigError("n_threads", self.n_threads, "at least 0")


@dataclass(frozen=True, slots=True)
class Patience:
    """How long the trainer waits for what, s. All of them are invented, on the long side.

    Attributes:
        join_s: for a new member to be placed, to load and to warm up.
        begin_s: where there is no member yet: for the others, once the first is ready; training
            begins with those who are, and the others join later.
        ping_s: for a member's answer to a ping, once another member has failed; a member that
            does not answer is ended and counts as lost. While none has failed, six times as long:
            a process that was stopped says nothing, and Ray asks machines alone whether they live.
        step_s: for the last member of a step in which another has failed, if it answers pings.
        decide_s: for the controller's answer at a step's boundary.
    """

    join_s: float = 600.0
    begin_s: float = 60.0
    ping_s: float = 10.0
    step_s: float = 1800.0
    decide_s: float = 0.2


@dataclass(frozen=True, slots=True)
class ActorPlace:
    """What Ray has to have free for each actor, and where it puts them.

    Attributes:
        num_cpus: CPUs.
        num_gpus: GPUs.
        resources: other resources of the cluster, e.g. one that each machine has once.
        is_spread: whether actors are spread over the machines where there are several.
    """

    num_cpus: float = 1.0
    num_gpus: float = 0.0
    resources: Mapping[str, float] = field(default_factory=dict)
    is_spread: bool = True


@dataclass(frozen=True, slots=True)
class ElasticOptions:
    """How an elastic trainer goes about its work.

    Attributes:
        logs_rows: whether the result tells the rows of each step, which takes memory in a training
            of many steps; `on_step` is told them in any case.
        max_width: members at most, and the width that meets a deadline.
        deadline_s: when training has to be over, s since 1970; None: whenever.
        checkpoint_every: steps between two checkpoints; 0 saves in pauses and at the end alone.
        keeps_spares: whether actors that leave wait for the next time, with their memory; they
            join faster, over a process group that is still there.
        keeps_actors: the same for all actors in a pause.
        member: how members train.
        place: where Ray puts the actors.
        patience: how long is waited for what.
    """

    max_width: int = 64
    deadline_s: float | None = None
    checkpoint_every: int = 50
    keeps_spares: bool = False
    keeps_actors: bool = False
    logs_rows: bool = True
    member: MemberOptions = field(default_factory=MemberOptions)
    place: ActorPlace = field(default_factory=ActorPlace)
    patience: Patience = field(default_factory=Patience)

    def __post_init__(self) -> None:
        if self.max_width < 1:
            raise ConfigError("max_width", self.max_width, "at least 1")
        if self.checkpoint_every < 0:
            raise ConfigError("checkpoint_every", self.checkpoint_every, "at least 0")


@dataclass(frozen=True, slots=True)
class StepOrder:
    """What one member is asked to compute.

    Attributes:
        step: number of the step, from 0.
        n_committed: steps that all members have answered: the last of them is applied first.
        rows: this member's rows, in order.
        first: position of the first of them within the step.
        n_rows: rows of the whole step.
        members: names of all members, by rank.
        gear: numeric format; None: as it is.
    """

    step: int
    n_committed: int
    rows: tuple[int, ...]
    first: int
    n_rows: int
    members: tuple[str, ...]
    gear: Gear | None = None


@dataclass(frozen=True, slots=True)
class StepAnswer:
    """What one member answers.

    Attributes:
        step: number of the step.
        loss: the step's loss, over the rows of all members; None when it failed.
        failure: why a collective failed; None when all went well.
    """

    step: int
    loss: float | None
    failure: str | None = None


@dataclass(frozen=True, slots=True)
class StepDone:
    """A committed step.

    Attributes:
        step: its number, from 0.
        loss: mean loss of its rows, or their sum over the task's own weight.
        width: members that computed it.
        rows: its rows, in order; none where the log does not keep them.
        ended_s: when it was committed, s on the driver's monotonic clock.
        time_s: time of the attempt that was committed, s.
    """

    step: int
    loss: float
    width: int
    rows: tuple[int, ...]
    ended_s: float
    time_s: float


@dataclass(frozen=True, slots=True)
class WidthChange:
    """A change of the width.

    Attributes:
        step: the first step at the new width.
        before: members until then.
        after: members from then on; 0 is a pause.
        prepared_s: from the wish until the joiners were ready and in a group, s; training went
            on meanwhile.
        stood_s: time at the boundary in which no step was computed, s.
    """

    step: int
    before: int
    after: int
    prepared_s: float
    stood_s: float


class ElasticFault(StrEnum):
    """What can go wrong with an elastic training, and does not end it."""

    MEMBER_LOST = "member_lost"  # an actor died, or did not answer
    STEP_REDONE = "step_redone"  # a step was computed anew by those who are left
    ALL_LOST = "all_lost"  # training went back to the newest checkpoint
    JOINER_LOST = "joiner_lost"  # it died or was late before it was a member
    GROUP_FAILED = "group_failed"  # a process group was not made, or the state not passed on
    WIDTH_GIVEN_UP = "width_given_up"  # for a while: too many joiners were lost
    CHECKPOINT_FAILED = "checkpoint_failed"  # it was not written; the older ones stay
    CHECKPOINT_DAMAGED = "checkpoint_damaged"  # the one before it is taken
    CONTROL_GONE = "control_gone"  # the controller raised, or did not answer
    DEADLINE_NEAR = "deadline_near"  # without a controller: the largest width is taken


@dataclass(frozen=True, slots=True)
class FaultSeen:
    """A fault that the training has survived.

    Attributes:
        step: the step that was next or under way.
        kind: what it was.
        who: name of a member, of a file, of the controller.
        message: one line.
    """

    step: int
    kind: ElasticFault
    who: str
    message: str


@dataclass(frozen=True, slots=True)
class TrainingResult:
    """What a trainer has done since it was made, over all calls of `train`.

    Attributes:
        first_step: number of the first step here: those before it lie in the checkpoint.
        steps: the committed steps in order, each once.
        changes: of the width.
        faults: that were survived.
        n_redone: steps that were computed again, those after a return to a checkpoint included.
        is_complete: whether all steps that the last call asked for are done.
    """

    first_step: int
    steps: tuple[StepDone, ...]
    changes: tuple[WidthChange, ...]
    faults: tuple[FaultSeen, ...]
    n_redone: int
    is_complete: bool

    @property
    def losses(self) -> list[float]:
        """Loss of each step."""
        return [step.loss for step in self.steps]

    @property
    def widths(self) -> list[int]:
        """Members of each step."""
        return [step.width for step in self.steps]


logger = logging.getLogger(__name__)

_PACE_STEPS = 8
"""The pace is the median time of as many last steps at one width; invented."""


class TrainingLog:
    """Keeps the committed steps, each once, and what came between.

    Args:
        n_done: steps that were done before.
    """

    def __init__(self, n_done: int = 0) -> None:
        self.n_done = n_done
        self._first = n_done
        self._steps: list[StepDone] = []
        self._changes: list[WidthChange] = []
        self._faults: list[FaultSeen] = []
        # Of the last steps alone, since the pace is asked for at each step; 0 has all widths.
        self._times_s: dict[int, deque[float]] = {}
        self._n_redone = 0
        self._failures = Counter[int]()

    def commit(self, step: StepDone) -> None:
        """Add a committed step."""
        self._steps.append(step)
        for width in (0, step.width):
            self._times_s.setdefault(width, deque(maxlen=_PACE_STEPS)).append(step.time_s)
        self.n_done += 1

    def roll_back(self, n_done: int) -> None:
        """Return to a checkpoint: the steps after it count no more.

        Args:
            n_done: steps that it holds.
        """
        before = len(self._steps)
        self._steps = [step for step in self._steps if step.step < n_done]
        # Of those done here: what lay in a checkpoint that turned out damaged was done before.
        self._n_redone += before - len(self._steps)
        self._first = n_done if not self._steps else self._first
        self.n_done = n_done

    def redo(self, is_failure: bool = True) -> int:
        """Note that the step under way is computed again.

        Args:
            is_failure: whether the step has failed; else it was not given the time it takes.

        Returns:
            How often it has failed.
        """
        self._n_redone += 1
        self._failures[self.n_done] += is_failure
        return self._failures[self.n_done]

    def tell(self, kind: ElasticFault, who: str, message: str) -> None:
        """Note a fault."""
        logger.warning("elastic training, step %d: %s, %s: %s", self.n_done, kind, who, message)
        self._faults.append(FaultSeen(self.n_done, kind, who, message))

    def change(self, change: WidthChange) -> None:
        """Note a change of the width."""
        logger.info(
            "elastic training, step %d: width %d to %d", change.step, change.before, change.after
        )
        self._changes.append(change)

    def pace_s(self, width: int) -> float | None:
        """Time of a step at a width, s; None where none has been done at it.

        Args:
            width: members; 0: any number.
        """
        last = self._times_s.get(width)
        return statistics.median(last) if last else None

    def result(self, n_steps: int) -> TrainingResult:
        """All of it.

        Args:
            n_steps: steps that were asked for.
        """
        return TrainingResult(
            first_step=self._first,
            steps=tuple(self._steps),
            changes=tuple(self._changes),
            faults=tuple(self._faults),
            n_redone=self._n_redone,
            is_complete=self.n_done >= n_steps,
        )
