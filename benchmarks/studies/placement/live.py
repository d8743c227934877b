"""Placement policies in real trainings whose second device slows down from time to time.

The second device is the torch engine in processes of their own, all on one core. A process of ours
takes half of that core in some steps of each block and leaves it alone in the others. The profile
by which policies expect the device is wrong on purpose. Blocks of the policies alternate.

Two trainings of one policy in one process were seen to differ by some per cent, presumably since
their weights lie elsewhere in memory. So what is compared may be trained twice, and how far two of
the same differ stands beside.
"""

from __future__ import annotations

import contextlib
import os
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil
import tomlkit

from benchmarks.harness import Figure, FigureTable, in_turns
from benchmarks.studies.placement.busy_core import BusyCore
from benchmarks.studies.placement.turns import Turns
from ecorl.bench.rounds import TimeBox, round_ratios
from ecorl.devices import load_profile
from ecorl.ledger import LedgerReader
from ecorl.records import Action, Provenance

FIGURES = FigureTable("placement_live")
LEARNED, LOOKAHEAD = "learned", "lookahead"
STATICS = ("static_host", "static_card")
ON_CARD = {"reward": "concurrent", "reference": "concurrent"}

POLICIES: Mapping[str, Mapping[str, object]] = {
    LEARNED: {"type": "learned"},
    # What is compared is time.
    LOOKAHEAD: {"type": "lookahead", "energy_weight": 0.0, "time_weight": 1.0},
    STATICS[0]: {"type": "static"},
    STATICS[1]: {"type": "static", **ON_CARD},
}
"""Tables ``[placement.policy]`` of the arms."""

_AGAIN = "_again"
"""What the name of an arm ends with that trains by the policy of another one."""


def arms_of(again: bool) -> dict[str, Mapping[str, object]]:
    """Policies by the name of their arm.

    Args:
        again: whether those that stay on the host or learn are trained twice.
    """
    twice = (LEARNED, STATICS[0]) if again else ()
    return {**POLICIES, **{f"{name}{_AGAIN}": POLICIES[name] for name in twice}}


CLAIM = 4.0
"""Times as fast as this host the profile says that the second device is. Invented: a data sheet's
peak against what small models reach differs by more."""

_SCALED_UP = ("peak_fp32_flops", "peak_int8_ops", "memory_bytes_per_s")
_HOST_MAIN = "ecorl.engines.host_main"


def is_contended(step: int, n_steps: int) -> bool:
    """Whether the second device's core is taken in a step: in the middle half of a block.

    Args:
        step: its number in the block; 0 is the one that is not timed.
        n_steps: timed steps of a block, a multiple of 4; one more before them is not timed.
    """
    quarter = n_steps // 4
    return quarter < step <= 3 * quarter


@dataclass(slots=True)
class LiveBlocks:
    """What the blocks showed.

    Attributes:
        best: the fixed placement that was best in the blocks of the tuning.
        tuning_s: mean step of each tuning block by fixed placement, s.
        step_s: mean step of each measured block by arm, s, round by round.
        quiet_s, contended_s: the same of the steps in which the engines' core was theirs alone,
            and of the others, by arm; of the tuning too.
    """

    best: str
    tuning_s: Mapping[str, list[float]]
    step_s: dict[str, list[float]]
    quiet_s: Mapping[str, list[float]]
    contended_s: Mapping[str, list[float]]


def write_wrong_profile(path: Path) -> None:
    """Write a profile of this host that claims to be `CLAIM` times as fast.

    Args:
        path: the TOML file.
    """
    host, figures = load_profile("host_cpu"), {}
    for key, figure in host.figures.items():
        factor = CLAIM if key in _SCALED_UP else 1.0 / CLAIM if key == "launch_s" else 1.0
        told = "wrong on purpose: " if factor != 1.0 else ""
        figures[key] = {
            "value": figure.value * factor,
            "unit": figure.unit,
            "provenance": str(Provenance.MODELLED),
            "source": f"{told}{figure.source}",
        }
    data = {"name": "second_core", "title": "A core that is said to be fast", "kind": "cpu"}
    path.write_text(tomlkit.dumps({**data, "figures": figures}), "utf-8")


# ---------------------------------------------------------------- cores


def cores_gap() -> str | None:
    """Say why this machine cannot give trainer and engine a core each; None where it can."""
    if not hasattr(os, "sched_setaffinity"):
        return "processes cannot be put on cores of their own here"
    n_cores = len(os.sched_getaffinity(0))
    return None if n_cores > 1 else "trainer and engine need a core each, and there is one"


def own_cores() -> tuple[int, int]:
    """Numbers of the trainer's and of the engine's core; `cores_gap` has found none."""
    cores = sorted(os.sched_getaffinity(0))
    return cores[0], cores[-1]


def take_cores(trainer_core: int, engine_core: int) -> int:
    """Put this process and its engines' processes on their cores, all threads of them.

    Args:
        trainer_core: of this process.
        engine_core: of the engines.

    Returns:
        Number of engine processes.
    """
    _pin(os.getpid(), trainer_core)
    engines = [child.pid for child in psutil.Process().children() if _is_engine(child)]
    for pid in engines:
        _pin(pid, engine_core)
    return len(engines)


