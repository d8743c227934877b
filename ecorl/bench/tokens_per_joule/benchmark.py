"""Runs a plan, reads what came of it, and writes the results: all that a command needs.

A session runs what is not done yet of a plan, in turns:

    prepare     config checked, files of the task made, processors and formats found
    idle        power read with nothing running
    rounds      each seed is a round: all arms, forwards and backwards in turns
    idle        once more

A run that fails is a missing cell with its reason, and not the end. Ctrl-C ends the run under way
in good order and then the session; what has finished counts, and a second session goes on.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ecorl.bench.rounds import TimeBox, balanced_order
from ecorl.bench.tokens_per_joule.arms import (
    GEARS,
    SUPERVISED,
    BenchArm,
    GearChoices,
    arms_of,
)
from ecorl.bench.tokens_per_joule.plan import BenchPlan, stand_of
from ecorl.bench.tokens_per_joule.reading.model import RunFigures
from ecorl.bench.tokens_per_joule.reading.runs import read_run, read_supervised
from ecorl.bench.tokens_per_joule.result import ArmEntry, BenchResult, result_json, targets_of
from ecorl.bench.tokens_per_joule.running.folder import (
    CSV_FILE,
    HTML_FILE,
    JSON_FILE,
    BenchFolder,
)
from ecorl.bench.tokens_per_joule.running.idle import read_idle
from ecorl.bench.tokens_per_joule.running.known_truth import (
    ARM,
    KnownTruth,
    course_csv,
    known_truth,
    truth_config,
)
from ecorl.bench.tokens_per_joule.running.workers import JobKind, JobWorker
from ecorl.bench.tokens_per_joule.telling.page import render_page, result_csv
from ecorl.config import Config, FilesTask
from ecorl.control import Gear
from ecorl.drivers.nvml import NvmlDriver
from ecorl.errors import DriverError, EcorlError

Say = Callable[[str], None]

_TRUTH_STEPS = 16
"""Steps that count of the run whose energy is known."""

_TRUTH_IDS = {"cpu": "cpu0", "cuda": "gpu0"}
"""The device that the recording names, by where the framework computes."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One run that is to be made."""

    arm: BenchArm
    seed: int


def run_session(plan: BenchPlan, folder: BenchFolder, say: Say, box_s: float | None = None) -> None:
    """Run what is not done yet of a plan.

    Args:
        plan: what is to be run.
        folder: of the benchmark; one that holds a part of it is gone on with.
        say: shows a line of progress.
        box_s: time up to the end of the rounds, s, without that in which the task is made: no
            round but the first begins that would not end in it. None for no limit.

    Raises:
        UserError: for a config, a file or a folder that cannot be used.
        KeyboardInterrupt: when Ctrl-C came.
    """
    log = folder.path / "logs" / "session.log"
    forked = not _has_gpu()
    with folder.held():
        try:
            folder.begin(plan, stand_of(plan))
            with JobWorker(plan.base.adapter, is_forked=forked, log=log) as worker:
                _BenchSession(plan, folder, worker, say).go(box_s)
        except EcorlError:
            folder.withdraw()
            raise


def _has_gpu() -> bool:
    """Whether NVML sees a GPU: processes that use it are not forked from one that knows it."""
    driver = NvmlDriver()
    try:
        driver.open()
        return driver.count() > 0
    except DriverError:
        return False
    finally:
        driver.close()


