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
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.figures import figure
from benchmarks.gpu.loads.grpo import GEARED, GrpoTraining, StepClock, attached, free, logged
from benchmarks.gpu.run.attempts import attempt, reason
from benchmarks.gpu.run.setting import Measured, Setting
from benchmarks.gpu.sensing.meter import first_gpu
from benchmarks.harness.figures import Figure, missing
from ecorl.bench.rounds import balanced_order
from ecorl.bench.tokens_per_joule.reading.quality import window_energy
from ecorl.config import Config, validate_config
from ecorl.control import Gear
from ecorl.drivers.nvml import NvmlDriver
from ecorl.ledger import LedgerReader
from ecorl.records import Stage, StageResult
from ecorl.trainer.gears.formats import computes_fp8
from roll_adapters.trl.inputs.quiet import quiet

BENCHMARK = "gpu_training_gears"
WARM_UP, BLOCK_STEPS = 1, 3
"""Steps of a block that are not measured (the first compiles), and those that are."""

MAX_PAIRS, REHEARSED_PAIRS = 6, 2
CLOSING_S = 2.0
FIRST_S, MAKING_S = 25.0, 5.0
"""Time that the first block of an arm is given, compiling included, and that a trainer takes to be
made, s. Assumed."""

NO_TIME, NO_UNITS = "no time left", "this GPU has no units for FP8"

ARM_UNITS = {"train_j_per_token": "J/token", "train_s": "s", "step_j": "J", "step_s": "s"}
RATIOS = ("train_energy_ratio", "train_time_ratio", "step_energy_ratio", "step_time_ratio")


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


@dataclass(frozen=True, slots=True)
class GearBlock:
    """One block of an arm.

    Attributes:
        steps: those that are measured.
        facts: of the block, for the settings of the result.
        wall_s: of all of it, making the trainer and compiling included, s.
    """

    steps: list[GearStep]
    facts: dict[str, object]
    wall_s: float


def measure(setting: Setting) -> Measured:
    """Measure both arms.

    Args:
        setting: of the part.
    """
    gpu = _gpu_name()
    with tempfile.TemporaryDirectory(prefix="ecorl-gpu-gears-") as name, quiet():
        folder = Path(name)
        training = GrpoTraining(setting, folder / "policy", GEARED, torch.float32)
        blocks, stopped = _blocks(training, setting, folder)
    config: dict[str, object] = {
        "gpu": gpu,
        "training": training.size.facts(),
        "weights": "float32, with BF16 autocast; the reference and the reward model in bfloat16",
        "fp8": "ecorl's gear: torchao's dynamic scaling by tensor, all linear layers but the head",
        "compiled": "the policy's decoder layers, in the loss alone; backend " + _backend(setting),
        "warm_up_steps": WARM_UP,
        "order": "ABBA",
        "arms": {str(gear): [block.facts for block in found] for gear, found in blocks.items()},
        "loss_differences": loss_differences(blocks),
        "stopped": {str(gear): why for gear, why in stopped.items()},
    }
    return config, gear_figures(blocks, stopped)


def _gpu_name() -> str:
    driver = NvmlDriver()
    try:
        return first_gpu(driver).name
    finally:
        driver.close()


def _backend(setting: Setting) -> str:
    return "eager" if setting.is_rehearsal else "inductor"


def gears_config(gear: Gear, setting: Setting) -> Config:
    """The config of a run whose training stage stays in one gear.

    Args:
        gear: BF16 or FP8, beside which a gear is needed to redo a step in.
        setting: of the part; in a rehearsal FP8 is rounded to, and computed in float32.
    """
    return validate_config(
        {
            "name": BENCHMARK,
            "placement": {"policy": {"type": "static"}, "profile_both_paths": False},
            # The training stage is shorter than a second: the counter is read all along.
            "telemetry": {"gpu": {"type": "nvml", "interval_s": 0.05, "counter_interval_s": 0.0}},
            "gears": {
                "allowed": list(dict.fromkeys([str(gear), str(Gear.BF16)])),
                "simulate_fp8": setting.is_rehearsal,
                "optimizer": "own",
                "measure_every": 0,
            },
        }
    )


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


def _blocks(
    training: GrpoTraining, setting: Setting, folder: Path
) -> tuple[dict[Gear, list[GearBlock]], dict[Gear, str]]:
    """Blocks by arm, and why an arm ended before its time."""
    blocks: dict[Gear, list[GearBlock]] = {Gear.BF16: [], Gear.FP8: []}
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
            run_dir = folder / f"{gear}-{number}"
            block, error = attempt(partial(_block, training, gear, setting, run_dir))
            if block is not None:
                blocks[gear].append(block)
            elif error is not None:
                stopped[gear] = reason(error)
            del error  # it holds what the block held
            free(setting)
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
        return MAKING_S + sum(steps_s) + WARM_UP * max(steps_s)
    return max(block.wall_s for block in found[1:])


