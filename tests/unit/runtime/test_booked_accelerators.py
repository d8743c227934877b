"""Devices in the card's place that compute themselves: their time is measured."""

from __future__ import annotations

import time

import numpy as np
import pytest

from ecorl.config import Config, FaultInjection
from ecorl.drivers.nvml import NvmlDriver
from ecorl.edi import EdiMatrix
from ecorl.engines.protocol import EngineReport
from ecorl.records import (
    Action,
    EnergyMethod,
    Provenance,
    Stage,
    StageEnergy,
    StageResult,
)
from ecorl.runtime.energy.run_energy import RunEnergy
from tests.fakes.nvml.fake_nvml import (
    BASE_W,
    PEAK_W,
    fake_nvml,  # noqa: F401
    fake_nvml_library,  # noqa: F401
)


def bits(values):
    return [np.asarray(v).tobytes() for v in values]


TORCH = {"engine": {"offload": {"type": "torch"}}, "devices": {"accelerator": "host_cpu"}}
MEASURED_REPORT = EngineReport(0.2, None, Provenance.MEASURED, 0.2)


def test_an_accelerator_on_the_host_is_booked_by_its_measured_time(bench, toys, use_engines):
    faults = [FaultInjection(kind="raise", calls=(0,))]
    use_engines(toys.threaded(faults, report=MEASURED_REPORT))
    runtime = bench.build(Config.model_validate({**toys.make_config().model_dump(), **TORCH}))
    runtime.start()
    batch = toys.make_batch(3)
    bench.step(1, batch)
    assert bits(bench.step(2, batch)) == bits(toys.answer(batch, Stage.REWARD).values)
    runtime.close()
    results = bench.executions()
    # Both of the engine, and that of the exact path, which waits for the readings behind it.
    (again,) = [r for r in results if r.action is Action.GPU]
    assert (again.iteration, again.n_sequences, again.fault) == (1, 3, None)
    crashed, answered = (r for r in results if r is not again)
    for result in (crashed, answered):
        assert (result.device, result.device_ids) == ("host_cpu", (toys.here("host_process"),))
        assert result.time_provenance is Provenance.MEASURED
        assert result.energy.energy_j is None
    assert (crashed.fault, crashed.time_s) == ("EngineCrashed", None)
    assert (answered.fault, answered.time_s) == (None, 0.2)
    assert runtime.edi.cells() == ()
    with bench.reader() as reader:
        assert not [d for d in reader.devices() if d.provenance is Provenance.MODELLED]


class Watched:
    """A policy that keeps the states it is asked about."""

    name = "watched"

    def __init__(self, inner):
        self.inner, self.states = inner, []

    def propose(self, state):
        self.states.append(state)
        return self.inner.propose(state)


def test_a_policy_learns_how_long_an_accelerator_without_a_meter_takes(bench, toys, use_engines):
    use_engines(toys.threaded(report=MEASURED_REPORT))
    runtime = bench.build(Config.model_validate({**toys.make_config().model_dump(), **TORCH}))
    watched = runtime._scheduler._policy = Watched(runtime._scheduler._policy)
    runtime.start()
    for iteration in range(1, 5):
        batch = toys.make_batch(3, seed=iteration)
        bench.step(iteration, batch)
        generation = bench.start(toys.work_of(batch, Stage.GENERATION))
        time.sleep(0.01)
        runtime.on_stage_end(generation)
        limit_s = time.monotonic() + 240  # until its readings are in, which hold no figure
        while sum(t.count for t in runtime.edi.times()) < 2 * iteration:
            assert time.monotonic() < limit_s
            time.sleep(0.01)
            runtime.settle()
    asked = [state for state in watched.states if state.stage is Stage.REWARD]
    assert asked[0].paths == ()
    for batch, state in enumerate(asked[1:], start=1):
        (card,) = [cost for cost in state.paths if cost.on_card]
        assert (card.stage, card.count, card.n_recent) == (Stage.REWARD, batch, batch - 1)
        assert (card.energy_j_per_token, card.recent_j_per_token) == (None, None)
        assert card.provenance is Provenance.MEASURED
        assert (card.recent_s_per_token is None) == (batch == 1)
    n_tokens = sum(toys.make_batch(3).n_completion)
    assert card.recent_s_per_token == pytest.approx(0.2 / n_tokens)
    # The host's own stages are not metered here either, and have a column of their own.
    (own,) = [cost for cost in asked[-1].paths if not cost.on_card]
    assert (own.stage, own.energy_j_per_token) == (Stage.GENERATION, None)
    assert own.recent_s_per_token >= 0.01 / n_tokens
    assert runtime.edi.cells() == ()
    assert EdiMatrix.from_json(runtime.edi.to_json()) == runtime.edi


