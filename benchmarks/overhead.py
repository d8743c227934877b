"""What does ecorl cost a training run that it leaves on the GPU path?

Plain TRL GRPO against the same trainer with ecorl attached and every stage placed on the GPU path
(power sampling, decisions, ledger, EDI), in one process, in blocks of steps that alternate ABBA.
Each block is a new trainer with the same seed, data and models, so that step k does the same work
in every block; its first step is not timed. Attached runs must earn exactly the rewards of plain
ones, or the comparison is void.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psutil
from transformers import TrainerCallback

from benchmarks.harness import Figure, FigureTable, in_turns, run_benchmark
from benchmarks.studies.demo_training import demo_trainer
from ecorl.bench.rounds import TimeBox, round_ratios
from ecorl.errors import EngineError
from roll_adapters.trl.attachment import TrlAttachment
from roll_adapters.trl.inputs.quiet import quiet

FIGURES = FigureTable("overhead")
PLAIN, ATTACHED, OFFLOADED = "plain", "attached", "offloaded"
GPU_ONLY = 'placement.policy={type="static"}'
CONCURRENT = 'placement.policy={type="static", reward="concurrent", reference="concurrent"}'


@dataclass(frozen=True, slots=True)
class Block:
    """One block of steps.

    Attributes:
        step_s: wall-clock of each timed step, s.
        cpu_s: CPU time of this process, all threads, over the timed steps, s.
        hook_s: time inside ecorl's hooks over the timed steps, s; None in a plain block.
        sampler_cpu_s: CPU time of the sampling process over the timed steps, s; None without it.
        rewards: mean reward of each logged step; equal in all blocks that do the same work.
    """

    step_s: tuple[float, ...]
    cpu_s: float
    hook_s: float | None
    sampler_cpu_s: float | None
    rewards: tuple[float, ...]

    @property
    def wall_s(self) -> float:
        """Wall-clock of all timed steps, s."""
        return math.fsum(self.step_s)


class _Stamps(TrainerCallback):  # type: ignore[misc]  # transformers is untyped here
    """Reads the clocks where a step begins, so that all that happens between two is counted."""

    def __init__(self, attachment: TrlAttachment | None) -> None:
        self._attachment = attachment
        self.wall_s: list[float] = []
        self.cpu_s: list[float] = []
        self.hook_s: list[float] = []
        self.sampler_cpu_s: list[float | None] = []
        self.rewards: list[float] = []

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A step begins, the one before it is over."""
        first, last = len(self.wall_s) == 1, len(self.wall_s) == state.max_steps - 1
        if first:
            self._read_sampler()  # a slow look-up: before the timed window and after it
        if self._attachment is not None:
            self.hook_s.append(self._attachment.runtime.clock.hook_s)
        self.cpu_s.append(time.process_time())
        self.wall_s.append(time.perf_counter())
        if last:
            self._read_sampler()

    def _read_sampler(self) -> None:
        if self._attachment is not None:
            self.sampler_cpu_s.append(_sampler_cpu_s())

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Remember what the step earned."""
        if logs and "reward" in logs:
            self.rewards.append(float(logs["reward"]))


def _sampler_cpu_s() -> float | None:
    """CPU time of the sampling process so far, s; None when it is not there."""
    for child in psutil.Process().children():
        try:
            if "ecorl.telemetry.sampling.sampler_main" in child.cmdline():
                times = child.cpu_times()
                return float(times.user + times.system)
        except psutil.Error:
            continue
    return None


class _Bench:
    """Builds and times blocks for one seed and one set of prepared models."""

    def __init__(self, folder: Path, n_steps: int) -> None:
        self._folder, self._n_steps = folder, n_steps
        # One step to warm up, and one whose beginning ends the last timed step.
        steps = f"trainer.steps={n_steps + 2}"
        both = "placement.profile_both_paths=false"
        self._overrides = (steps, "trainer.save_every=100000", both)
        self._serial = 0

    def block(self, arm: str) -> Block:
        """Train one block and return its clocks."""
        self._serial += 1
        run_dir = self._folder / f"{self._serial}-{arm}"
        policy = CONCURRENT if arm == OFFLOADED else GPU_ONLY
        with quiet():
            trainer, attachment = demo_trainer(
                [*self._overrides, policy], run_dir, attached=arm != PLAIN
            )
            stamps = _Stamps(attachment)
            trainer.add_callback(stamps)
            gc.collect()
            try:
                trainer.train()
            finally:
                if attachment is not None:
                    attachment.detach()
        return self._read(stamps)

    def _read(self, stamps: _Stamps) -> Block:
        begins = stamps.wall_s[1:]
        if len(begins) != self._n_steps + 1:
            raise EngineError(f"{len(begins)} steps were seen instead of {self._n_steps + 1}")
        samples = [s for s in stamps.sampler_cpu_s if s is not None]
        return Block(
            step_s=tuple(b - a for a, b in itertools.pairwise(begins)),
            cpu_s=stamps.cpu_s[-1] - stamps.cpu_s[1],
            hook_s=stamps.hook_s[-1] - stamps.hook_s[1] if stamps.hook_s else None,
            sampler_cpu_s=samples[1] - samples[0] if len(samples) == 2 else None,
            rewards=tuple(stamps.rewards),
        )


def measure(options: argparse.Namespace) -> tuple[dict[str, object], list[Figure]]:
    """Measure; returns the settings that the figures depend on, and the figures."""
    n_pairs, n_steps, n_offloaded = (2, 10, 1) if options.quick else (options.blocks, 50, 2)
    with tempfile.TemporaryDirectory(prefix="ecorl-bench-overhead-") as folder:
        bench = _Bench(Path(folder), n_steps)
        for arm in (PLAIN, ATTACHED):  # imports, caches, allocator: not part of any block
            _Bench(Path(folder) / "warm", 3).block(arm)
        arms = {arm: partial(bench.block, arm) for arm in (PLAIN, ATTACHED)}
        blocks = in_turns(arms, n_pairs, TimeBox(options.box_s))
        offloaded = [bench.block(OFFLOADED) for _ in range(n_offloaded)]
    _check_same_work(blocks[PLAIN] + blocks[ATTACHED])
    config = {
        "preset": "demo",
        "seed": 42,
        "blocks_per_arm": len(blocks[PLAIN]),
        "steps_per_block": n_steps,
        "order": "ABBA",
        "offloaded_blocks": n_offloaded,
    }
    return config, figures_of(blocks[PLAIN], blocks[ATTACHED], offloaded)


def _check_same_work(blocks: Sequence[Block]) -> None:
    """Every block must have earned the same rewards, bit for bit.

    Raises:
        EngineError: when one did not; then the arms did different work.
    """
    if any(block.rewards != blocks[0].rewards or not block.rewards for block in blocks):
        raise EngineError("attached and plain blocks earned different rewards: nothing to compare")


def figures_of(
    plain: Sequence[Block], attached: Sequence[Block], offloaded: Sequence[Block]
) -> list[Figure]:
    """The figures of three arms; `plain` and `attached` are paired by their rounds."""
    plain_s, attached_s = ([statistics.fmean(b.step_s) for b in arm] for arm in (plain, attached))
    ratios = round_ratios(attached_s, plain_s)
    # Of the fastest blocks: other programs only ever add time.
    best = {"attached_s": min(attached_s), "plain_s": min(plain_s)}
    fastest = best["attached_s"] / best["plain_s"]
    sampler = [b.sampler_cpu_s / b.wall_s for b in attached if b.sampler_cpu_s is not None]
    return [
        FIGURES.median("overhead.plain_step_s", plain_s),
        FIGURES.median("overhead.step_ratio", ratios),
        FIGURES.interval_end("overhead.step_ratio_low", ratios, 0),
        FIGURES.figure("overhead.step_ratio_fastest", fastest, best),
        FIGURES.ratio("overhead.cpu_ratio", [b.cpu_s for b in attached], [b.cpu_s for b in plain]),
        FIGURES.median("overhead.hook_share", _hook_shares(attached)),
        FIGURES.median("overhead.hook_share_offloaded", _hook_shares(offloaded)),
        FIGURES.median("overhead.sampler_cpu_share", sampler),
    ]


def _hook_shares(blocks: Sequence[Block]) -> list[float]:
    return [b.hook_s / b.wall_s for b in blocks if b.hook_s is not None]


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--blocks",
        type=int,
        default=16,
        metavar="N",
        help="blocks an arm at most, even (default 16)",
    )


if __name__ == "__main__":
    sys.exit(run_benchmark("overhead", measure, options=_options))
