"""What each stage of RLHF draws per token, by batch: a shorter pass of ``benchmarks.gpu_stages``.

Its figures have the ids of that benchmark, with the same model, prompts and new tokens, so that
`ecorl plan --fitted` and `ecorl policy calibrate` take the file. Windows are fewer and shorter. One
batch of each stage comes first: with those the file is enough for a calibration.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial

import torch

from benchmarks.gpu.loads.generation import step_error
from benchmarks.gpu.loads.llama import EAGER, Llama, fused
from benchmarks.gpu.loads.stages import Batch, Loads, Workload, generated, longest, random_tokens
from benchmarks.gpu.run.setting import Measured, Setting, attempt, reason
from benchmarks.gpu.sensing.meter import EnergyMeter, Window, power_figure, window_facts
from benchmarks.harness.figures import Figure
from benchmarks.harness.table import FigureTable
from ecorl.devices import check_execution, titled_profile
from ecorl.devices.llama import model_shape
from ecorl.edi import EdiMatrix, edi_from_energy
from ecorl.errors import DriverError, PhysicalBoundError
from ecorl.records import EdiReading, ModelShape, Provenance

BENCHMARK = "gpu_stages"
"""With which the ids of its figures begin."""

SIZE = "1b"
"""Size of the model whose stages are measured."""

FIGURES, OF_WORKLOAD = FigureTable(BENCHMARK), "gpu_stages.{workload}."
"""The table, and how the rows of a workload's figures begin."""

REPETITIONS, LENGTH_S, WARM_UP_S = 2, 1.2, 0.5
REHEARSED_SIZE, REHEARSED_LENGTH_S = "160k", 0.2

_END_S = 3.0
"""Time that the last idle window takes, s; it is kept back from the stages."""

_CHECK_S = 6.0
"""Longest time that comparing a step of generation with a whole pass takes, s."""

BATCHES = (
    (Batch("scoring", 32, 512), 6.0), (Batch("training", 8, 512), 4.0), (generated(128), 15.0),
    (generated(512), 12.0), (generated(32), 8.0), (Batch("training", 16, 1024), 4.0),
    (Batch("scoring", 8, 512), 6.0),
)  # fmt: skip
"""In order, the most telling first, each with the time, s, that must be left for it to be begun.
The pieces of a step are compiled with the first generation."""

REHEARSED = (
    (Batch("scoring", 2, 32), 0.5), (Batch("training", 2, 32), 0.5),
    (Batch("generation", 2, 64, 65), 0.5),
)  # fmt: skip


