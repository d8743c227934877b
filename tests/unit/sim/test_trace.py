from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest

from ecorl.records import Algorithm
from ecorl.scheduler.tables import COLUMN
from ecorl.sim.lengths import N_HANDOVERS
from ecorl.sim.tasks import LONGEST_Z, POINTS, TASKS
from ecorl.sim.trace import Trace, draw_trace, select, supposing, work_at
from ecorl.stages.guards import gpu_only
from tests.fakes.iterations import flat
from tests.fakes.scenarios import SCENARIO, draw

PER_EPISODE = ("start_c", "surprise")
CALM = {"drift_std": 0.0, "noise_std": 0.0}


def arrays(trace):
    """All arrays of a trace by name."""
    made = {}
    for field in fields(Trace):
        value = getattr(trace, field.name)
        if field.name in ("actual", "expected", "table_actual", "table_expected"):
            made |= {f"{field.name}.{i}": part for i, part in enumerate(flat(value))}
        elif field.name not in ("scenarios", "diverged", "stretch"):
            made[field.name] = value
    return made


def unit_s(scenario):
    """GPU-only time at the nominal length, longest row twice the mean, s."""
    row = scenario.table.at(scenario.nominal_length)
    generation_s = (row[COLUMN["generation_short_s"]] + row[COLUMN["generation_long_s"]]) / 2
    others = ("reward_s", "reference_s", "critic_s", "actor_train_s", "critic_train_s")
    return generation_s + sum(row[COLUMN[name]] for name in others)


def test_a_seed_draws_the_same_trace_and_another_one_another():
    one, same, other = arrays(draw(n=3)), arrays(draw(n=3)), arrays(draw(seed=1, n=3))
    assert all(np.array_equal(one[name], same[name]) for name in one)
    for name in ("length", "shares", "noise", "expected_length", "gpu_only_s"):
        assert not np.array_equal(one[name], other[name])


def test_all_figures_are_there_for_every_iteration():
    trace = draw(n=3)
    assert (trace.n_iterations, trace.n) == (SCENARIO.n_iterations, 3)
    for name, values in arrays(trace).items():
        shape = (3,) if name in PER_EPISODE else (SCENARIO.n_iterations, 3)
        assert values.shape[: len(shape)] == shape, name
        assert np.isfinite(values).all(), name
    assert (trace.start_c == SCENARIO.ambient_c).all()
    time_s, energy_j = gpu_only(trace.actual)
    assert np.array_equal(trace.gpu_only_s, time_s)
    assert np.array_equal(trace.gpu_only_j, energy_j)


@pytest.mark.parametrize("algorithm", [Algorithm.PPO, Algorithm.DAPO])
def test_costs_are_those_of_the_table_at_the_length(algorithm):
    trace = draw(n=2, algorithm=algorithm)
    scenario = trace.scenarios[0]
    for work, length in ((trace.actual, trace.length), (trace.expected, trace.expected_length)):
        rows = scenario.table.at(length)
        for place, name in enumerate(("reward", "reference", "critic")):
            assert work.gpu_s[place] == pytest.approx(rows[..., COLUMN[f"{name}_s"]], rel=1e-12)
            assert work.gpu_j[place] == pytest.approx(rows[..., COLUMN[f"{name}_j"]], rel=1e-12)
            on_cards = rows[..., COLUMN[f"{name}_card_s"]]
            assert work.card_s[place] == pytest.approx(on_cards, rel=1e-12)
        actor_s = work.forward_s + work.backward_s
        assert actor_s == pytest.approx(rows[..., COLUMN["actor_train_s"]], rel=1e-12)
        assert work.critic_s == pytest.approx(rows[..., COLUMN["critic_train_s"]], rel=1e-12)
        short, long = (rows[..., COLUMN[f"generation_{n}_s"]] for n in ("short", "long"))
        assert (work.generation_s >= short * (1 - 1e-12)).all()
        # A batch of short rows with one long task among them may go beyond the longest ratio.
        assert (work.generation_s <= short + (long - short) * 20).all()


def test_rows_are_handed_over_up_to_the_end_of_generation():
    for trace in (draw(n=4), draw(n=4, mix=(0.0, 0.0, 0.0, 1.0)), draw(n=4, noise_std=1.0)):
        for work in (trace.actual, trace.expected):
            assert len(work.handover_s) == len(work.tail) == N_HANDOVERS
            assert (np.diff(work.handover_s, axis=0) > 0).all()
            assert work.handover_s[-1] == pytest.approx(work.generation_s, rel=1e-15)
            assert (np.array(work.tail[0]) == 1.0).all()
            assert (np.diff(work.tail, axis=0) <= 0).all()
            assert (np.array(work.tail[-1]) >= 0).all()


