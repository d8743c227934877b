"""Figures for a trainer's log: sums that add up, and nothing where nothing is known."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ecorl.edi import EdiMatrix
from ecorl.records import Action, Provenance, Stage, StageResult
from ecorl.runtime.energy.log_figures import (
    ACTIONS,
    LEGEND,
    PROVENANCES,
    await_settled,
    log_figures,
)
from ecorl.runtime.energy.run_energy import RunEnergy
from ecorl.runtime.energy.stage_energy import card_energy
from ecorl.runtime.handles import RoleTotals, RunTotals

ROLES = ("generation", "reward:math", "reward:other", "actor_train")

one_execution = st.tuples(
    st.sampled_from(ROLES),
    st.none() | st.floats(0, 1e6),
    st.integers(0, 5_000),
)


def added(totals: RunTotals, execution) -> RunTotals:
    """The run after one more execution, counted by hand."""
    role, energy_j, n_tokens = execution
    own = totals.roles.get(role, RoleTotals(0.0, 0, 0, 0, None))
    more = replace(own, n_executions=own.n_executions + 1)
    if energy_j is None:
        more = replace(more, n_missing=own.n_missing + 1)
    else:
        more = replace(
            more,
            energy_j=own.energy_j + energy_j,
            n_output_tokens=own.n_output_tokens + n_tokens,
            provenance=Provenance.MEASURED,
        )
    return replace(totals, roles={**totals.roles, role: more}, provenance=Provenance.MEASURED)


def run_through(totals: RunTotals, executions) -> RunTotals:
    for execution in executions:
        totals = added(totals, execution)
    return totals


@given(st.lists(one_execution), st.lists(one_execution))
def test_figures_are_those_of_the_executions_since_the_last_log(earlier, since):
    before = run_through(RunTotals(), earlier)
    figures = log_figures(before, run_through(before, since))
    for role in ROLES:
        own = [(e, n) for r, e, n in since if r == role]
        key = f"energy/{role.replace(':', '.')}_j"
        known = [(e, n) for e, n in own if e is not None]
        assert (key in figures) == (bool(own) and len(known) == len(own))
        if key in figures:
            assert figures[key] == pytest.approx(sum(e for e, _ in known), abs=1e-6)
        n_tokens = sum(n for _, n in known)
        assert (f"{key}_per_token" in figures) == (n_tokens > 0)
        if n_tokens:
            price = sum(e for e, _ in known) / n_tokens
            assert figures[f"{key}_per_token"] == pytest.approx(price, abs=1e-6)
    assert all(math.isfinite(value) for value in figures.values())


@given(st.lists(st.lists(one_execution), max_size=5))
def test_logs_add_up_to_the_run(parts):
    states = [RunTotals()]
    for part in parts:
        known = [(r, e or 0.0, n) for r, e, n in part]
        states.append(run_through(states[-1], known))
    logs = [log_figures(a, b) for a, b in pairwise(states)]
    for role, sums in states[-1].roles.items():
        key = f"energy/{role.replace(':', '.')}_j"
        total_j = sum(log.get(key, 0.0) for log in logs)
        assert total_j == pytest.approx(sums.energy_j, abs=1e-6)


@given(st.none() | st.floats(0, 1e9), st.none() | st.floats(0, 1e9), st.none() | st.floats(0, 1e4))
def test_a_missing_figure_has_no_key(drawn_j, beside_j, power_w):
    now = RunTotals(
        drawn_j=drawn_j, beside_j=beside_j, gpu_power_w=power_w, provenance=Provenance.MODELLED
    )
    told = {"energy/total_j": drawn_j, "energy/idle_j": beside_j, "power/gpu_w": power_w}
    expected = {key: value for key, value in told.items() if value is not None}
    if expected:
        expected["energy/provenance"] = 3.0
    assert log_figures(RunTotals(), now) == expected


def test_logs_say_how_far_their_energies_are_whole():
    before = RunTotals()
    now = replace(run_through(before, [("generation", 5.0, 10)]), up_to_step=7)
    assert log_figures(before, now)["energy/up_to_step"] == 7.0
    assert "energy/up_to_step" not in log_figures(before, RunTotals(up_to_step=7, g_per_kwh=400.0))


class Late:
    """A run whose last executions settle one by one."""

    def __init__(self, n_waiting):
        self.n_waiting, self.n_asked = n_waiting, 0

    def totals(self):
        self.n_asked += 1
        self.n_waiting -= 1
        return RunTotals(n_waiting=max(0, self.n_waiting))


def test_a_last_log_waits_for_what_is_not_settled():
    late = Late(4)
    await_settled(late)
    assert late.n_asked == 4
    await_settled(endless := Late(10**9), patience_s=0.0)
    assert endless.n_asked == 1


def executed(step, energy_j=2.0):
    energy = card_energy(("card",), 0.0, 1.0, energy_j, Provenance.MODELLED)
    return StageResult(
        step, Stage.REWARD, Action.FPGA, ("card",), "card", 0.0, 1.0, 1.0, Provenance.MODELLED,
        1.0, 0.0, 4, 40, 40, energy,
    )  # fmt: skip


@given(st.data())
def test_sums_are_whole_up_to_the_step_before_the_first_that_is_missing(data):
    """Whatever the order in which they settle: counted by hand."""
    energy = RunEnergy(EdiMatrix(0.05, 0))
    assert energy.totals([]).up_to_step is None
    under_way, ended, waiting = {}, [], []

    step = 4
    for serial in range(data.draw(st.integers(1, 15))):
        does = data.draw(st.sampled_from(["begin", "end", "end", "drop", "settle", "settle"]))
        if does == "settle" and waiting:
            energy.add(executed(waiting.pop(data.draw(st.integers(0, len(waiting) - 1)))))
        elif does in ("end", "drop") and under_way:
            number = data.draw(st.sampled_from(sorted(under_way)))
            of = under_way.pop(number)
            if does == "drop":
                energy.drop(number)
                continue
            energy.expect(number, of)
            ended.append(of)
            waiting.append(of)
        else:
            step += data.draw(st.integers(0, 2))
            energy.begin(serial, step)
            under_way[serial] = step
        now, missing = energy.totals([]), [*waiting, *under_way.values()]
        assert now.n_waiting == len(waiting)
        assert now.up_to_step == (min(missing) - 1 if missing else max(ended))


def test_executions_that_are_told_again_do_not_wait():
    """A scheduler that is started anew is told of some that it does not expect."""
    energy = RunEnergy(EdiMatrix(0.05, 0))
    energy.add(executed(3))
    energy.expect(1, 3)
    energy.expect(2, 4)
    energy.add(executed(4))
    now = energy.totals([])
    assert (now.up_to_step, now.n_waiting) == (4, 0)


def test_placements_are_told_without_any_energy():
    now = RunTotals(placed={"reference": Action.CONCURRENT, "reward:math": Action.FPGA})
    assert log_figures(RunTotals(), now) == {"device/reference": 2.0, "device/reward.math": 1.0}


def test_the_numbers_are_those_of_the_legend():
    assert ACTIONS == (Action.GPU, Action.FPGA, Action.CONCURRENT)
    assert "0 gpu, 1 fpga, 2 concurrent" in LEGEND
    assert "0 measured, 1 replayed, 2 emulated, 3 modelled, 4 published" in LEGEND
    assert PROVENANCES[3] is Provenance.MODELLED


def test_a_stage_that_did_not_run_has_no_figures():
    before = run_through(RunTotals(), [(str(Stage.GENERATION), 5.0, 10)])
    assert log_figures(before, before) == {}
