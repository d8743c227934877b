"""Tasks of a multi-task run, and how long their completions are.

The mix is the paper's (section 3.5). The length distributions are not printed anywhere and are
assumed: log-normal, cut off at the run's limit, with medians in the order that is usual for such
tasks. Each is represented by `N_STRATA` points of equal weight, the middles of its quantiles.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from ecorl.scheduler.iteration_costs import USUAL_SHARES
from ecorl.scheduler.tables import Float64

N_STRATA = 8

STRATA = np.array([NormalDist().inv_cdf((i + 0.5) / N_STRATA) for i in range(N_STRATA)])
"""``[N_STRATA] float64``: middles of the quantiles of a standard normal."""

LONGEST_Z = 2.5
"""The longest row of a task, in standard deviations: about the greatest of 150 rows."""


PROMPT_STD = 0.4
"""Standard deviation of a prompt's own mean length, of the logarithm. Assumed: of the variance of
the lengths in a task about half lies between prompts, half between completions of one prompt."""


TAIL_SHARE, TAIL_INDEX = 0.02, 1.5
"""Share of the completions that run on far beyond their task's lengths, and the index of the Pareto
distribution of the factor by which they do: loops and endless derivations, up to the run's limit.
Assumed."""


@dataclass(frozen=True, slots=True)
class PromptTask:
    """One kind of prompt.

    Attributes:
        name: as in the ledger.
        share: of the mix.
        median_length: of a completion, tokens.
        sigma: standard deviation of the logarithm of the length.
    """

    name: str
    share: float
    median_length: float
    sigma: float


TASKS = (
    PromptTask("math", USUAL_SHARES[0], 900.0, 0.55),
    PromptTask("code", USUAL_SHARES[1], 600.0, 0.65),
    PromptTask("reasoning", USUAL_SHARES[2], 1500.0, 0.60),
    PromptTask("instruction", USUAL_SHARES[3], 300.0, 0.60),
)
N_TASKS = len(TASKS)

SHARES = np.array([t.share for t in TASKS])
POINTS = np.array([t.median_length * np.exp(t.sigma * STRATA) for t in TASKS])
"""``[N_TASKS, N_STRATA] float64``: lengths that stand for each task, tokens."""
LOG_MEDIANS = np.log([t.median_length for t in TASKS])
SIGMAS = np.array([t.sigma for t in TASKS])
"""``[N_TASKS] float64`` each: of the logarithm of each task's lengths."""
LONGEST = np.array([t.median_length * np.exp(t.sigma * LONGEST_Z) for t in TASKS])
"""``[N_TASKS] float64``: the longest row of each task, tokens."""


def nominal_length(mix: Float64 = SHARES, scale: float = 1.0, cap: float = np.inf) -> float:
    """Compute the mean length of a completion of a mix, tokens.

    Args:
        mix: shares of the tasks, ``[N_TASKS] float64``.
        scale: factor on all lengths.
        cap: longest completion, tokens.
    """
    return float(mix @ np.minimum(POINTS * scale, cap).mean(axis=1))
