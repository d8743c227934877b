"""A run whose energy is known: its power is replayed from a course that is written here.

The power rises and falls over seconds, so that a window of time that is cut wrongly gives another
energy. Tokens are counted by the framework's own log. What is checked is all that lies between:
sampling, the record, the cut to the steps that count, the sums, and the tokens.
"""

from __future__ import annotations

import bisect
import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ecorl.bench.tokens_per_joule.reading.runs import read_run
from ecorl.config import Config, ReplaySourceConfig
from ecorl.ledger import LedgerReader
from ecorl.records import EventKind, Stage
from ecorl.telemetry.sources.replay import COLUMNS

ARM = "known_truth"
"""Name of the run's folder."""

MEAN_W, SWING_W, PERIOD_S = 300.0, 120.0, 7.0
"""The course: steps that follow a sine of about the power of a GPU. Invented, as is all of it."""

ROW_S, LONGEST_S = 0.25, 7200.0
INTERVAL_S = 0.02
"""How often the replayed power is read, s: finer than a GPU's, so that the readings of two rows of
the course are told apart."""

LIMIT = 0.002
"""Largest relative error of the tokens per joule."""


@dataclass(frozen=True, slots=True)
class KnownTruth:
    """Tokens per joule of a run as they are read, and as they are known to be.

    Attributes:
        found: by the benchmark's reading; None where the run gave none.
        true: tokens by the framework's own log over the integral of the course.
        why: why there is no figure.
    """

    found: float | None
    true: float | None
    why: str = ""

    @property
    def error(self) -> float | None:
        """By what share the one is off the other; None without both."""
        if self.found is None or not self.true:
            return None
        return abs(self.found / self.true - 1.0)


def course_j(t_s: float) -> float:
    """What the course has drawn since its begin, J: its power is constant within a row.

    Args:
        t_s: time since its begin, s.
    """
    row = math.floor(t_s / ROW_S)
    low_j, high_j = _at_row_j(row), _at_row_j(row + 1)
    return low_j + (t_s / ROW_S - row) * (high_j - low_j)


def _at_row_j(row: int) -> float:
    """What it has drawn up to the begin of a row: the integral of a sine, J."""
    turn, t_s = 2.0 * math.pi / PERIOD_S, row * ROW_S
    return MEAN_W * t_s + SWING_W / turn * (1.0 - math.cos(turn * t_s))


def course_csv(device_id: str) -> str:
    """The recording of the course: mean power of each row until the next, and the counter.

    Args:
        device_id: the device that drew it.
    """
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(COLUMNS)
    for row in range(round(LONGEST_S / ROW_S)):
        drawn_j = _at_row_j(row)
        power_w = (_at_row_j(row + 1) - drawn_j) / ROW_S
        writer.writerow([f"{row * ROW_S:.2f}", device_id, f"{power_w:.6f}", f"{drawn_j:.6f}", ""])
    return text.getvalue()


def truth_config(base: Config, recording: Path, steps: int) -> Config:
    """The config of the run: nothing is offloaded, and its power is the recording's.

    Args:
        base: of the benchmark's first arm.
        recording: the file of the course.
        steps: of the run.
    """
    source = ReplaySourceConfig(path=recording, interval_s=INTERVAL_S)
    trainer = base.trainer.model_copy(
        update={"steps": steps, "evaluate_every": 0, "log_every": 1, "save_every": steps}
    )
    telemetry = base.telemetry.model_copy(update={"gpu": source})
    return base.model_copy(update={"trainer": trainer, "telemetry": telemetry})


def known_truth(folder: Path, warm_up: int, rows_a_step: int) -> KnownTruth:
    """Hold the figures of the run against what is known.

    Args:
        folder: of the run.
        warm_up: its steps at the begin that do not count.
        rows_a_step: completions of a step.
    """
    figures = read_run(folder, ARM, 0, warm_up)
    if figures.missing or figures.machine is None:
        return KnownTruth(None, None, figures.missing or "no power was read in the run")
    with LedgerReader(folder) as reader:
        found = reader.short_ids()
        lengths = [m.value for m in found.metrics("completion_length") if m.iteration > warm_up]
        raw = [(s.t_s, s.energy_j) for s in found.raw_samples() if s.energy_j is not None]
        begin_s = min(
            row.result.t_start_s
            for row in found.executions()
            if row.result.stage is Stage.GENERATION and row.result.iteration == warm_up + 1
        )
        end_s = max(e.t_s for e in found.events() if e.kind is EventKind.TRAINING_END)
    known = [value for value in lengths if value is not None]
    if len(known) < figures.n_steps or not raw:
        return KnownTruth(figures.tokens_per_j, None, "the framework logged no lengths")
    begun_s = _begin_of_course(raw)
    drawn_j = course_j(end_s - begun_s) - course_j(begin_s - begun_s)
    return KnownTruth(figures.tokens_per_j, round(sum(known) * rows_a_step) / drawn_j)


def _begin_of_course(raw: Sequence[tuple[float, float]]) -> float:
    """When the recording began to play, monotonic s: its counter tells how long it has played."""
    t_s, energy_j = raw[len(raw) // 2]
    rows = range(round(LONGEST_S / ROW_S))
    row = bisect.bisect_right(rows, energy_j, key=_at_row_j) - 1
    share = (energy_j - _at_row_j(row)) / (_at_row_j(row + 1) - _at_row_j(row))
    return t_s - (row + share) * ROW_S