def test_the_tail_is_the_share_of_tokens_in_longer_rows():
    trace = draw(mix=(0.0, 1.0, 0.0, 0.0), max_length=1e9, **CALM)
    points, tail = POINTS[1], np.array(trace.actual.tail)[:, 0, 0]
    longest = TASKS[1].median_length * np.exp(TASKS[1].sigma * LONGEST_Z)
    for place in range(N_HANDOVERS):
        longer = points > longest * place / N_HANDOVERS
        assert tail[place] == pytest.approx(points[longer].sum() / points.sum(), abs=1e-6)


def test_nothing_is_expected_that_cannot_be_known():
    trace = draw(n=200, noise_std=0.3, failure_rate=0.3)
    assert (trace.expected.lost == 0.0).all()
    assert trace.actual.lost.max() > 0
    assert len(np.unique(trace.expected.late_arriving_s.round(12))) == 1
    for known in ("arriving_s", "cards_up"):
        assert np.array_equal(getattr(trace.actual, known), getattr(trace.expected, known))
    error = np.log(trace.length / trace.expected_length)
    assert 0.2 < error.std() < 0.5


def test_the_surprise_is_the_spread_of_what_is_not_foreseen():
    trace = draw(n=300, noise_std=0.1, drift_std=0.2, drift_memory=0.9, max_length=1e9)
    error = np.log(trace.length / trace.expected_length)
    assert trace.surprise == pytest.approx(np.hypot(0.1, 0.2 * np.sqrt(1 - 0.81)))
    assert error.std() == pytest.approx(trace.surprise[0], rel=0.05)
    assert error.mean() == pytest.approx(0.0, abs=0.01)


def test_supposing_lengths_gives_what_they_would_cost():
    trace = draw(n=4, failure_rate=0.3, max_length=1e5)
    as_expected = list(flat(supposing(trace, 0.0)))
    for one, other in zip(as_expected, flat(trace.expected), strict=True):
        assert one == pytest.approx(other, rel=1e-12)
    longer, shorter = supposing(trace, 1.0), supposing(trace, -1.0)
    for name in ("generation_s", "forward_s", "critic_s"):
        assert (getattr(longer, name) > getattr(trace.expected, name)).all()
        assert (getattr(shorter, name) < getattr(trace.expected, name)).all()
    for name in ("arriving_s", "late_arriving_s", "cards_up", "lost"):
        assert np.array_equal(getattr(longer, name), getattr(trace.expected, name))


def test_lengths_follow_the_mix_in_the_mean():
    trace = draw(n=400, max_length=1e9, **CALM)
    assert trace.shares.sum(axis=-1) == pytest.approx(1.0)
    assert trace.shares.mean(axis=(0, 1)) == pytest.approx(SCENARIO.mix, abs=0.01)
    assert trace.length.mean() == pytest.approx(trace.scenarios[0].nominal_length, rel=0.01)
    assert np.array_equal(trace.length, trace.expected_length)
    assert (trace.row_length == trace.length + SCENARIO.prompt_length).all()


def test_concentration_makes_batches_alike():
    spread = [draw(n=200, concentration=c).shares.std(axis=(0, 1)).mean() for c in (1.0, 100.0)]
    assert spread[0] > 5 * spread[1]


def test_no_completion_is_longer_than_the_limit():
    trace = draw(n=100, max_length=300.0)
    assert trace.length.max() <= 300.0
    # All rows end at the limit or before, so generation is at most that of rows of one length.
    longest = trace.scenarios[0].table.at(300.0)[COLUMN["generation_short_s"]]
    assert trace.actual.generation_s.max() <= longest * (1 + 1e-9)


def test_drift_is_slow_and_noise_is_not_foreseen():
    trace = draw(n=300, n_iterations=200, concentration=1e6, noise_std=0.0, drift_std=0.2,
                 drift_memory=0.9, max_length=1e9)  # fmt: skip
    log = np.log(trace.length / trace.scenarios[0].nominal_length)
    assert log.mean() == pytest.approx(0.0, abs=0.01)
    assert log.std() == pytest.approx(0.2, rel=0.05)
    together = np.corrcoef(log[1:].ravel(), log[:-1].ravel())[0, 1]
    assert together == pytest.approx(0.9, abs=0.02)
    foreseen = np.log(trace.expected_length / trace.scenarios[0].nominal_length)
    assert foreseen[1:] == pytest.approx(0.9 * log[:-1], abs=0.01)