class _BenchSession:
    def __init__(self, plan: BenchPlan, folder: BenchFolder, worker: JobWorker, say: Say) -> None:
        self._plan, self._folder, self._worker, self._say = plan, folder, worker, say

    def go(self, box_s: float | None) -> None:
        plan, begin_s = self._plan, time.monotonic()
        for arm in arms_of(plan.base, plan.placements, None, ()):
            # Configs of all arms are checked before anything runs.
            self._check(arm)
        self._say("preparing the task")
        made_s = time.monotonic()
        task = FilesTask(**self._worker.call("task", plan.base, self._folder.path / "task"))
        begin_s += time.monotonic() - made_s
        here = self._worker.call("processors", plan.base, self._folder.path)
        gears = GearChoices(tuple(Gear(gear) for gear in here["gears"]), here["why"])
        self._folder.place(here["device"], here["gpu_uuids"])
        self._folder.note("gears", {"gears": here["gears"], "why": here["why"]})
        base = plan.base.model_copy(update={"task": task})
        arms = arms_of(base, plan.placements, gears, plan.extras)
        if plan.supervised:
            arms.append(BenchArm(SUPERVISED, SUPERVISED, config=base))
        for arm in arms:
            if arm.config is not None and arm.extra:
                self._check(arm)
        turns = self._open(arms)
        # A call that was cut off behind its last run has left the rest to the next one.
        if turns or not self._has_idle("before"):
            self._idle(base, here, "before")
        left_s = None if box_s is None else box_s - (time.monotonic() - begin_s)
        self._rounds(turns, TimeBox(left_s))
        if turns or not self._has_idle("after"):
            self._idle(base, here, "after")
        if not self._folder.is_done(ARM, 0):
            self._say("a run whose energy is known")
            self._known_truth(arms[0].config or base, here["device"])

    def _check(self, arm: BenchArm) -> None:
        self._say(f"checking {arm.name}")
        # A folder that no run has: those of earlier calls hold runs already.
        self._worker.call(
            "check", arm.config or self._plan.base, self._folder.path / "runs" / "check"
        )

    def _has_idle(self, when: str) -> bool:
        return any(reading.when == when for reading in self._folder.idle)

    def _open(self, arms: Sequence[BenchArm]) -> list[list[Turn]]:
        """What is still to be run, round by round."""
        runnable = {arm.name: arm for arm in arms if arm.config is not None}
        rounds = []
        orders = balanced_order(list(runnable), len(self._plan.seeds))
        for seed, order in zip(self._plan.seeds, orders, strict=True):
            turns = [
                Turn(runnable[name], seed) for name in order if not self._folder.is_done(name, seed)
            ]
            if turns:
                rounds.append(turns)
        return rounds

    def _rounds(self, rounds: Sequence[Sequence[Turn]], box: TimeBox) -> None:
        n, n_all, longest_s = 0, sum(map(len, rounds)), 0.0
        for turns in rounds:
            if n and not box.has_room(longest_s):
                self._say(f"the time is used up: {n_all - n} runs are left out")
                return
            begin_s = time.monotonic()
            for turn in turns:
                n += 1
                self._say(f"run {n} of {n_all}: {turn.arm.name}, seed {turn.seed}")
                self._run(turn)
            longest_s = max(longest_s, time.monotonic() - begin_s)

    def _run(self, turn: Turn) -> None:
        name, seed = turn.arm.name, turn.seed
        self._folder.clear(name, seed)
        run_dir = self._folder.run_dir(name, seed)
        config = (turn.arm.config or self._plan.base).model_copy(
            update={"seed": seed, "name": name.replace("+", "_")}
        )
        kind: JobKind = "supervised" if name == SUPERVISED else "run"
        begin_s = time.monotonic()
        answer = self._worker.ask(
            kind, config.in_folder(run_dir), run_dir, self._folder.log(name, seed)
        )
        if answer.error:
            self._folder.fail(name, seed, f"{answer.error}: {answer.text}")
            self._say(f"  failed: {answer.text}")
            return
        if not self._folder.is_done(name, seed):
            why = "it was stopped before its last step: its log and its record say why"
            self._folder.fail(name, seed, why)
            self._say(f"  {why}")
            return
        self._say(f"  {time.monotonic() - begin_s:.1f} s")

    def _known_truth(self, base: Config, device: str) -> None:
        """Run on a recording of known power; the arm with the least in it is enough."""
        recording = self._folder.write("course.csv", course_csv(_TRUTH_IDS[device]))
        steps = min(self._plan.base.trainer.steps, self._plan.warm_up + _TRUTH_STEPS)
        config = truth_config(base, recording, max(steps, self._plan.warm_up + 1))
        self._run(Turn(BenchArm(ARM, ARM, config=config), 0))

    def _idle(self, base: Config, here: Mapping[str, Any], when: str) -> None:
        if self._plan.idle_s <= 0:
            return
        self._say(f"reading the idle machine for {self._plan.idle_s:g} s")
        # What waits for the next run holds no device, but it is a process of ours.
        found = read_idle(base, here["device"], here["gpu_uuids"], when, self._plan.idle_s)
        self._folder.add_idle(found)


