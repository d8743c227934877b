"""Executions whose devices are on several machines: who is charged, and with which work."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ecorl.devices import load_profile
from ecorl.edi import EdiMatrix
from ecorl.records import (
    Action,
    EnergyMethod,
    Provenance,
    Stage,
    StageEnergy,
    StageResult,
    StageWork,
)
from ecorl.runtime.energy.run_energy import RunEnergy
from ecorl.runtime.equipment.hardware import GpuPath
from ecorl.runtime.equipment.role_places import RolePlace, RolePlaces
from ecorl.runtime.handles import Span
from ecorl.runtime.scheduling.charges import DeviceCharges, portions, split_work

H100, H200 = load_profile("h100_sxm"), load_profile("h200")
WORK = StageWork(Stage.GENERATION, 5, 100, 41, 30)
SPANS = [Span(1.0, 2.0), Span(3.0, 4.0)]
TWO = (RolePlace(H100, ("gpu0",), 1), RolePlace(H200, ("gpu0", "gpu1"), 2, "far"))

weights = st.lists(st.integers(1, 64), min_size=1, max_size=8)


@dataclass
class Machine:
    """The part of a monitor that is asked for."""

    node: str
    ahead_s: float


def charges(*places, machines=(("home", 0.0), ("far", 100.0))):
    roles = RolePlaces({Stage.GENERATION: places} if places else {})
    monitors = {name: Machine(name, ahead_s) for name, ahead_s in machines}
    return DeviceCharges(GpuPath(H100, None, "", roles), monitors, "home")


# ---------------------------------------------------------------- work


@given(st.integers(0, 10**9), weights)
def test_portions_add_up_and_are_proportional_within_one(n, ws):
    found = portions(n, ws)
    assert sum(found) == n
    for part, weight in zip(found, ws, strict=True):
        assert part >= 0
        assert abs(part * sum(ws) - n * weight) < sum(ws)


@given(st.integers(0, 10**6), weights)
def test_who_weighs_more_gets_no_less(n, ws):
    found = portions(n, ws)
    both = sorted(zip(ws, found, strict=True))
    assert all(one <= other for (w, one), (v, other) in pairwise(both) if w < v)


def test_portions_keep_the_order_of_the_weights():
    assert portions(10, [1, 2, 1]) == [3, 5, 2]
    assert portions(7, [4, 1, 2]) == [4, 1, 2]
    assert portions(1, [1, 3]) == [0, 1]


@given(st.integers(0, 99), st.integers(0, 9999), st.integers(0, 999), weights)
def test_parts_of_work_add_up_to_it(n_rows, n_tokens, n_output, ws):
    work = replace(WORK, n_sequences=n_rows, n_tokens=n_tokens, n_output_tokens=n_output)
    parts = split_work(work, ws)
    assert len(parts) == len(ws)
    for field, whole in (
        ("n_sequences", n_rows), ("n_tokens", n_tokens), ("n_output_tokens", n_output),
    ):  # fmt: skip
        assert sum(getattr(part, field) for part in parts) == whole
    assert {(p.stage, p.role_name, p.max_length, p.model) for p in parts} == {
        (work.stage, work.role_name, work.max_length, work.model)
    }


# ---------------------------------------------------------------- charges


def test_each_machine_is_charged_its_devices_in_its_clock_with_its_share():
    own, far = charges(*TWO).charged(WORK, SPANS)
    assert (own.node, own.device, own.work) == (
        "home",
        "h100_sxm",
        replace(WORK, n_sequences=2, n_tokens=33, n_output_tokens=14),
    )
    assert own.spans == [replace(span, device_ids=("gpu0",)) for span in SPANS]
    assert (far.node, far.device) == ("far", "h200")
    assert (far.work.n_sequences, far.work.n_tokens, far.work.n_output_tokens) == (3, 67, 27)
    ids = ("gpu0", "gpu1")
    assert far.spans == [Span(101.0, 102.0, ids), Span(103.0, 104.0, ids)]
    assert charges(*TWO).nodes(Stage.GENERATION) == ["home", "far"]


def test_times_may_be_told_in_another_machine_s_clock():
    own, far = charges(*TWO).charged(WORK, [Span(101.0, 102.0)], "far")
    assert (own.spans[0].t_start_s, far.spans[0].t_start_s) == (1.0, 101.0)


def test_a_machine_without_a_row_still_has_its_part():
    parts = charges(*TWO).charged(replace(WORK, n_sequences=1), SPANS)
    assert [part.work.n_sequences for part in parts] == [0, 1]
    assert all(part.spans for part in parts)


def test_what_the_trainer_s_own_devices_do_stays_with_the_machine_that_told():
    (part,) = charges(*TWO).charged(replace(WORK, stage=Stage.CRITIC), SPANS, "far")
    assert (part.node, part.spans, part.device) == ("far", SPANS, "h100_sxm")
    assert charges(*TWO).nodes(Stage.CRITIC) == ["home"]


@pytest.mark.parametrize("places", [TWO, TWO[1:]])
def test_where_a_machine_is_not_of_the_run_the_energy_is_missing_as_a_whole(places):
    alone = charges(*places, machines=[("home", 0.0)])
    (part,) = alone.charged(WORK, SPANS)
    assert (part.node, part.work) == ("home", WORK)
    assert [span.device_ids for span in part.spans] == [(), ()]
    assert alone.nodes(Stage.GENERATION) == ["home"]


# ---------------------------------------------------------------- prices


def result(node, work, energy_j, action=Action.GPU):
    energy = StageEnergy(
        device_ids=("gpu0",), t_start_s=0.0, t_end_s=2.0, energy_j=energy_j,
        mean_power_w=energy_j / 2.0, counter_energy_j=energy_j, integral_energy_j=energy_j,
        n_samples=9, coverage=1.0, method=EnergyMethod.COUNTER, provenance=Provenance.MEASURED,
    )  # fmt: skip
    return StageResult(
        iteration=1, stage=work.stage, action=action, device_ids=("gpu0",), device="h100_sxm",
        t_start_s=0.0, t_end_s=2.0, time_s=2.0, time_provenance=Provenance.MEASURED,
        host_time_s=2.0, wait_s=0.0, n_sequences=work.n_sequences, n_tokens=work.n_tokens,
        n_output_tokens=work.n_output_tokens, energy=energy, node=node,
    )  # fmt: skip


def test_a_token_s_price_is_that_of_the_stage_and_not_of_its_parts():
    asked = charges(TWO[0], replace(TWO[1], profile=H100))
    energy = RunEnergy(EdiMatrix())
    work = replace(WORK, n_output_tokens=300)
    for part, energy_j in zip(asked.charged(work, SPANS), (200.0, 400.0), strict=True):
        one = result(part.node, part.work, energy_j)
        energy.add(one, asked.share(one))
    (cost,) = energy.path_costs("h100_sxm", {Stage.GENERATION: "h100_sxm"})
    # 600 J and 2 s of the stage, over its 300 tokens.
    assert cost.energy_j_per_token == pytest.approx(600.0 / 300)
    assert cost.time_s_per_token == pytest.approx(2.0 / 300)


def test_only_a_part_has_a_share():
    asked = charges(*TWO)
    assert asked.share(result("home", WORK, 1.0)) == pytest.approx(1 / 3)
    assert asked.share(result("far", WORK, 1.0)) == pytest.approx(2 / 3)
    assert asked.share(result("far", WORK, 1.0, Action.CONCURRENT)) == 1.0
    assert asked.share(result(None, WORK, 1.0)) == 1.0
    assert asked.share(result("home", replace(WORK, stage=Stage.CRITIC), 1.0)) == 1.0
    assert charges(TWO[0]).share(result("home", WORK, 1.0)) == 1.0
    # A scheduler that was started anew hears of executions before it knows its machines.
    assert charges(*TWO, machines=()).share(result("far", WORK, 1.0)) == pytest.approx(2 / 3)