def test_a_gpu_in_the_card_s_place_is_charged_its_own_joules(
    bench,
    toys,
    use_engines,
    fake_nvml,  # noqa: F811
    monkeypatch,
):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    fake_nvml.set("devices 2")
    for name, value in fake_nvml.child_environment().items():  # of the sampler's process
        monkeypatch.setenv(name, value)
    driver = NvmlDriver()
    driver.open()
    uuids = [gpu.uuid for gpu in driver.devices()]
    driver.close()
    monkeypatch.setattr("ecorl.runtime.equipment.accelerator.check_device", lambda device: None)
    monkeypatch.setattr("ecorl.runtime.equipment.accelerator.cuda_uuid", lambda device: uuids[1])
    use_engines(toys.threaded(delay_s=1.0, report=MEASURED_REPORT))
    table = {
        "engine": {"offload": {"type": "torch", "device": "cuda:1"}},
        "devices": {"accelerator": "l4"},
        "telemetry": {"gpu": {"type": "auto"}},
    }
    data = {**toys.make_config().model_dump(), **table}
    runtime = bench.build(Config.model_validate(data))
    runtime.start()
    limit_s = time.monotonic() + 240
    while runtime.totals().drawn_j is None:  # until all devices are read
        assert time.monotonic() < limit_s
        time.sleep(0.05)
    bench.step(1, toys.make_batch(3))
    own_w = runtime.totals().gpu_power_w
    assert own_w is not None
    assert own_w < BASE_W  # the host's alone
    runtime.close()
    (result,) = bench.executions()
    assert (result.device, result.device_ids) == ("l4", (toys.here("gpu1"),))
    assert (result.time_s, result.time_provenance) == (0.2, Provenance.MEASURED)
    assert result.energy.provenance is Provenance.MEASURED
    assert BASE_W < result.energy.mean_power_w < PEAK_W
    with bench.reader() as reader:
        devices = {d.device_id: d for d in reader.devices()}
        assert devices[toys.here("gpu1")].profile == "l4"
        assert devices[toys.here("cpu0")].profile == "host_cpu"


def execution(action, energy_j):
    energy = StageEnergy(
        ("gpu1",), 0.0, 1.0, energy_j, energy_j, None, None, 9, 1.0, EnergyMethod.INTEGRAL,
        Provenance.MEASURED,
    )  # fmt: skip
    return StageResult(
        1, Stage.REWARD, action, ("gpu1",), "h100_sxm", 0.0, 1.0, 1.0, Provenance.MEASURED, 1.0,
        0.0, 4, 40, 10, energy,
    )  # fmt: skip


@pytest.mark.parametrize("framework_on", ["h100_sxm", "l4"])
def test_an_accelerator_of_the_trainer_s_own_kind_does_not_change_the_price_of_its_path(
    framework_on,
):
    energy = RunEnergy(EdiMatrix(), framework_on=[framework_on])
    energy.add(execution(Action.GPU, 100.0))
    energy.add(execution(Action.CONCURRENT, 300.0))
    found = {cell.device: cell.mean_j_per_token for cell in energy.edi.cells()}
    if framework_on == "l4":
        assert found == {"h100_sxm": 20.0}
        return
    assert found == {"h100_sxm": 10.0, "h100_sxm (accelerator)": 30.0}
    (path,) = energy.path_costs("h100_sxm", {})
    assert (path.energy_j_per_token, path.count) == (10.0, 1)
