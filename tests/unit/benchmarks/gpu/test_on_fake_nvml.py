"""The benchmarks of a GPU run whole, on a fake one whose truth is known, computing on the CPU."""

from __future__ import annotations

import importlib
import time
import weakref
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from benchmarks.gpu.loads.bursts import Burner
from benchmarks.gpu.loads.stages import Batch
from benchmarks.gpu.sensing.meter import EnergyMeter
from benchmarks.gpu.sensing.tracer import COUNTER, WHOLE, Tracer, readable
from benchmarks.gpu_gears import GearLoad
from benchmarks.nvml import Plan
from ecorl.control import Gear
from ecorl.drivers.instruments import INSTRUMENTS
from ecorl.drivers.nvml import NvmlDriver
from tests.fakes.nvml.counted import Counted
from tests.fakes.nvml.fake_nvml import true_energy_j

ROOT = Path(__file__).resolve().parents[4]
CPU = torch.device("cpu")
MEAN_W = 100.0 + 0.25 * 500.0
PLAN = Plan(0.4, 0.3, 1.0, (2, 0.5), {0.4: 3}, 0.2, 2, 0.5, (0.11,))
BATCHES = (
    Batch("generation", 2, 64, 65), Batch("generation", 2, 64, 65, is_eager=True),
    Batch("scoring", 2, 32), Batch("training", 2, 32),
)  # fmt: skip
OPTIONS = SimpleNamespace(quick=True)


class CpuInPlaceOfCuda:
    """PyTorch with the CPU under the name of a GPU."""

    cuda = SimpleNamespace(
        is_available=lambda: True, is_initialized=lambda: False, synchronize=lambda: None,
        empty_cache=lambda: None,
    )  # fmt: skip

    def device(self, name):
        return CPU

    def __getattr__(self, name):
        return getattr(torch, name)


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))

    def load(name):
        found = importlib.import_module(f"benchmarks.{name}")
        monkeypatch.setattr(found, "torch", CpuInPlaceOfCuda())
        return found

    return load


def by_id(figures):
    assert len({f.id for f in figures}) == len(figures)
    return {f.id: f for f in figures}


def test_windows_have_the_joules_of_the_counter(one_gpu, monkeypatch):
    counted = Counted(monkeypatch)
    with EnergyMeter(lambda: None) as meter:
        time.sleep(0.2)
        windows = meter.measure(lambda: time.sleep(0.01), n_repetitions=2, length_s=0.6)
        idle = meter.idle(0.5)
    for window in (*windows, idle):
        edges_s = (window.energy.t_start_s, window.energy.t_end_s)
        late_w = counted.late_j(edges_s, true_energy_j) / (edges_s[1] - edges_s[0])
        assert window.power_w == pytest.approx(MEAN_W, rel=0.05, abs=late_w)
        assert window.state.sm_clock_hz == 1.98e9
    assert windows[0].n_calls >= 1
    assert windows[0].time_s >= 0.6


def test_a_tracer_reads_from_another_process(one_gpu):
    driver = NvmlDriver()
    driver.open()
    device = driver.device(0)
    assert set(readable(driver, device)) > set(INSTRUMENTS)
    one_gpu.set("devices 1", "field 186 2 3")
    assert "NotSupported" in readable(driver, device).values()
    driver.close()
    with Tracer(device.uuid, INSTRUMENTS[:1], is_costly=True) as tracer:
        time.sleep(0.3)
    trace = tracer.trace
    assert len(trace.points[COUNTER]) == len(trace.call_s[WHOLE]) > 1
    for point, call_s in zip(trace.points[COUNTER], trace.call_s[COUNTER], strict=True):
        begin_s, end_s = point.t_s - 0.5 * call_s, point.t_s + 0.5 * call_s
        # The counter tells whole millijoules.
        assert true_energy_j(begin_s) - 0.002 <= point.value <= true_energy_j(end_s) + 0.001


