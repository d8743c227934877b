"""Iterations drawn at random: what their stages cost, and what was left before."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from ecorl.records import Stage
from ecorl.stages.figures import SCALAR, Between, Work
from ecorl.stages.iteration import advance, begin, finish

N_HANDOVERS = 4
N_STAGES = len(Stage)


def _or_zero(low, high):
    """As often 0 as not."""
    return st.one_of(st.just(0.0), st.floats(low, high))


SECONDS = _or_zero(1e-3, 50.0)
FEW_SECONDS = _or_zero(1e-3, 5.0)
JOULES = _or_zero(1e-3, 1e4)
SHARE = st.one_of(st.sampled_from([0.0, 1.0]), st.floats(0.01, 0.99))
SHARES = st.lists(SHARE, min_size=N_HANDOVERS - 1, max_size=N_HANDOVERS - 1).map(sorted)
THREE_S = st.tuples(SECONDS, SECONDS, SECONDS)
THREE_J = st.tuples(JOULES, JOULES, JOULES)

_FIGURES = st.fixed_dictionaries(
    {
        "generation_s": st.floats(0.1, 50.0),
        "generation_j": JOULES,
        "handover_s": SHARES,
        "tail": SHARES,
        "gpu_s": THREE_S,
        "gpu_j": THREE_J,
        "card_s": THREE_S,
        "resync_s": FEW_SECONDS,
        "forward_s": SECONDS,
        "backward_s": SECONDS,
        "actor_j": JOULES,
        "early_s": FEW_SECONDS,
        "early_j": JOULES,
        "critic_s": SECONDS,
        "critic_j": JOULES,
        "swap_s": FEW_SECONDS,
        "swap_j": JOULES,
        "contention": SHARE,
        "gpu_idle_w": st.floats(0.0, 500.0),
        "card_active_w": st.floats(50.0, 200.0),
        "card_idle_w": st.floats(0.0, 50.0),
        "slow": st.one_of(st.just(1.0), st.floats(1.0, 2.0)),
        "arriving_s": SECONDS,
        "late_arriving_s": SECONDS,
        "cards_up": st.sampled_from([1.0, 0.75, 0.25]),
        "lost": SHARE,
        "off_policy": st.sampled_from([0.0, 1.0]),
        "ambient_c": st.floats(0.0, 40.0),
        "rise_c_per_w": st.floats(0.0, 1.0),
        "tau_s": st.floats(1.0, 200.0),
        "limit_c": st.sampled_from([50.0, 85.0]),
        "throttle": st.floats(0.2, 1.0),
        "n_cards": st.sampled_from([1.0, 4.0]),
        "card_share": st.just(1.0),
        "sleeps": st.sampled_from([0.0, 1.0]),
        "asleep_w": st.floats(0.0, 50.0),
        "wake_s": FEW_SECONDS,
        "stale": st.sampled_from([0.0, 1.0]),
        "yielding": SHARE,
        "timeout_s": FEW_SECONDS,
    }
)


def works(**fixed):
    """A `Work` of any kind, some figures of it `fixed`; cards are up, at least in part."""

    def made(figures):
        end_s = figures["generation_s"]
        figures = figures | {
            "handover_s": (*(end_s * cut for cut in figures["handover_s"]), end_s),
            "tail": (1.0, *reversed(figures["tail"])),
            "asleep_w": min(figures["asleep_w"], figures["card_idle_w"]),
        }
        return Work(**figures | fixed)

    return _FIGURES.map(made)


BEFORE = st.builds(
    Between,
    SECONDS,
    st.sampled_from([20.0, 53.0, 60.0, 88.0, 110.0]),
    _or_zero(1e-3, 100.0),
    JOULES,
    st.sampled_from([0.0, 1.0]),
    SECONDS,
    SHARE,
)
"""What an iteration may have left; at times more training than a generation hides."""

CODES = st.lists(st.integers(0, 2), min_size=N_STAGES, max_size=N_STAGES)
"""Codes of the actions of six stages; some mean nothing for their stage."""


def run(work, before, actions, ops=SCALAR):
    """The stage function from begin to end; the states after each stage, and the totals."""
    carries = [begin(work, before)]
    for stage, action in zip(Stage, actions, strict=True):
        carries.append(advance(stage, carries[-1], work, action, ops))
    return carries, finish(carries[-1], work, ops)


def stacked(cases):
    """Some `Work`s, `Between`s or lists of codes side by side, as arrays."""
    if isinstance(cases[0], tuple):
        kind = type(cases[0])
        parts = [stacked(list(parts)) for parts in zip(*cases, strict=True)]
        return kind._make(parts) if hasattr(kind, "_fields") else tuple(parts)
    return np.array(cases)


def flat(figures):
    """All numbers of a `Carry` or `Totals`, one after another."""
    for figure in figures:
        if isinstance(figure, tuple):
            yield from flat(figure)
        else:
            yield figure