def _is_engine(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return _HOST_MAIN in process.cmdline()
    return False


def _pin(pid: int, core: int) -> None:
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(ProcessLookupError):  # a thread that has just ended
            os.sched_setaffinity(int(task.name), {core})


# ---------------------------------------------------------------- blocks


class LiveBench:
    """Runs blocks of steps of several trainings in turn.

    Args:
        arms: the trainings, by the name of their policy.
        n_steps: timed steps of a block, as of `is_contended`.
        busy: takes the engines' core.
    """

    def __init__(self, arms: Mapping[str, Turns], n_steps: int, busy: BusyCore) -> None:
        self._arms, self._n_steps, self._busy = arms, n_steps, busy
        self._quiet_s: dict[str, list[float]] = {}
        self._contended_s: dict[str, list[float]] = {}

    def warm_up(self, n_steps: int) -> None:
        """Let each training make its first steps, contention included; they are not timed.

        Args:
            n_steps: how many, at least.
        """
        for name in self._arms:
            for _ in range(-(-n_steps // (self._n_steps + 1))):
                self._block_s(name)
        for parts in (self._quiet_s, self._contended_s):
            parts.update((name, []) for name in self._arms)

    def measure(self, n_rounds: int, n_tuning: int, box: TimeBox) -> LiveBlocks:
        """Choose the best fixed placement, then compare the policies with it.

        Args:
            n_rounds: rounds at most, an even number.
            n_tuning: rounds of the tuning, an even number.
            box: time for all of it.
        """
        blocks = {name: partial(self._block_s, name) for name in self._arms}
        tuning = in_turns({name: blocks[name] for name in STATICS}, n_tuning)
        best = min(STATICS, key=lambda name: statistics.fmean(tuning[name]))
        names = (LEARNED, best, LOOKAHEAD, f"{LEARNED}{_AGAIN}", f"{best}{_AGAIN}")
        chosen = {name: blocks[name] for name in names if name in blocks}
        step_s = in_turns(chosen, n_rounds, box)
        return LiveBlocks(best, tuning, step_s, self._quiet_s, self._contended_s)

    def _block_s(self, name: str) -> float:
        """Mean step of a block, s; its first step finds the caches of another training."""
        contended = [is_contended(step, self._n_steps) for step in range(self._n_steps + 1)]
        try:
            steps_s = self._arms[name].run(
                len(contended), lambda step: self._busy.switch(contended[step])
            )
        finally:
            self._busy.switch(False)
        for parts, when in ((self._quiet_s, False), (self._contended_s, True)):
            found = [s for i, s in enumerate(steps_s) if i and contended[i] is when]
            parts.setdefault(name, []).append(statistics.fmean(found))
        return statistics.fmean(steps_s[1:])


# ---------------------------------------------------------------- figures


def offloaded_shares(run_dir: Path) -> dict[str, float]:
    """Share of the executions of each stage that left the host, by the record of a training.

    Args:
        run_dir: folder of its record.
    """
    with LedgerReader(run_dir) as reader:
        placed = [row.placement for row in reader.placements()]
    found = {}
    for stage in ("reward", "reference"):
        of = [p.action is not Action.GPU for p in placed if p.stage == stage]
        found[stage] = round(statistics.fmean(of), 3) if of else 0.0
    return found


def live_figures(blocks: LiveBlocks) -> list[Figure]:
    """The ratios of the two policies to the best fixed placement, by pairs of a round.

    Args:
        blocks: as they were measured.
    """
    best, step_s = blocks.best, blocks.step_s
    best_s, learned_s, lookahead_s = (
        _rounds_s(blocks, name) for name in (best, LEARNED, LOOKAHEAD)
    )
    again = step_s.get(f"{best}{_AGAIN}")
    again_ratios = [] if again is None else round_ratios(again, step_s[best])
    # How far the busy process slows the trainer itself: other programs then share its core.
    quiet_s, contended_s = blocks.quiet_s[STATICS[0]], blocks.contended_s[STATICS[0]]
    ratios = round_ratios(learned_s, best_s)
    return [
        FIGURES.median("policy.live_step_ratio", ratios, best=best),
        FIGURES.interval_end("policy.live_step_ratio_high", ratios, 1),
        FIGURES.ratio("policy.live_lookahead_ratio", lookahead_s, best_s, best=best),
        FIGURES.median("policy.live_again_ratio", again_ratios, best=best),
        FIGURES.ratio("policy.live_host_disturbance", contended_s, quiet_s),
        FIGURES.median("policy.live_static_step_s", best_s, best=best),
    ]


def missing_figures(why: str) -> list[Figure]:
    """The same figures without values.

    Args:
        why: the reason.
    """
    return FIGURES.all_missing(FIGURES.rows(), why)


def _rounds_s(blocks: LiveBlocks, name: str) -> list[float]:
    """Mean step of a policy in each round, s, over its trainings."""
    found = [blocks.step_s[arm] for arm in (name, f"{name}{_AGAIN}") if arm in blocks.step_s]
    return [statistics.fmean(of_round) for of_round in zip(*found, strict=True)]
