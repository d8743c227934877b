"""What each stage of RLHF draws per token, by batch: a shorter pass of ``benchmarks.gpu_stages``.

Its figures have the ids of that benchmark, with the same model, prompts and new tokens, so that
`ecorl plan --fitted` and `ecorl policy calibrate` take the file. Windows are fewer and shorter. One
batch of each stage comes first: with those the file is enough for a calibration.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from benchmarks.gpu.loads.generation import step_error
from benchmarks.gpu.loads.llama import EAGER, Llama, fused
from benchmarks.gpu.loads.stages import (
    Shapes,
    Workload,
    generation_loads,
    random_tokens,
    scoring_loads,
    training_loads,
)
from benchmarks.gpu.run.attempts import attempt, reason
from benchmarks.gpu.run.setting import Measured, Setting
from benchmarks.gpu.sensing.meter import EnergyMeter, Window
from benchmarks.gpu.table import SIZE, StageTable
from ecorl.devices.llama import model_shape
from ecorl.errors import DriverError
from ecorl.policy.calibration.stages import NEW_TOKENS, PROMPT_TOKENS

REPETITIONS, LENGTH_S, WARM_UP_S = 2, 1.2, 0.5
REHEARSED_SIZE, REHEARSED_LENGTH_S = "160k", 0.2

NOT_IN_TIME = "no time left"

_NOTHING = Shapes((), (), PROMPT_TOKENS, NEW_TOKENS, (), ())
_END_S = 3.0
"""Time that the last idle window takes, s; it is kept back from the stages."""

_CHECK_S = 6.0
"""Longest time that comparing a step of generation with a whole pass takes, s."""


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch of one kind of stage.

    Attributes:
        shapes: with that batch alone.
        names: of its workloads.
        need_s: time that must be left for it to be begun, s.
    """

    shapes: Shapes
    names: tuple[str, ...]
    need_s: float


def generated(n_rows: int, need_s: float, shapes: Shapes = _NOTHING) -> Batch:
    """A batch of generation.

    Args:
        n_rows: its rows.
        need_s: time that must be left for it to be begun, s.
        shapes: with the tokens of a prompt and of its completion.
    """
    names = (f"generation.b{n_rows}", f"decode.b{n_rows}")
    return Batch(replace(shapes, generation=(n_rows,)), names, need_s)


def scored(n_rows: int, length: int, need_s: float) -> Batch:
    """A batch of reward and reference.

    Args:
        n_rows: its rows.
        length: tokens of each.
        need_s: time that must be left for it to be begun, s.
    """
    names = tuple(f"{stage}.b{n_rows}x{length}" for stage in ("reward", "reference"))
    return Batch(replace(_NOTHING, scoring=((n_rows, length),)), names, need_s)


def trained(n_rows: int, length: int, need_s: float) -> Batch:
    """A batch of a training step.

    Args:
        n_rows: its rows.
        length: tokens of each.
        need_s: time that must be left for it to be begun, s.
    """
    names = (f"actor_train.b{n_rows}x{length}",)
    return Batch(replace(_NOTHING, training=((n_rows, length),)), names, need_s)


BATCHES = (
    scored(32, 512, 6.0), trained(8, 512, 4.0), generated(128, 15.0), generated(512, 12.0),
    generated(32, 8.0), trained(16, 1024, 4.0), scored(8, 512, 6.0),
)  # fmt: skip
"""In order: the most telling first. The pieces of a step are compiled with the first generation."""

REHEARSED = (
    scored(2, 32, 0.5), trained(2, 32, 0.5),
    generated(2, 0.5, replace(_NOTHING, prompt=64, new=65)),
)  # fmt: skip


def measure(setting: Setting) -> Measured:
    """Measure the batches that fit into the time.

    Args:
        setting: where and for how long.

    Raises:
        MissingToolError: when there is no GPU.
        DriverError: when the GPU is lost.
    """
    is_toy = setting.is_rehearsal
    batches, size, length_s = (
        (REHEARSED, REHEARSED_SIZE, REHEARSED_LENGTH_S) if is_toy else (BATCHES, SIZE, LENGTH_S)
    )
    longest, shape = max(batch.shapes.longest for batch in batches), model_shape(size)
    with EnergyMeter(setting.synchronize) as meter:
        model = Llama(shape, longest + 1, device=setting.device, dtype=torch.bfloat16)
        table = StageTable(meter, size, shape, REPETITIONS, length_s)
        table.idle("before", "a CUDA context and the model are there, nothing runs")
        error: float | None = None
        for batch in batches:
            _take(setting, meter, table, model, batch, length_s)
            if not is_toy:
                torch.cuda.empty_cache()
            if batch.shapes.generation and error is None:  # its pieces are compiled by now
                error = _checked(setting, model, longest)
        table.idle("after", "the same after all stages")
        return table.config(error), table.figures()


def _take(
    setting: Setting,
    meter: EnergyMeter,
    table: StageTable,
    model: Llama,
    batch: Batch,
    length_s: float,
) -> None:
    """Measure the workloads of a batch; those that do not fit are missing with the reason."""
    waiting = list(batch.names)
    setting.tell(", ".join(waiting))

    def measured() -> None:
        for workload, call in _loads(setting, model, batch.shapes):
            windows = _windows(setting, meter, call, length_s)
            if windows:
                table.add(workload, windows)
                waiting.remove(workload.name)

    error = attempt(measured)[1] if setting.has_room(batch.need_s + _END_S) else None
    if isinstance(error, DriverError):
        raise error
    for name in waiting:
        table.stages.leave_out(name, NOT_IN_TIME if error is None else reason(error))


def _loads(
    setting: Setting, model: Llama, shapes: Shapes
) -> Iterator[tuple[Workload, Callable[[], object]]]:
    yield from generation_loads(model, shapes, graphs=not setting.is_rehearsal)
    yield from scoring_loads(model, shapes)
    yield from training_loads(model, shapes)


def _windows(
    setting: Setting, meter: EnergyMeter, call: Callable[[], object], length_s: float
) -> Sequence[Window]:
    """Measure as many windows of a load as fit into the time, `REPETITIONS` at most."""
    begin_s = time.monotonic()
    call()
    setting.synchronize()
    call_s = time.monotonic() - begin_s
    if call_s < WARM_UP_S:
        call_s = meter.warm_up(call, WARM_UP_S)
    window_s = call_s * math.ceil(length_s / call_s)
    n_windows = min(REPETITIONS, int((setting.left_s() - _END_S) / window_s))
    return [meter.repeat(call, length_s, call_s) for _ in range(n_windows)]


def _checked(setting: Setting, model: Llama, length: int) -> float | None:
    """How far a step of generation is from a whole pass; None where there is no time."""
    if not setting.has_room(_CHECK_S + _END_S):
        return None
    pieces = EAGER if setting.is_rehearsal else fused()
    return attempt(lambda: step_error(model, random_tokens(model, 4, length), pieces))[0]
