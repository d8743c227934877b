"""A training that is given its decisions, and one that notes what they led to.

The decisions of a run, as its record tells them, are followed by another one that has neither a
controller nor a learned policy: by a placement policy and a control path that go by a list. So a
run that decides for itself can be held against one in which the same things are on and nothing
decides.

Where the time of the control path is played, it goes on with the steps and the pauses of the
training and with nothing else: what is decided is then the same on any machine.

    python -m tests.integration.given_decisions run --config X    the command, following a list
    python -m tests.integration.given_decisions FD PARENT_PID     a training process, likewise
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ecorl.control import AS_IT_IS, SIMULATED, Gear, TrainingStage, Why
from ecorl.ledger import LedgerReader
from ecorl.records import Action, SchedulerState, Stage
from ecorl.runtime.control.standing import POLL_S
from ecorl.scheduler.policies import Proposal
from ecorl.stages.graph import may_leave_gpu

FOLLOWS = "ECORL_TEST_FOLLOWS"
"""Variable that names the file of the decisions that are followed; without it none are."""
NOTES = "ECORL_TEST_ROWS"
"""Variable that names the folder into which each process notes the completions of each step."""
STEADY = "ECORL_TEST_STEADY"
"""Variable that is set where a step waits until processes that are wanted stand by: the change then
comes at the same step on any machine."""

PLAYED = "ECORL_TEST_PLAYED"
"""Variable that names a file with the time that has passed for the control path, s: it is played.
"""

MODULE = "tests.integration.given_decisions"
PLAYS = {"__RAY_WORKER_PROCESS_SETUP_HOOK_ENV_VAR": f"{MODULE}.play"}
"""Has Ray call `play` in each process that it starts: one of them decides."""


@dataclass
class Decisions:
    """What was decided in a run, by step.

    Attributes:
        gears: in which each step was computed.
        widths: number of processes that made each step.
        places: of each role that may leave the framework's devices.
        rows: completions that are taken in place of sampling, by step.
    """

    gears: dict[int, str]
    widths: dict[int, int]
    places: dict[int, dict[str, str]]
    rows: dict[int, list[list[int]]]

    @classmethod
    def of(cls, run_dir: Path) -> Decisions:
        """Read them from a run's record."""
        with contextlib.closing(LedgerReader(run_dir)) as reader:
            steps = [
                e.result for e in reader.executions()
                if not e.superseded and e.result.stage is Stage.ACTOR_TRAIN
                and e.result.n_output_tokens
            ]  # fmt: skip
            placed = [row.placement for row in reader.placements() if not row.superseded]
        places: dict[int, dict[str, str]] = {}
        for p in placed:
            if may_leave_gpu(p.stage):
                places.setdefault(p.iteration, {})[p.role] = str(p.action)
        return cls(
            {r.iteration: str(r.gear).removesuffix(SIMULATED) for r in steps},
            {r.iteration: r.width or 1 for r in steps},
            places,
            {},
        )

    def write(self, path: Path) -> Path:
        path.write_text(json.dumps(vars(self)))
        return path

    @classmethod
    def read(cls, path: Path) -> Decisions:
        told = json.loads(path.read_text())
        return cls(**{
            name: {int(step): value for step, value in own.items()} for name, own in told.items()
        })  # fmt: skip

    @property
    def first_change(self) -> int:
        """The last step before the number of processes changed for the first time."""
        first = self.widths[1]
        return next(step for step, width in sorted(self.widths.items()) if width != first) - 1


def noted_rows(folder: Path) -> dict[int, list[list[int]]]:
    """Completions of each step, those of the processes behind one another."""
    by_rank: dict[int, dict[int, list[list[int]]]] = {}
    for file in sorted(folder.glob("rows-*.jsonl")):
        for line in file.read_text().splitlines():
            told = json.loads(line)
            by_rank.setdefault(told["step"], {})[told["rank"]] = told["rows"]
    return {
        step: [row for rank in sorted(own) for row in own[rank]] for step, own in by_rank.items()
    }


# ---------------------------------------------------------------- the time of the control path


