"""Episodes of a scenario: everything that chance decides, drawn before the first decision.

An episode is a table of figures, one row an iteration. The figures of a batch exist twice: as they
turn out (``actual``), and as they are expected when generation starts (``expected``), from the
prompts' tasks and the lengths so far. A policy sees the expected ones until the rows are there; the
clairvoyant optimum sees all actual ones from the start. Other jobs' bursts, failures and the next
batches are in neither until they happen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from ecorl.errors import ConfigError
from ecorl.scheduler.tables import Float64
from ecorl.sim.divergence import Diverged, draw_divergence
from ecorl.sim.factors import scaled
from ecorl.sim.lengths import draw_lengths, lengths_of, stretched, with_replays
from ecorl.sim.scenario import Scenario, column
from ecorl.sim.scenario_costs import Disturbances, ScenarioCosts, draw_disturbances, unforeseen
from ecorl.stages.figures import Work
from ecorl.stages.guards import gpu_only, without_cards


@dataclass(frozen=True, slots=True)
class Trace:
    """Episodes of several scenarios side by side; arrays are ``[n_iterations, n] float64``.

    Attributes:
        scenarios: the scenario of each column.
        actual: what each iteration costs.
        expected: the same as far as it can be known when generation starts.
        table_actual, table_expected: both by the tables, which may be wrong (`diverged`).
        diverged: how costs differ from the tables; None where they do not.
        length, expected_length: mean length of completions, tokens.
        row_length, expected_row_length: with the prompt, tokens.
        shares: ``[n_iterations, n, n_tasks]``: tasks of the batch's prompts.
        n_rows: completions of the batch.
        gpu_only_s, gpu_only_j: time and energy of the iteration that never uses the cards, which
            stand by.
        without_cards_j: energy of the same iteration in a machine without cards.
        noise: ``[n_iterations, n, 4]``: what telemetry reads beside the truth (mean and spread of
            power and utilisation).
        start_c: temperature of the cards at the start, ``[n]``.
        foreseen: logarithm of the factor on lengths that `expected` rests on.
        surprise: standard deviation of the actual factor's logarithm around it, ``[n]``.
        stretch: longest completion over the mean that is expected where a run is replayed, NaN
            elsewhere; None where no run is.
    """

    scenarios: tuple[Scenario, ...]
    actual: Work
    expected: Work
    table_actual: Work
    table_expected: Work
    diverged: Diverged | None
    length: Float64
    expected_length: Float64
    row_length: Float64
    expected_row_length: Float64
    shares: Float64
    n_rows: Float64
    gpu_only_s: Float64
    gpu_only_j: Float64
    without_cards_j: Float64
    noise: Float64
    start_c: Float64
    foreseen: Float64
    surprise: Float64
    stretch: Float64 | None = None

    @property
    def n_iterations(self) -> int:
        """Iterations of each episode."""
        return int(self.length.shape[0])

    @property
    def n(self) -> int:
        """Episodes side by side."""
        return int(self.length.shape[1])


def work_at(work: Work, index: Any) -> Work:
    """Pick the work of some iterations.

    Args:
        work: arrays ``[n_iterations, n]``.
        index: any NumPy index; scalars come out as floats.
    """
    return Work._make(_pick(value, index) for value in work)


def select(trace: Trace, columns: npt.NDArray[np.int64]) -> Trace:
    """Pick some of the episodes of a trace.

    Args:
        trace: the episodes.
        columns: numbers of the episodes, in the order of the result; one may occur twice.
    """

    def chosen(value: Any) -> Any:
        if isinstance(value, Work):
            return work_at(value, (slice(None), columns))
        if isinstance(value, Diverged):
            return Diverged(*(getattr(value, f.name)[..., columns] for f in fields(value)))
        if isinstance(value, np.ndarray):
            return value[columns] if value.ndim == 1 else value[:, columns]
        return value

    kept = {field.name: chosen(getattr(trace, field.name)) for field in fields(trace)}
    return Trace(**kept | {"scenarios": tuple(trace.scenarios[int(i)] for i in columns)})


def _pick(value: Any, index: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(_pick(part, index) for part in value)
    picked = value[index]
    return float(picked) if np.ndim(picked) == 0 else picked


def draw_trace(scenarios: Sequence[Scenario], rng: np.random.Generator) -> Trace:
    """Draw one episode of each scenario.

    Args:
        scenarios: all with the same number of iterations.
        rng: source of all chance.
    """
    n, n_iter = len(scenarios), scenarios[0].n_iterations
    if any(s.n_iterations != n_iter for s in scenarios):
        raise ConfigError("scenario.n_iterations", sorted({s.n_iterations for s in scenarios}),
                          "one number for episodes side by side")  # fmt: skip
    lengths = draw_lengths(scenarios, n_iter, rng)
    real, hoped = lengths.real, lengths.hoped
    costs = ScenarioCosts(scenarios)
    exogenous = draw_disturbances(scenarios, costs.nominal_s, n_iter, rng)
    prompt = column(scenarios, "prompt_length")
    table_actual = costs.work(real, exogenous, rows_over(scenarios, hoped.mean, real.mean))
    table_expected = costs.work(hoped, unforeseen(exogenous))
    diverged = draw_divergence([s.divergence for s in scenarios], n_iter, rng)
    diverged = with_replays(diverged, lengths.laid, (n_iter, n))
    actual, expected = table_actual, table_expected
    if diverged is not None:
        actual = scaled(table_actual, diverged.time, diverged.power)
        expected = scaled(table_expected, diverged.time, diverged.power)
    time_s, energy_j = gpu_only(actual)
    return Trace(
        scenarios=tuple(scenarios),
        actual=actual,
        expected=expected,
        table_actual=table_actual,
        table_expected=table_expected,
        diverged=diverged,
        length=real.mean,
        expected_length=hoped.mean,
        row_length=real.mean + prompt,
        expected_row_length=hoped.mean + prompt,
        shares=lengths.shares,
        n_rows=np.stack([s.rows_at(hoped.mean[:, i]) for i, s in enumerate(scenarios)], axis=1),
        gpu_only_s=time_s,
        gpu_only_j=energy_j,
        without_cards_j=without_cards(actual)[1],
        noise=rng.standard_normal((n_iter, n, 4)),
        start_c=np.array([s.ambient_c for s in scenarios]),
        foreseen=lengths.foreseen,
        surprise=lengths.surprise,
        stretch=lengths.stretch,
    )


def rows_over(scenarios: Sequence[Scenario], made_for: Float64, length: Float64) -> Float64 | None:
    """Compute the rows of batches over those that the tables assume at their actual lengths.

    An adaptive batch is made up for the length that was expected, and keeps its rows.

    Args:
        scenarios: the scenarios side by side.
        made_for: mean length that was expected, ``[n_iter, n]`` tokens.
        length: mean length as it is, likewise.

    Returns:
        The ratio ``[n_iter, n] float64``, or None where no batch is adaptive.
    """
    if not any(s.adaptive_batch for s in scenarios):
        return None
    return np.stack(
        [s.rows_at(made_for[:, i]) / s.rows_at(length[:, i]) for i, s in enumerate(scenarios)],
        axis=1,
    )


def supposing(trace: Trace, deviation: float, *, by_tables: bool = False) -> Work:
    """Compute what each iteration is expected to cost if its lengths deviate from the forecast.

    Args:
        trace: the episodes.
        deviation: of the logarithm of the lengths' factor, in standard deviations.
        by_tables: whether the tables say what it costs, which may be wrong; else it is the truth.
    """
    scenarios = trace.scenarios
    factor = column(scenarios, "length_scale") * np.exp(trace.foreseen + deviation * trace.surprise)
    cap = column(scenarios, "max_length")
    lengths = stretched(lengths_of(trace.shares, factor, cap), trace.stretch, cap)
    expected = trace.expected
    others = Disturbances(
        expected.arriving_s, expected.late_arriving_s, expected.cards_up, expected.lost,
        expected.late_arriving_s,
    )  # fmt: skip
    rows = rows_over(scenarios, trace.expected_length, lengths.mean)
    made = ScenarioCosts(scenarios).work(lengths, others, rows)
    if by_tables or trace.diverged is None:
        return made
    return scaled(made, trace.diverged.time, trace.diverged.power)