@pytest.mark.slow
def test_the_sensors_benchmark(one_gpu, script, monkeypatch):
    nvml = script("nvml")
    monkeypatch.setattr(nvml, "QUICK", PLAN)
    monkeypatch.setattr(nvml, "Burner", lambda device: Burner(CPU, side=32))
    config, figures = nvml.measure(OPTIONS)
    found = by_id(figures)
    assert config["driver"] == "999.0-fake"
    assert found["nvml.idle.before_context_w"].value == pytest.approx(MEAN_W, rel=0.1)
    assert found["nvml.call_idle.energy_counter.p99_s"].value > 0
    assert found["nvml.gap.0.4s.ecorl_counter_over_fine"].value == pytest.approx(0, abs=0.1)
    assert found["nvml.phase.own.energy_counter"].value is not None
    assert found["nvml.sampler_cpu_share"].value is not None


@pytest.mark.deep
@pytest.mark.slow
def test_the_stages_benchmark(one_gpu, script, monkeypatch):
    stages = script("gpu_stages")
    monkeypatch.setattr(stages, "SIZE", "160k")
    monkeypatch.setattr(stages, "QUICK", BATCHES)
    monkeypatch.setattr(stages, "QUICK_LENGTH_S", 0.2)
    monkeypatch.setattr(stages, "FUSES", False)
    monkeypatch.setattr(stages, "LOOPED", (2, 16))
    config, figures = stages.measure(OPTIONS)
    found = by_id(figures)
    names = {"generation.b2", "decode.b2", "generation.b2_eager", "reward.b2x32",
             "reference.b2x32", "actor_train.b2x32"}  # fmt: skip
    assert set(config["workloads"]) == names
    for name in names:
        power_w = found[f"gpu_stages.{name}.power_w"].value
        assert power_w == pytest.approx(MEAN_W, rel=0.2)
        joules = found[f"gpu_stages.{name}.j_per_token"].value
        assert joules * found[f"gpu_stages.{name}.tokens_per_s"].value == pytest.approx(
            power_w, rel=0.2
        )
    assert len(config["edi"]["cells"]) == len(names)
    assert found["gpu_stages.attached.short.step_ratio"].value > 0


def test_the_gears_benchmark(one_gpu, script, monkeypatch):
    gears, models, held = script("gpu_gears"), [], []

    def uncompiled(model, shape, gear):
        held.append(sum(one() is not None for one in models))
        models.append(weakref.ref(model))
        load = GearLoad(f"compiled.b{shape[0]}x{shape[1]}", gear, 64, "nothing")
        return load, lambda: model.norm.weight.sum()

    monkeypatch.setattr(gears, "SIZE", "160k")
    monkeypatch.setattr(gears, "SHAPES", ((2, 32),))
    monkeypatch.setattr(gears, "QUICK_LENGTH_S", 0.2)
    monkeypatch.setattr(gears, "computes_fp8", lambda device: True)
    monkeypatch.setattr(gears, "compiled_load", uncompiled)
    monkeypatch.setattr(gears, "product_loads", lambda shape, device: ())
    found = by_id(gears.measure(OPTIONS)[1])
    for gear in ("fp32", "fp16", "fp8"):
        assert found[f"gpu_gears.step.b2x32.{gear}.time_ratio"].value > 0
    assert found["gpu_gears.compiled.b2x32.fp8.energy_ratio"].value > 0
    # A GPU holds two such models with their optimizers at most.
    assert held == [0, 0]


def test_a_compiled_layer_is_traced_whole():
    """No break in the graph of a layer, neither in BF16 nor with torchao's FP8."""
    from benchmarks.gpu.loads.llama import Llama
    from ecorl.devices.llama import model_shape

    shape = replace(model_shape("160k"), n_layers=1)
    model = Llama(shape, 33, device=CPU, dtype=torch.float32)
    expected = model(torch.arange(32)[None])
    model.blocks[0].compile(backend="eager", fullgraph=True)
    torch.testing.assert_close(model(torch.arange(32)[None]), expected)
    assert Gear.FP8.is_low


def test_without_a_gpu_it_is_one_line(script, monkeypatch, capsys):
    from benchmarks.gpu.sensing import meter
    from ecorl.errors import LibraryNotFound

    def nothing(self):
        raise LibraryNotFound("no library")

    monkeypatch.setattr(meter.NvmlDriver, "open", nothing)
    for name in ("nvml", "gpu_stages", "gpu_gears"):
        found = script(name)
        assert found.run_benchmark(name, found.measure, ["--quick"]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert "NVIDIA" in line