class PlayedTime:
    """A clock that goes on by the time of a step with each step, and by some in a pause.

    Args:
        file: keeps the time for the processes that go on after this one.

    Attributes:
        began_s: when the run began, s since 1970.
        passed_s: time since then, s.
    """

    STEP_S = 0.4
    """Time of a step in BF16 with one process, s."""
    FP8, TWO = 1.7, 0.8
    """Times of a step in FP8, and with two processes, over that."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.began_s = time.time()
        self.passed_s = float(file.read_text()) if file.exists() else 0.0
        self._steps_left: int | None = None

    def wall(self) -> float:
        return self.began_s + self.passed_s

    def monotonic(self) -> float:
        return self.passed_s

    def ask(self, steps_left: int, stage: TrainingStage) -> None:
        """Go on to the next question of the trainer."""
        n_steps = max(0, (self._steps_left or steps_left) - steps_left)
        step_s = self.STEP_S * (self.TWO if stage.width == 2 else 1.0)
        if stage.gear is not None and stage.gear.is_low:
            step_s *= self.FP8
        self.passed_s += n_steps * step_s if n_steps else POLL_S
        self._steps_left = steps_left
        self._file.write_text(str(self.passed_s))


def play() -> None:
    """Have the run's decisions made by a played time, if the environment says so."""
    if PLAYED not in os.environ:
        return
    from ecorl.carbon import listener
    from ecorl.runtime.control import governor, grid_watch
    from ecorl.runtime.scheduling import stage_scheduler

    played, earlier = PlayedTime(Path(os.environ[PLAYED])), governor._earlier

    class PlayedGovernor(governor.Governor):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs, wall=played.wall)

        def _begin(self, began_s: float) -> None:
            played.began_s = began_s
            super()._begin(began_s)

        def tick(self, steps_left: int | None = None, **told: Any) -> Any:
            if steps_left is not None:
                played.ask(steps_left, told.get("stage", AS_IT_IS))
                self._hear()
            return super().tick(steps_left, **told)

        def _hear(self) -> None:
            """Wait until the feeds were asked at the time that it is now."""
            end_s = time.monotonic() + 240
            for one in self._watch._listeners.values():
                while one._newest is None or one._newest.asked_s < played.wall():
                    assert time.monotonic() < end_s, "no feed answers"
                    time.sleep(0.005)

    def known(ledger: Any) -> tuple[Any, Any, float | None]:
        waited_s, memory, change_s = earlier(ledger)
        # What a change of the width took is the machine's time.
        return waited_s, memory, None if change_s is None else 3.0

    governor.time = grid_watch.time = played
    governor._earlier = known
    listener.SILENT_FOR = 10_000
    stage_scheduler.Governor = PlayedGovernor


# ---------------------------------------------------------------- what follows a list


class Given:
    """A placement policy that goes by a list."""

    name = "given"

    def __init__(self, decisions: Decisions) -> None:
        self._places = decisions.places

    def propose(self, state: SchedulerState) -> Proposal:
        own = self._places.get(state.iteration, {})
        return Proposal(Action(own.get(state.work.role, "gpu")), "given")


def patch() -> None:
    """Follow the list, note the rows, and wait for processes, as the environment says."""
    from roll_adapters.trl import attachment
    from roll_adapters.trl.launch.handover import WidthHandover

    if FOLLOWS in os.environ:
        _follow(Decisions.read(Path(os.environ[FOLLOWS])), attachment)
    if NOTES in os.environ:
        _note(Path(os.environ[NOTES]))
    if STEADY in os.environ or FOLLOWS in os.environ:
        _wait_for_processes(WidthHandover, follows=FOLLOWS in os.environ)


def _wait_for_processes(handover: Any, *, follows: bool) -> None:
    """Let a step wait until the processes that are asked for stand by.

    One that follows a list asks at once; else what is wanted has to be wanted for some steps.
    """
    wanted = handover.wanted

    def ready(self: Any, width: int | None) -> bool:
        found = wanted(self, width)
        while (width or self.width if follows else self.target) != self.width:
            if found or self._dropped:
                break
            time.sleep(0.01)
            found = wanted(self, width)
        return found

    handover.wanted = ready


def _follow(given: Decisions, attachment: Any) -> None:
    from ecorl.runtime.scheduling import stage_scheduler

    stage_scheduler.build_policy = lambda *args, **kwargs: Given(given)
    stand, n_steps = attachment.stand, max(given.gears)

    def planned(runtime: Any, *, steps_left: int | None = None, **told: Any) -> Any:
        choice = stand(runtime, steps_left=steps_left, **told)
        if not steps_left:
            return choice
        step = n_steps - steps_left + 1
        gear, width = Gear(given.gears[step]), given.widths.get(step + 1)
        # A choice that is pressed: its gear holds at once, whatever width is there.
        return replace(choice, why=Why.SHIELDED, gear=gear, width=width)

    attachment.stand = planned
    if given.rows:
        _sample_given(given.rows)


def _sample_given(rows: dict[int, list[list[int]]]) -> None:
    """Take the completions of some steps from the list; the others are sampled."""
    from trl import GRPOTrainer

    sample = GRPOTrainer._generate_single_turn

    def taken(self: Any, prompt_ids: Any, *args: Any, **kwargs: Any) -> Any:
        found = rows.get(int(self.state.global_step) + 1) if self.model.training else None
        if found is None:
            return sample(self, prompt_ids, *args, **kwargs)
        assert len(found) == len(prompt_ids)
        return found, None

    GRPOTrainer._generate_single_turn = taken


def _note(folder: Path) -> None:
    from trl import GRPOTrainer

    sample = GRPOTrainer._generate_single_turn
    if hasattr(sample, "notes"):
        return  # in a fork of a process that does so

    def noted(self: Any, *args: Any, **kwargs: Any) -> Any:
        rows, logprobs = sample(self, *args, **kwargs)
        if self.model.training:
            rank = int(os.environ.get("RANK", "0"))
            line = {"step": int(self.state.global_step) + 1, "rank": rank, "rows": rows}
            with (folder / f"rows-{rank}.jsonl").open("a") as file:
                file.write(json.dumps(line) + "\n")
        return rows, logprobs

    noted.notes = True  # type: ignore[attr-defined]
    GRPOTrainer._generate_single_turn = noted


def main() -> None:
    """Be the command, or one of its training processes."""
    if sys.argv[1:2] and sys.argv[1].isdigit():
        from roll_adapters.trl.launch import worker

        patch()
        worker.main()
        return
    from ecorl import cli
    from roll_adapters.trl.launch import supervisor

    supervisor.WORKER = MODULE
    patch()  # a run of one process trains in this one
    cli.main()


if __name__ == "__main__":
    main()