class StageTable:
    """Measures workloads one after the other.

    Args:
        meter: of the GPU; it is open.
        size: of the model, by name.
        shape: of the model.
        n_repetitions: windows of each workload.
        length_s: of a window, at least, s.

    Attributes:
        length_s: shortest length of a window, s.
        figures: so far.
        edi: joules per output token by stage and batch; the batch is the variant.
        refused: why a figure was refused, by workload.
    """

    def __init__(
        self, meter: EnergyMeter, size: str, shape: ModelShape, n_repetitions: int, length_s: float
    ) -> None:
        self._meter, self._size, self._shape = meter, size, shape
        self._n_repetitions, self.length_s = n_repetitions, length_s
        self._profile = titled_profile(meter.device.name)
        self._device = meter.device.name if self._profile is None else self._profile.name
        self.figures: list[Figure] = []
        # All readings count alike: these are repetitions of one thing, not a course in time.
        self.edi = EdiMatrix(n_profiling=10**6)
        self.refused: dict[str, str] = {}
        self._idle_facts: dict[str, object] = {}
        self._facts: dict[str, object] = {}

    def idle(self, when: str) -> None:
        """Measure while nothing runs.

        Args:
            when: ``before`` or ``after`` the stages.
        """
        window = self._meter.idle(2 * self.length_s)
        at = len(self._idle_facts)  # before the stages
        self.figures.insert(at, power_figure(FIGURES, f"{BENCHMARK}.idle_{when}_w", window))
        self._idle_facts[when] = window_facts([window])

    def take(self, loads: Loads) -> None:
        """Measure all workloads.

        Args:
            loads: each with its call.
        """
        for workload, call in loads:
            windows = self._meter.measure(
                call, n_repetitions=self._n_repetitions, length_s=self.length_s
            )
            self.add(workload, windows)

    def add(self, workload: Workload, windows: Sequence[Window]) -> None:
        """Make the figures of a workload.

        Args:
            workload: what was measured.
            windows: its repetitions.
        """
        self._facts[workload.name] = {"how": workload.how, **window_facts(windows)}
        why = self._refusal(workload, windows)
        if why is not None:
            self.refused[workload.name] = why
            self.leave_out(workload.name, why)
            return
        tokens = [w.n_calls * workload.n_counted for w in windows]
        per_token = [edi_from_energy(w.energy_j, n) for w, n in zip(windows, tokens, strict=True)]
        values: dict[str, Sequence[float | None]] = {
            "j_per_token": per_token,
            "power_w": [w.power_w for w in windows],
            "tokens_per_s": [n / w.time_s for w, n in zip(windows, tokens, strict=True)],
            "tokens_per_j": [None if not j else 1.0 / j for j in per_token],
            "edi_j_per_token": self._edi(workload, windows),
        }
        counted = "new tokens" if workload.n_counted == workload.work.n_output_tokens else "tokens"
        words = {"workload": workload.name, "how": workload.how, "counted": counted}
        self.figures += [
            FIGURES.median(OF_WORKLOAD + kind, found, words=words) for kind, found in values.items()
        ]

    def leave_out(self, workload: str, why: str) -> None:
        """Make the figures of a workload missing.

        Args:
            workload: its name.
            why: the reason.
        """
        self.figures += FIGURES.all_missing(FIGURES.rows(OF_WORKLOAD), why, workload=workload)

    def config(self, step_error: float | None) -> dict[str, object]:
        """The settings that the figures depend on, and how the windows were measured.

        Args:
            step_error: how far a step of generation is from a whole pass; None: not computed.
        """
        return {
            "gpu": self._meter.device.name,
            "driver": self._meter.driver.version(),
            "power_limit_w": self._meter.driver.power_limits(self._meter.device).enforced_w,
            "torch": torch.__version__,
            "model": {"size": self._size, **asdict(self._shape), "weights": "random",
                      "dtype": "bfloat16"},
            "repetitions": self._n_repetitions,
            "window_s": self.length_s,
            "idle": self._idle_facts,
            "workloads": self._facts,
            "step_error": step_error,
            "refused": self.refused,
            "edi": json.loads(self.edi.to_json()),
        }  # fmt: skip

    def _edi(self, workload: Workload, windows: Sequence[Window]) -> list[float | None]:
        found: list[float | None] = []
        for window in windows:
            n_out = window.n_calls * workload.work.n_output_tokens
            value = edi_from_energy(window.energy_j, n_out)
            found.append(value)
            self.edi.update(
                EdiReading(
                    workload.work.stage, self._device, window.energy_j, n_out, value,
                    Provenance.MEASURED, window.time_s, variant=workload.name,
                )
            )  # fmt: skip
        return found

    def _refusal(self, workload: Workload, windows: Sequence[Window]) -> str | None:
        """Why the figures cannot be true, or None."""
        if self._profile is None:
            return None
        for window in windows:
            try:
                # Energy is not held against the limit here: what a board draws may pass its limit
                # by a little, and that is a finding.
                check_execution(
                    self._profile,
                    workload.work,
                    window.time_s / window.n_calls,
                    None,
                    Provenance.MEASURED,
                )
            except PhysicalBoundError as error:
                return str(error)
        return None


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
    shape, n_most = model_shape(size), longest([batch for batch, _ in batches])
    with EnergyMeter(setting.synchronize) as meter:
        model = Llama(shape, n_most + 1, device=setting.device, dtype=torch.bfloat16)
        table = StageTable(meter, size, shape, REPETITIONS, length_s)
        table.idle("before")
        error: float | None = None
        for batch, need_s in batches:
            _take(setting, meter, table, model, batch, need_s)
            if not is_toy:
                torch.cuda.empty_cache()
            # Its pieces are compiled by now.
            if batch.kind == "generation" and error is None and setting.has_room(_CHECK_S + _END_S):
                pieces, tokens = EAGER if is_toy else fused(), random_tokens(model, 4, n_most)
                error, _ = attempt(partial(step_error, model, tokens, pieces))
        table.idle("after")
        return table.config(error), table.figures


def _take(
    setting: Setting,
    meter: EnergyMeter,
    table: StageTable,
    model: Llama,
    batch: Batch,
    need_s: float,
) -> None:
    """Measure the workloads of a batch; those that do not fit are missing with the reason."""
    waiting = list(batch.names)
    setting.tell(", ".join(waiting))

    def measured() -> None:
        for workload, call in batch.loads(model, graphs=not setting.is_rehearsal):
            windows = _windows(setting, meter, call, table.length_s)
            if windows:
                table.add(workload, windows)
                waiting.remove(workload.name)

    error = attempt(measured)[1] if setting.has_room(need_s + _END_S) else None
    if isinstance(error, DriverError):
        raise error
    for name in waiting:
        table.leave_out(name, "no time left" if error is None else reason(error))


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
