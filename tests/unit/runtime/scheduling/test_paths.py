"""A policy is told what the run has measured so far, on both paths."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from ecorl.edi import EdiMatrix, edi_reading
from ecorl.records import (
    EVALUATION,
    Action,
    EnergyMethod,
    Provenance,
    Stage,
    StageEnergy,
    StageResult,
)
from ecorl.runtime.checkpoints import read_state, write_state
from ecorl.runtime.energy.run_energy import RunEnergy
from ecorl.runtime.scheduling.iterations import OpenIterations, new_iteration


def executed(device="gpu", stage=Stage.REWARD, time_s=1.0, **changes):
    energy = StageEnergy(
        ("x0",), 0.0, time_s, 10.0, None, None, None, 5, 1.0, EnergyMethod.INTEGRAL,
        Provenance.MEASURED,
    )  # fmt: skip
    fields = {
        "iteration": 1, "stage": stage, "action": Action.GPU, "device_ids": ("x0",),
        "device": device, "t_start_s": 0.0, "t_end_s": time_s, "time_s": time_s,
        "time_provenance": Provenance.MEASURED, "host_time_s": time_s, "wait_s": 0.0,
        "n_sequences": 2, "n_tokens": 20, "n_output_tokens": 10, "energy": energy,
    }  # fmt: skip
    return StageResult(**(fields | changes))


def test_costs_are_of_both_paths_and_of_the_devices_that_serve_a_role():
    energy = RunEnergy(EdiMatrix())
    for batch in range(3):
        energy.add(executed(), batch=batch)
        energy.add(executed("card", time_s=2.0), batch=batch)
        energy.add(executed("other", Stage.GENERATION), batch=batch)
    assert [c.on_card for c in energy.path_costs("gpu", {})] == [False]
    found = energy.path_costs("gpu", {Stage.GENERATION: "other"}, "card", 5)
    assert [(c.stage, c.on_card, c.recent_s_per_token) for c in found] == [
        (Stage.REWARD, False, 0.1),
        (Stage.GENERATION, False, 0.1),
        (Stage.REWARD, True, 0.2),
    ]
    assert {(c.count, c.n_recent, c.age, c.mean_length) for c in found} == {(3, 2, 3, 5.0)}


def test_a_fault_is_no_reading_of_the_card():
    energy = RunEnergy(EdiMatrix())
    energy.add(executed("card", fault="EngineTimeout"), batch=0)
    assert energy.path_costs("gpu", {}, "card") == ()


def test_times_are_learnt_on_both_paths_where_nobody_meters_energy():
    energy = RunEnergy(EdiMatrix())
    for batch in range(3):
        energy.add(executed(energy=None), batch=batch)
        unread = replace(executed("card", time_s=2.0).energy, energy_j=None, mean_power_w=None)
        energy.add(executed("card", time_s=2.0, energy=unread), batch=batch)
        evaluated = {"stage": Stage.GENERATION, "role_name": EVALUATION}
        energy.add(executed(energy=None, **evaluated), batch=batch)
    assert energy.edi.cells() == ()
    found = energy.path_costs("gpu", {}, "card", 3)
    assert [(c.stage, c.on_card, c.recent_s_per_token) for c in found] == [
        (Stage.REWARD, False, 0.1),
        (Stage.REWARD, True, 0.2),
    ]
    for cost in found:
        assert (cost.energy_j_per_token, cost.recent_j_per_token) == (None, None)
        assert (cost.count, cost.n_recent, cost.age) == (3, 2, 1)
        assert cost.provenance is Provenance.MEASURED
    sums = energy.totals(())
    assert (sums.roles[Stage.REWARD].energy_j, sums.roles[Stage.REWARD].n_missing) == (0.0, 6)
    assert sums.provenance is None


def test_a_resumed_run_goes_on_with_the_times(tmp_path):
    before = RunEnergy(EdiMatrix())
    for batch in range(2):
        before.add(executed("card", energy=None), batch=batch)
    write_state(tmp_path, 2, before.edi_json())
    resumed = RunEnergy(read_state(tmp_path)[1])
    for energy in (before, resumed):
        energy.add(executed("card", energy=None, time_s=2.0), batch=2)
    (cost,) = resumed.path_costs("gpu", {}, "card", 3)
    assert (cost.count, cost.n_recent, cost.age) == (3, 2, 1)
    assert resumed.edi == before.edi


def test_a_fault_is_no_time_either():
    energy = RunEnergy(EdiMatrix())
    energy.add(executed("card", energy=None, fault="EngineTimeout"), batch=0)
    assert energy.edi == EdiMatrix()


def test_machines_that_share_a_stage_add_up_to_its_time():
    energy = RunEnergy(EdiMatrix())
    for _ in range(2):
        energy.add(executed("gpu", time_s=3.0, energy=None), share=0.25)
    (cost,) = energy.path_costs("gpu", {})
    assert cost.recent_s_per_token == pytest.approx(0.25 * 3.0 / 10)


@pytest.mark.parametrize("metered", [False, True])
def test_an_accelerator_of_the_framework_s_own_kind_is_found_as_the_card(metered):
    energy = RunEnergy(EdiMatrix(), framework_on=["gpu"])
    unmetered = {} if metered else {"energy": None}
    for batch in range(2):
        energy.add(executed(**unmetered), batch=batch)
        energy.add(executed(action=Action.CONCURRENT, time_s=3.0, **unmetered), batch=batch)
    found = energy.path_costs("gpu", {}, "gpu", 2)
    assert [(c.on_card, c.recent_s_per_token, c.count) for c in found] == [
        (False, 0.1, 2),
        (True, 0.3, 2),
    ]
    assert {c.recent_j_per_token is not None for c in found} == {metered}
    kept = energy.edi.cells() if metered else energy.edi.times()
    assert [cell.device for cell in kept] == ["gpu", "gpu (accelerator)"]


def test_an_iteration_knows_its_rollout_batch():
    open_now = OpenIterations()
    for number, batch in ((1, 0), (2, 0), (3, 1)):
        open_now.of(new_iteration(number, batch), lambda _: ())
    assert [open_now.batch(number) for number in (0, 1, 2, 3, 9)] == [0, 0, 0, 1, 8]


def test_the_cards_costs_reach_a_decision_from_the_second_execution_on(
    bench, toys, use_engines, monkeypatch
):
    use_engines(toys.threaded())
    runtime = bench.build()
    runtime.start()

    def paths(batch):
        return runtime._scheduler._paths(batch)

    assert paths(0) == ()
    for batch in range(3):
        bench.step(batch + 1, toys.make_batch(4, seed=batch))
        limit_s = time.monotonic() + 240
        while not paths(batch + 1) or paths(batch + 1)[-1].count <= batch:
            assert time.monotonic() < limit_s
            runtime._scheduler.settle()
            time.sleep(0.01)
        (cost,) = paths(batch + 1)
        assert (cost.stage, cost.on_card, cost.provenance) == (
            Stage.REWARD, True, Provenance.MODELLED,
        )  # fmt: skip
        assert (cost.count, cost.n_recent, cost.age) == (batch + 1, batch, 1)
        assert (cost.recent_s_per_token is None) == (batch == 0)
    lengths = [sum(toys.make_batch(4, seed=seed).n_completion) / 4 for seed in (1, 2)]
    assert cost.mean_length == pytest.approx(sum(lengths) / 2)
    restored = EdiMatrix.from_json(runtime._scheduler.edi.to_json())
    assert restored.path_costs("u55c", 3, on_card=True) == paths(3)


def test_a_reading_tells_rows_and_batch():
    seen = edi_reading(executed(), 4)
    assert (seen.n_sequences, seen.batch) == (2, 4)
    assert edi_reading(executed()).batch is None