def arms_in(plan: BenchPlan, folder: BenchFolder) -> list[BenchArm]:
    """The arms of a plan as its sessions found them, for a table; supervised training among them.

    Args:
        plan: of the benchmark.
        folder: with the notes of its sessions.
    """
    told = folder.noted("gears")
    gears = None
    if told is not None:
        gears = GearChoices(tuple(Gear(gear) for gear in told["gears"]), told["why"])
    arms = arms_of(plan.base, plan.placements, gears, plan.extras)
    if GEARS in plan.extras and gears is None:
        arms = [arm for arm in arms if arm.extra != GEARS]
    if plan.supervised:
        arms.append(BenchArm(SUPERVISED, SUPERVISED, config=plan.base))
    return arms


LEFT_OUT = "it was not run"


def read_folder(folder: BenchFolder) -> BenchResult:
    """Read what a benchmark has found so far.

    Args:
        folder: of the benchmark.

    Raises:
        RunError: when there is none in it.
    """
    plan, stand = folder.plan()
    folder.open_notes()
    arms = arms_in(plan, folder)
    runs: list[RunFigures] = []
    supervised: list[RunFigures] = []
    for seed in plan.seeds:
        for arm in arms:
            if arm.config is None:
                continue
            run = _read(folder, arm.name, seed, plan.warm_up)
            (supervised if arm.name == SUPERVISED else runs).append(run)
    commit = stand.commit or stand_of(plan).commit
    return BenchResult(
        stand=stand,
        commits=(commit,) if commit else (),
        plan=plan.as_dict(),
        arms=tuple(
            ArmEntry(a.name, a.placement, a.extra, a.why) for a in arms if a.name != SUPERVISED
        ),
        runs=tuple(runs),
        supervised=tuple(supervised),
        idle=tuple(folder.idle),
        known_truth=_truth(folder, plan.warm_up, plan.base.trainer.per_device_batch_size),
        targets=targets_of(runs, plan.reward, plan.correct),
    )


def _read(folder: BenchFolder, arm: str, seed: int, warm_up: int) -> RunFigures:
    """The figures of a run; without any where it failed or was not made."""
    if folder.is_done(arm, seed):
        read = read_supervised if arm == SUPERVISED else None
        run_dir = folder.run_dir(arm, seed)
        return read(run_dir, seed, warm_up) if read else read_run(run_dir, arm, seed, warm_up)
    return RunFigures(arm, seed, missing=folder.failure(arm, seed) or LEFT_OUT)


def _truth(folder: BenchFolder, warm_up: int, rows_a_step: int) -> KnownTruth | None:
    if folder.is_done(ARM, 0):
        return known_truth(folder.run_dir(ARM, 0), warm_up, rows_a_step)
    why = folder.failure(ARM, 0)
    return KnownTruth(None, None, why) if why else None


def run_plan(
    plan: BenchPlan, folder: BenchFolder, say: Say, box_s: float | None = None
) -> BenchResult:
    """Run what is not done yet of a plan, and write the results of all that is.

    Args:
        plan: what is to be run.
        folder: of the benchmark.
        say: shows a line of progress.
        box_s: time up to the end of the rounds, s; None for no limit.

    Raises:
        UserError: for a config, a file or a folder that cannot be used.
        KeyboardInterrupt: when Ctrl-C came.

    After an error and after Ctrl-C too, the results of what has finished are written.
    """
    try:
        run_session(plan, folder, say, box_s)
    except (KeyboardInterrupt, EcorlError):
        # A full disk, or a folder that was not begun, is told of by the first error.
        with contextlib.suppress(EcorlError):
            if folder.holds_runs:
                write_results(folder, read_folder(folder))
        raise
    result = read_folder(folder)
    write_results(folder, result)
    return result


def write_results(folder: BenchFolder, result: BenchResult) -> None:
    """Write JSON, CSV and page.

    Args:
        folder: in which they go.
        result: of the benchmark.

    Raises:
        RunError: when a file cannot be written.
    """
    folder.write(JSON_FILE, result_json(result))
    folder.write(CSV_FILE, result_csv(result))
    folder.write(HTML_FILE, render_page(result))
