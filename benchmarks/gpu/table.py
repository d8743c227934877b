"""The table of the stages: joules a token, watts and tokens a second by stage and batch."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict

import torch

from benchmarks.gpu.figures import StageFigures, power_figure, window_facts
from benchmarks.gpu.loads.stages import Workload
from benchmarks.gpu.sensing.meter import EnergyMeter, Window
from benchmarks.harness.figures import Figure
from ecorl.records import ModelShape

BENCHMARK = "gpu_stages"
"""With which the ids of its figures begin."""

SIZE = "1b"
"""Size of the model whose stages are measured."""


class StageTable:
    """Measures workloads one after the other.

    Args:
        meter: of the GPU; it is open.
        size: of the model, by name.
        shape: of the model.
        n_repetitions: windows of each workload.
        length_s: shortest length of a window, s.

    Attributes:
        stages: the figures of the workloads.
    """

    def __init__(
        self,
        meter: EnergyMeter,
        size: str,
        shape: ModelShape,
        n_repetitions: int,
        length_s: float,
    ) -> None:
        self._meter, self._size, self._shape = meter, size, shape
        self._n_repetitions, self._length_s = n_repetitions, length_s
        self.stages = StageFigures(BENCHMARK, meter.device.name)
        self._idle: list[Figure] = []
        self._idle_facts: dict[str, object] = {}
        self._facts: dict[str, object] = {}

    def idle(self, when: str, note: str) -> None:
        """Measure while nothing runs.

        Args:
            when: in the id of the figure.
            note: what is there meanwhile.
        """
        window = self._meter.idle(2 * self._length_s)
        self._idle.append(power_figure(f"{BENCHMARK}.idle_{when}_w", window, note))
        self._idle_facts[when] = window_facts([window])

    def take(self, loads: Iterable[tuple[Workload, Callable[[], object]]]) -> None:
        """Measure all workloads.

        Args:
            loads: each with its call.
        """
        for workload, call in loads:
            windows = self._meter.measure(
                call, n_repetitions=self._n_repetitions, length_s=self._length_s
            )
            self.add(workload, windows)

    def add(self, workload: Workload, windows: Sequence[Window]) -> None:
        """Take the windows of a workload in.

        Args:
            workload: what was measured.
            windows: its repetitions.
        """
        self.stages.add(workload, windows)
        self._facts[workload.name] = {"how": workload.how, **window_facts(windows)}

    def figures(self) -> list[Figure]:
        """All figures so far."""
        return [*self._idle, *self.stages.figures]

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
            "window_s": self._length_s,
            "idle": self._idle_facts,
            "workloads": self._facts,
            "step_error": step_error,
            "refused": self.stages.refused,
            "edi": json.loads(self.stages.edi.to_json()),
        }  # fmt: skip
