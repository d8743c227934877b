"""The least that a training costs, by ways that are too slow for anything but a test."""

from __future__ import annotations

import itertools

import numpy as np

from ecorl.carbon.series import Series
from ecorl.controllers.problem.table import PAUSE, GearTable
from ecorl.controllers.problem.training import Kept, TrainingProblem
from ecorl.controllers.replay.playing import Training, outcome
from ecorl.kinds import Provenance

HOUR_S = 3600.0
START_S = 19_730 * 86400.0


def table_of(gears, widths, seed):
    rng = np.random.default_rng(seed)
    shape = (len(gears), len(widths))
    return GearTable(
        gears=gears,
        widths=widths,
        power_w=np.cumsum(rng.uniform(500.0, 8000.0, shape), axis=1),
        tokens_per_s=np.cumsum(rng.uniform(1e3, 1e5, shape), axis=1),
        provenance=Provenance.MODELLED,
        source="drawn",
    )


def idle_of(table, share):
    """What an idle worker draws, as a share of the least that one draws in training, W."""
    return share * float((table.power_w / np.array(table.widths)).min())


def problem_of(table, hours=12.0, slack=1.6, idle_share=0.0, **terms):
    """A budget for which the hours are by the slack more than enough."""
    terms = {"epoch_s": HOUR_S, "idle_w": idle_of(table, idle_share), **terms}
    probe = TrainingProblem(table, 1.0, START_S, START_S + 1e9, **terms)
    tokens = probe.most_tokens(hours * HOUR_S) / slack * (1.0 - 1e-9)
    return TrainingProblem(table, tokens, START_S, START_S + hours * HOUR_S, **terms)


def series_of(hours, seed, spread=0.6, step_s=HOUR_S):
    rng = np.random.default_rng(seed)
    n = round(hours * HOUR_S / step_s)
    day = 1.0 + 0.5 * np.sin(2 * np.pi * np.arange(n) * step_s / 86400.0)
    return Series(START_S, step_s, 300.0 * day * np.exp(spread * rng.standard_normal(n)))


def knapsack_g(problem, truth):
    """The least by filling the cheapest tokens first; no cap, and machines kept to the deadline."""
    paused_w = problem.draw_w(PAUSE)
    points = sorted(
        [(0.0, 0.0)]
        + [(problem.rate(a), problem.draw_w(a) - paused_w) for a in problem.table.actions()]
    )
    hull = []
    for x, y in points:
        while len(hull) > 1 and (hull[-1][1] - hull[-2][1]) * (x - hull[-1][0]) >= (
            y - hull[-1][1]
        ) * (hull[-1][0] - hull[-2][0]):
            hull.pop()
        if not hull or x > hull[-1][0]:
            hull.append((x, y))
    rates, watts = np.diff(np.array(hull), axis=0).T
    times_s, costs = spans_of(problem, truth)
    each_g = (costs[:, None] * (watts / rates)).ravel()
    tokens = (times_s[:, None] * rates).ravel()
    order = np.argsort(each_g, kind="stable")
    before = np.cumsum(tokens[order]) - tokens[order]
    used = np.clip(problem.tokens - before, 0.0, tokens[order])
    return float((used * each_g[order]).sum() + paused_w * (times_s * costs).sum())


def spans_of(problem, truth, cuts=()):
    """Lengths in s and g/J of the parts of intervals between start and deadline."""
    edges = truth.start_s + truth.step_s * np.arange(len(truth.values) + 1)
    edges = np.unique(np.clip([*edges, *cuts], problem.start_s, problem.deadline_s))
    numbers = np.floor((edges[:-1] + np.diff(edges) / 2 - truth.start_s) / truth.step_s).astype(int)
    return np.diff(edges), truth.values[numbers] * problem.pue / 3.6e6


def dense_g(problem, truth):
    """The least over all ends of a programme of all actions; each end's length is a variable."""
    from scipy.optimize import linprog

    soft_s = problem.soft_deadline_s
    times_s, costs = spans_of(problem, truth, () if soft_s is None else (soft_s,))
    ends_s = problem.start_s + np.cumsum(times_s)
    late = np.zeros(len(times_s)) if soft_s is None else (
        np.clip(ends_s - soft_s, 0.0, times_s) / 3600.0 * problem.late_g_per_h
    )  # fmt: skip
    fixed = 0.0 if soft_s is None else (
        max(0.0, problem.start_s - soft_s) / 3600.0 * problem.late_g_per_h
    )  # fmt: skip
    actions, idle = problem.table.actions(), costs * times_s * problem.draw_w(PAUSE)
    if problem.kept is Kept.DEADLINE:
        fixed, wait = fixed + idle.sum(), late
    else:
        wait = late + idle
    rates = np.array([problem.rate(a) for a in actions])
    extra = np.array([problem.draw_w(a) - problem.draw_w(PAUSE) for a in actions])
    low = np.array([a.is_low for a in actions]) * rates
    best = np.inf
    for last in range(len(times_s)):
        n = (last + 1) * len(actions)
        share = np.zeros((last + 1, n + 1))
        for number in range(last + 1):
            share[number, number * len(actions) : (number + 1) * len(actions)] = 1.0
        share[last, n] = -1.0
        scale = problem.tokens
        made = np.append(np.outer(times_s[: last + 1], rates).ravel(), 0.0) / scale
        capped = np.append(np.outer(times_s[: last + 1], low).ravel(), 0.0) / scale
        cost = np.outer(costs[: last + 1] * times_s[: last + 1], extra).ravel()
        found = linprog(
            np.append(cost, wait[last]),
            A_ub=np.vstack((-made, capped, share)),
            b_ub=np.concatenate(([-1.0, problem.low_share], np.ones(last), [0.0])),
            bounds=(0.0, 1.0),
        )
        if found.x is not None:
            best = min(best, found.fun + fixed + wait[:last].sum())
    return best


def cheapest_of_all(problem, truth, n_epochs):
    """The least that any sequence of actions is accounted, by trying all of them."""
    actions = (PAUSE, *problem.table.actions())
    found = (
        raw(problem, truth, sequence) for sequence in itertools.product(actions, repeat=n_epochs)
    )
    return min((one.cost_g for one in found if one.deficit == 0.0), default=np.inf)


def raw(problem, truth, actions):
    """Actions as they are written down, without the control step."""
    training = Training(problem, truth)
    for action in actions:
        if not training.is_over:
            training.run(action)
    training.keep_until_deadline()
    return outcome("raw", training)
