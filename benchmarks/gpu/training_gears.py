"""TRL's GRPO with its training stage in BF16 and in FP8, by ecorl's gears, layers compiled.

The decoder layers of the policy are compiled by ``torch.compile`` for the loss alone: generation
would compile anew for each length, and stays as the training part has it. A compiled layer is
traced once in each gear, and a shift between them compiles nothing. Blocks of both arms run in
turns, each a new training from the same seed.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.loads import grpo
from benchmarks.gpu.run.setting import Measured, Setting, attempt, reason
from benchmarks.gpu.sensing.meter import first_gpu
from benchmarks.harness.figures import Figure, known, over
from benchmarks.harness.table import FigureTable
from ecorl.bench.rounds import balanced_order
from ecorl.bench.tokens_per_joule.reading.quality import window_energy
from ecorl.control import Gear
from ecorl.drivers.nvml import NvmlDriver
from ecorl.ledger import LedgerReader
from ecorl.records import Stage, StageResult
from ecorl.trainer.gears.formats import computes_fp8
from roll_adapters.trl.inputs.quiet import quiet

BENCHMARK = "gpu_training_gears"
FIGURES, OF_ARM = FigureTable(BENCHMARK), "gpu_training_gears.{arm}."
"""The table, and how the rows of an arm begin; behind that stands the name in `GearStep`."""

MAX_PAIRS, REHEARSED_PAIRS = 6, 2
CLOSING_S = 2.0
FIRST_S, MAKING_S = 25.0, 5.0
"""Time that the first block of an arm is given, compiling included, and that a trainer takes to be
made, s. Assumed."""

NO_TIME, NO_UNITS = "no time left", "this GPU has no units for FP8"

RATIOS = {"train_energy_ratio": "train_j", "train_time_ratio": "train_s",
          "step_energy_ratio": "step_j", "step_time_ratio": "step_s"}  # fmt: skip
"""The ratios of the arms, and of what of a step they are."""


@dataclass(frozen=True, slots=True)
class GearStep:
    """One measured step.

    Attributes:
        train_j: energy of its training stage, J; None where it is not known.
        train_s: time of its training stage, s.
        n_tokens: that it trained on, prompts included.
        step_j: energy of all of the step, J; None where it is not known.
        step_s: time of all of the step, s.
    """

    train_j: float | None
    train_s: float
    n_tokens: int
    step_j: float | None
    step_s: float

    @property
    def train_j_per_token(self) -> float | None:
        """Energy of the training stage over its tokens, J/token."""
        return over(self.train_j, self.n_tokens)


@dataclass(frozen=True, slots=True)
class GearBlock:
    """One block of an arm.

    Attributes:
        steps: those that are measured.
        losses: of all steps, the warm-up among them; None where one is no number.
        facts: of the block, for the settings of the result.
        wall_s: of all of it, making the trainer and compiling included, s.
    """

    steps: list[GearStep]
    losses: list[float | None]
    facts: dict[str, object]
    wall_s: float


Blocks = dict[Gear, list[GearBlock]]
"""Blocks by arm."""


def measure(setting: Setting) -> Measured:
    """Measure both arms.

    Args:
        setting: of the part.
    """
    with closing(NvmlDriver()) as driver:
        gpu = first_gpu(driver).name
    with tempfile.TemporaryDirectory(prefix="ecorl-gpu-gears-") as name, quiet():
        training = grpo.GrpoTraining(setting, Path(name), grpo.GEARED, torch.float32)
        blocks, stopped = _blocks(training)
    low, base = ([block.losses for block in blocks[gear][:1]] for gear in (Gear.FP8, Gear.BF16))
    config: dict[str, object] = {
        "gpu": gpu,
        "training": training.size.facts(),
        "weights": "float32, with BF16 autocast; the reference and the reward model in bfloat16",
        "fp8": "ecorl's gear: torchao's dynamic scaling by tensor, all linear layers but the head",
        "compiled": "the policy's decoder layers, in the loss alone; backend " + _backend(setting),
        "warm_up_steps": grpo.WARM_UP,
        "order": "ABBA",
        "arms": {str(gear): [block.facts for block in found] for gear, found in blocks.items()},
        # FP8's less BF16's at each step of the first blocks.
        "loss_differences": [
            None if a is None or b is None else a - b
            for pair in zip(low, base, strict=False) for a, b in zip(*pair, strict=True)
        ],
        "stopped": {str(gear): why for gear, why in stopped.items()},
    }  # fmt: skip
    return config, gear_figures(blocks, stopped)


def _backend(setting: Setting) -> str:
    return "eager" if setting.is_rehearsal else "inductor"


def compile_layers(trainer: Any, backend: str) -> None:
    """Have a trainer compute its loss with compiled decoder layers, and all else as before.

    Args:
        trainer: not yet training; ecorl may be attached to it afterwards.
        backend: of ``torch.compile``.
    """
    layers = list(trainer.accelerator.unwrap_model(trainer.model).model.layers)
    for layer in layers:
        layer.compile(dynamic=False, backend=backend)
    compiled = [layer._compiled_call_impl for layer in layers]
    own = trainer.compute_loss

    def switch(calls: Sequence[Any]) -> None:
        for layer, call in zip(layers, calls, strict=True):
            layer._compiled_call_impl = call

    def compute_loss(*args: Any, **kwargs: Any) -> Any:
        switch(compiled)
        try:
            return own(*args, **kwargs)
        finally:
            switch([None] * len(layers))

    switch([None] * len(layers))
    trainer.compute_loss = compute_loss


# ---------------------------------------------------------------- blocks


def _blocks(training: grpo.GrpoTraining) -> tuple[Blocks, dict[Gear, str]]:
    """Blocks by arm, and why an arm ended before its time."""
    setting = training.setting
    blocks: Blocks = {Gear.BF16: [], Gear.FP8: []}
    stopped: dict[Gear, str] = {}
    if not setting.is_rehearsal and not computes_fp8(setting.device):
        stopped[Gear.FP8] = NO_UNITS
    n_pairs = REHEARSED_PAIRS if setting.is_rehearsal else MAX_PAIRS
    for number, order in enumerate(balanced_order(list(blocks), n_pairs)):
        for gear in (Gear(name) for name in order):
            need_s = expected_s(blocks[gear]) + CLOSING_S
            if gear in stopped or not setting.has_room(need_s):
                continue
            setting.tell(f"{gear}, block {number + 1}")
            block, error = attempt(partial(_block, training, gear, f"{gear}-{number}"))
            if block is not None:
                blocks[gear].append(block)
            elif error is not None:
                stopped[gear] = reason(error)
            del error  # it holds what the block held
            grpo.free(setting)
    return blocks, stopped


def expected_s(found: Sequence[GearBlock]) -> float:
    """Time that the next block of an arm takes, s: only the first one compiles.

    Args:
        found: its blocks so far.
    """
    if not found:
        return FIRST_S
    if len(found) == 1:
        steps_s = [step.step_s for step in found[0].steps]
        return MAKING_S + sum(steps_s) + grpo.WARM_UP * max(steps_s)
    return max(block.wall_s for block in found[1:])


def _block(training: grpo.GrpoTraining, gear: Gear, name: str) -> GearBlock:
    config = grpo.attached_config(
        BENCHMARK,
        gears={
            # BF16 stands beside FP8: a gear is needed to redo a step in.
            "allowed": list(dict.fromkeys([str(gear), str(Gear.BF16)])),
            # In a rehearsal FP8 is rounded to, and computed in float32.
            "simulate_fp8": training.setting.is_rehearsal,
            "optimizer": "own",
            "measure_every": 0,
        },
        # The training stage is shorter than a second: the counter is read all along.
        interval_s=0.05,
        counter_interval_s=0.0,
    )
    prepare = partial(compile_layers, backend=_backend(training.setting))
    run = training.block(config, name, prepare)
    with LedgerReader(training.folder / name) as opened:
        reader = opened.short_ids()
        trained = [row.result for row in reader.executions()
                   if row.result.stage is Stage.ACTOR_TRAIN]  # fmt: skip
        steps = [
            _step(reader, [r for r in trained if r.iteration == number], span)
            for number, span in enumerate(run.spans_s, grpo.WARM_UP + 1)
        ]
        faults = [fault.detail for fault in reader.faults()]
    losses = run.logged("loss")
    facts: dict[str, object] = {
        "first_step_s": run.ends_s[0] - run.start_s,
        "spans_s": [list(span) for span in run.spans_s],
        "energy_j": [step.step_j for step in steps],
        "train_s": [step.train_s for step in steps],
        "train_j": [step.train_j for step in steps],
        "losses": losses,
        "rewards": run.logged("reward"),
        "gears": sorted({str(r.gear) for r in trained}),
        "faults": faults,
    }
    return GearBlock(steps, losses, facts, time.monotonic() - run.start_s)


def _step(
    reader: LedgerReader, trained: Sequence[StageResult], span_s: tuple[float, float]
) -> GearStep:
    joules = [None if r.energy is None else r.energy.energy_j for r in trained]
    told = known(joules)
    machine = window_energy(reader, [(1, span_s)], None).machine
    return GearStep(
        train_j=sum(told) if told and len(told) == len(joules) else None,
        train_s=sum(r.time_s or 0.0 for r in trained),
        n_tokens=sum(r.n_tokens for r in trained),
        step_j=None if machine is None or machine.at_least else machine.energy_j,
        step_s=span_s[1] - span_s[0],
    )


# ---------------------------------------------------------------- figures


def gear_figures(blocks: Blocks, stopped: dict[Gear, str]) -> list[Figure]:
    """Figures of each arm, and FP8 over BF16, the same step of a pair of blocks.

    Args:
        blocks: by arm.
        stopped: why an arm has fewer blocks than there was time for.
    """
    figures: list[Figure] = []
    for gear, found in blocks.items():
        rows, steps = FIGURES.rows(OF_ARM), [s for block in found for s in block.steps]
        words = {"arm": gear.lower(), "gear": gear, "n_blocks": len(found)}
        if not found:
            why = stopped.get(gear, NO_TIME)
            figures += FIGURES.all_missing(rows, why, words=words)
            continue
        figures += [
            FIGURES.median(
                row, [getattr(step, row.removeprefix(OF_ARM)) for step in steps],
                words=words, n_steps=grpo.BLOCK_STEPS,
            )
            for row in rows
        ]  # fmt: skip
    return figures + _ratios(blocks, stopped)


def _ratios(blocks: Blocks, stopped: dict[Gear, str]) -> list[Figure]:
    pairs = [
        (low, base)
        for low_block, base_block in zip(blocks[Gear.FP8], blocks[Gear.BF16], strict=False)
        for low, base in zip(low_block.steps, base_block.steps, strict=True)
    ]
    if not pairs:
        why = "; ".join(f"{gear}: {reason}" for gear, reason in stopped.items()) or NO_TIME
        return FIGURES.all_missing([f"{BENCHMARK}.{name}" for name in RATIOS], why)
    n_pairs = min(len(found) for found in blocks.values())
    return [
        FIGURES.ratio(
            f"{BENCHMARK}.{name}",
            [getattr(low, of) for low, _ in pairs],
            [getattr(base, of) for _, base in pairs],
            n_pairs=n_pairs,
        )
        for name, of in RATIOS.items()
    ]
