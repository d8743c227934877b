"""What running in cleaner hours would change in a job's emissions, replayed along recorded grids.

A job of a week trains from many starts on along a recording, by the default controller, which
knows no more than the past (`ecorl.controllers.horizon`). It pauses and goes on, or changes its
width, as long as it is done in time. Energy per token stays the same. What is saved hangs on the
machines that pause: given back, they emit nothing of this job's; kept, they draw idle power, and
timing costs joules. Both are replayed.
"""

from __future__ import annotations

import numpy as np

from ecorl.carbon.series import Series
from ecorl.control import Gear
from ecorl.controllers.catalogue import build
from ecorl.controllers.planning.baselines import raced
from ecorl.controllers.planning.comparison import start_times
from ecorl.controllers.problem.table import GearTable, scaled_table
from ecorl.controllers.problem.training import HOUR_S, Kept, TrainingProblem
from ecorl.controllers.replay.knowledge import Knowledge
from ecorl.controllers.replay.playing import play
from ecorl.operate.levers.known_timings import TimingSaving
from ecorl.records import Provenance
from ecorl.scheduler.tables import Float64

CONTROLLER = "stochastic"

NODE_W, NODE_IDLE_W = 7_750.0, 1_800.0
"""Power of a node of eight H100 that trains and of one that waits, W: that of the model behind the
project's carbon studies, with processors, fans and memory."""

JOB_DAYS = 7.0
"""Length of a job that runs without a pause, days. Invented: a usual run of some days."""

EVERY_DAYS = 30.0
"""From one start to the next, days."""

N_WIDTHS = 4
"""Widths between which the controller may choose, evenly spaced up to all workers."""

EXPONENT = 0.97
"""Growth of the throughput with the number of workers, as in the project's carbon studies."""

DAY_S = 86_400.0


def timing_table(n_widths: int) -> GearTable:
    """Make the table of a job's widths in BF16, a node being a worker.

    Args:
        n_widths: how many widths, evenly spaced up to eight nodes.
    """
    widths = tuple(sorted({round(8 * (i + 1) / n_widths) for i in range(n_widths)}))
    return scaled_table(
        widths, {Gear.BF16: 1.0}, {Gear.BF16: NODE_W}, exponent=EXPONENT, overhead=1.0,
        provenance=Provenance.MODELLED, source="nodes of eight H100 at 7.75 kW",
    )  # fmt: skip


def timing_saving(grid: str, series: Series, slack: float) -> TimingSaving:
    """Replay jobs along a recording.

    Args:
        grid: name of the recording.
        series: the intensities, g/kWh, without missing values, in intervals of an hour.
        slack: time that there is over the time that a job takes without a pause.

    Raises:
        ConfigError: when the recording is too short.
    """
    one, several = timing_table(1), timing_table(N_WIDTHS)
    starts = start_times(series, slack * JOB_DAYS * DAY_S + HOUR_S, None, EVERY_DAYS)
    at_once = np.array([raced(_problem(one, at, slack), series).carbon_g for at in starts])

    def emitted(table: GearTable, idle_w: float) -> Float64:
        return np.array([_played_g(_problem(table, at, slack, idle_w), series) for at in starts])

    given_back, wide, kept = emitted(one, 0.0), emitted(several, 0.0), emitted(one, NODE_IDLE_W)
    alone = 1.0 - given_back / at_once
    shares = [1.0 - float(one.sum() / at_once.sum()) for one in (given_back, wide, kept)]
    return TimingSaving(
        grid=grid,
        slack=slack,
        saved_share=shares[0],
        low=float(alone.min()),
        high=float(alone.max()),
        width_saved_share=shares[1],
        kept_saved_share=shares[2],
        n_starts=len(starts),
    )


def _played_g(problem: TrainingProblem, series: Series) -> float:
    return play(build(CONTROLLER, problem), problem, Knowledge(series)).carbon_g


def _problem(
    table: GearTable, start_s: float, slack: float, idle_w: float = 0.0
) -> TrainingProblem:
    work_s = JOB_DAYS * DAY_S
    most = float(table.tokens_per_s.max())
    return TrainingProblem(
        table,
        tokens=most * work_s,
        start_s=start_s,
        # A whole number of epochs; the last hour is not always full.
        deadline_s=start_s + HOUR_S * np.ceil(slack * work_s / HOUR_S),
        epoch_s=HOUR_S,
        idle_w=idle_w,
        kept=Kept.DONE,
    )