@pytest.mark.parametrize("load", [0.0, 0.1, 0.2, 0.3, 0.45])
def test_other_jobs_take_their_share_in_the_mean(load):
    trace = draw(n=400, n_iterations=100, load=load)
    work_s = trace.actual.arriving_s + trace.actual.late_arriving_s
    assert work_s.mean() / unit_s(trace.scenarios[0]) == pytest.approx(load, rel=0.05)
    assert trace.expected.late_arriving_s.mean() == pytest.approx(
        trace.actual.late_arriving_s.mean(), rel=0.05
    )


@pytest.mark.parametrize("load", [0.01, 0.03, 0.6, 0.9])
def test_light_and_heavy_loads_are_met_as_well(load):
    trace = draw(n=400, n_iterations=100, load=load)
    work_s = trace.actual.arriving_s + trace.actual.late_arriving_s
    assert work_s.mean() / unit_s(trace.scenarios[0]) == pytest.approx(load, rel=0.1)


def test_bursts_come_in_runs():
    trace = draw(n=400, n_iterations=100, load=0.25, calm=0.9)
    busy = trace.actual.arriving_s > 0
    assert busy.mean() == pytest.approx(0.5, abs=0.03)
    assert (~busy)[1:][~busy[:-1]].mean() == pytest.approx(0.9, abs=0.01)


def test_cards_fail_and_come_back():
    trace = draw(n=400, n_iterations=200, failure_rate=0.05, repair_iterations=4.0)
    lost, up = trace.actual.lost, trace.actual.cards_up
    assert (lost > 0).mean() == pytest.approx(0.05, rel=0.05)
    assert set(np.unique(up * 4)) <= {0.0, 1.0, 2.0, 3.0, 4.0}
    # One of those that are up is lost.
    failed = lost > 0
    assert (lost[failed] * up[failed] * 4) == pytest.approx(1.0)
    # In the long run as many are away as fail in the time of a repair.
    assert ((1 - up[20:]) * 4).mean() == pytest.approx(0.05 * 4.0, rel=0.1)
    steady = draw(n=10, failure_rate=0.0)
    assert (steady.actual.cards_up == 1.0).all()
    assert (steady.actual.lost == 0.0).all()


def test_without_cards_none_is_up():
    trace = draw(n=4, n_cards=0)
    assert (trace.actual.cards_up == 0.0).all()
    assert (trace.actual.card_idle_w == 0.0).all()


def test_picking_and_selecting_keep_the_episodes():
    scenarios = [replace(SCENARIO, n_rows=n) for n in (64, 128, 256)]
    trace = draw_trace(scenarios, np.random.default_rng(0))
    one = work_at(trace.actual, (3, 1))
    assert isinstance(one.generation_s, float)
    assert one.gpu_s[2] == trace.actual.gpu_s[2][3, 1]
    picked = arrays(select(trace, np.array([2, 0, 2])))
    for name, values in arrays(trace).items():
        axis = 0 if name in PER_EPISODE else 1
        assert np.array_equal(picked[name], np.take(values, [2, 0, 2], axis=axis)), name
    assert [s.n_rows for s in select(trace, np.array([2, 0])).scenarios] == [256, 64]


def test_scenarios_side_by_side_keep_their_own_costs():
    other = replace(SCENARIO, calibration="roofline", algorithm=Algorithm.GRPO)
    trace = draw_trace([SCENARIO, other], np.random.default_rng(0))
    for i, scenario in enumerate((SCENARIO, other)):
        reward_s = scenario.table.at(trace.length[:, i])[:, COLUMN["reward_s"]]
        assert trace.actual.gpu_s[0][:, i] == pytest.approx(reward_s, rel=1e-12)
    assert (trace.actual.critic_s[:, 1] == 0.0).all()
    assert (trace.actual.critic_s[:, 0] > 0.0).all()


def test_the_rows_of_an_adaptive_batch_do_not_change_once_it_is_made():
    trace = draw(n_iterations=2000, adaptive_batch=True, noise_std=0.5, drift_std=0.0)
    tokens = trace.n_rows * trace.length
    seconds_a_token = (trace.actual.gpu_s[0] / tokens).ravel()
    surprise = (trace.length / trace.expected_length).ravel()
    short, long = seconds_a_token[surprise < 0.7], seconds_a_token[surprise > 1.4]
    assert short.mean() == pytest.approx(long.mean(), rel=0.05)