def _block(training: GrpoTraining, gear: Gear, setting: Setting, run_dir: Path) -> GearBlock:
    start_s = time.monotonic()
    trainer = training.trainer(WARM_UP + BLOCK_STEPS)
    compile_layers(trainer, _backend(setting))
    with attached(trainer, gears_config(gear, setting), run_dir, setting):
        clock = StepClock(setting)
        trainer.add_callback(clock)
        trainer.train()
    with LedgerReader(run_dir) as opened:
        reader = opened.short_ids()
        trained = [row.result for row in reader.executions()
                   if row.result.stage is Stage.ACTOR_TRAIN]  # fmt: skip
        spans = clock.spans_s[WARM_UP - 1 :]
        steps = [
            _step(reader, [r for r in trained if r.iteration == WARM_UP + 1 + number], span)
            for number, span in enumerate(spans)
        ]
        faults = [fault.detail for fault in reader.faults()]
    facts: dict[str, object] = {
        "first_step_s": clock.ends_s[0] - start_s,
        "spans_s": [list(span) for span in spans],
        "energy_j": [step.step_j for step in steps],
        "train_s": [step.train_s for step in steps],
        "train_j": [step.train_j for step in steps],
        "losses": logged(clock.rows, "loss"),
        "rewards": logged(clock.rows, "reward"),
        "gears": sorted({str(r.gear) for r in trained}),
        "faults": faults,
    }
    return GearBlock(steps, facts, time.monotonic() - start_s)


def _step(
    reader: LedgerReader, trained: Sequence[StageResult], span_s: tuple[float, float]
) -> GearStep:
    joules = [None if r.energy is None else r.energy.energy_j for r in trained]
    known = [j for j in joules if j is not None]
    machine = window_energy(reader, [(1, span_s)], None).machine
    return GearStep(
        train_j=sum(known) if known and len(known) == len(joules) else None,
        train_s=sum(r.time_s or 0.0 for r in trained),
        n_tokens=sum(r.n_tokens for r in trained),
        step_j=None if machine is None or machine.at_least else machine.energy_j,
        step_s=span_s[1] - span_s[0],
    )


# ---------------------------------------------------------------- figures


def loss_differences(blocks: dict[Gear, list[GearBlock]]) -> list[float | None]:
    """FP8's loss less BF16's at each step of the first blocks, the warm-up among them.

    Args:
        blocks: by arm.
    """
    if not blocks[Gear.FP8] or not blocks[Gear.BF16]:
        return []
    low, base = (_losses(blocks[gear][0]) for gear in (Gear.FP8, Gear.BF16))
    pairs = zip(low, base, strict=True)
    return [a - b if a is not None and b is not None else None for a, b in pairs]


def _losses(block: GearBlock) -> list[float | None]:
    found = block.facts["losses"]
    return list(found) if isinstance(found, list) else []


def gear_figures(blocks: dict[Gear, list[GearBlock]], stopped: dict[Gear, str]) -> list[Figure]:
    """Figures of each arm, and FP8 over BF16, the same step of a pair of blocks.

    Args:
        blocks: by arm.
        stopped: why an arm has fewer blocks than there was time for.
    """
    figures: list[Figure] = []
    for gear, found in blocks.items():
        steps = [step for block in found for step in block.steps]
        values: dict[str, list[float | None]] = {
            "train_j_per_token": [
                None if s.train_j is None else s.train_j / s.n_tokens for s in steps
            ],
            "train_s": [s.train_s for s in steps],
            "step_j": [s.step_j for s in steps],
            "step_s": [s.step_s for s in steps],
        }
        note = f"{gear}, {len(found)} blocks of {BLOCK_STEPS} steps; training: with the optimizer"
        for name, unit in ARM_UNITS.items():
            id = f"{BENCHMARK}.{gear.lower()}.{name}"
            if not found:
                figures.append(missing(id, unit, stopped.get(gear, NO_TIME)))
            else:
                figures.append(figure(id, values[name], unit, note))
    return figures + _ratios(blocks, stopped)


def _ratios(blocks: dict[Gear, list[GearBlock]], stopped: dict[Gear, str]) -> list[Figure]:
    pairs = [
        (low, base)
        for low_block, base_block in zip(blocks[Gear.FP8], blocks[Gear.BF16], strict=False)
        for low, base in zip(low_block.steps, base_block.steps, strict=True)
    ]
    if not pairs:
        why = "; ".join(f"{gear}: {reason}" for gear, reason in stopped.items()) or NO_TIME
        return [missing(f"{BENCHMARK}.{name}", "1", why) for name in RATIOS]
    values: dict[str, list[float | None]] = {
        "train_energy_ratio": [_over(a.train_j, b.train_j) for a, b in pairs],
        "train_time_ratio": [_over(a.train_s, b.train_s) for a, b in pairs],
        "step_energy_ratio": [_over(a.step_j, b.step_j) for a, b in pairs],
        "step_time_ratio": [_over(a.step_s, b.step_s) for a, b in pairs],
    }
    n_pairs = min(len(found) for found in blocks.values())
    note = f"FP8 over BF16, the same step of a pair of blocks; pairs: {n_pairs}, in turns"
    return [figure(f"{BENCHMARK}.{name}", values[name], "1", note) for name in RATIOS]


def _over(value: float | None, base: float | None) -> float | None:
    return value / base if value is not None and base else None
