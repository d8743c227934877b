"""Figures of windows whose joules are known."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from benchmarks.gpu.attached import ATTACHED, PLAIN
from benchmarks.gpu.facts import slug
from benchmarks.gpu.loads.stages import Workload, half_new
from benchmarks.gpu.sensing.meter import Window, window_facts
from benchmarks.gpu.stage_table import StageTable
from benchmarks.gpu_gears import GearLoad, gear_figures, layer_products
from benchmarks.gpu_stages import LoopTime, attached_figures
from benchmarks.nvml import phase_figure
from ecorl.control import Gear
from ecorl.devices.llama import model_shape
from ecorl.drivers.instruments import BoardState
from ecorl.records import EnergyMethod, Provenance, Stage, StageEnergy

SHAPE = model_shape("1b")


def window(energy_j, time_s=2.0, n_calls=10):
    power_w = None if energy_j is None else energy_j / time_s
    energy = StageEnergy(
        ("gpu0",), 0.0, time_s, energy_j, power_w, energy_j, energy_j and 1.02 * energy_j, 20, 1.0,
        EnergyMethod.COUNTER, Provenance.MEASURED,
    )  # fmt: skip
    return Window(time_s, n_calls, energy, BoardState(1.9e9, 50.0, 4))


def by_id(figures):
    assert len({f.id for f in figures}) == len(figures)
    return {f.id: f for f in figures}


def training(n_rows=8, length=512):
    work = half_new(Stage.ACTOR_TRAIN, SHAPE, n_rows, length)
    return Workload(f"actor_train.b{n_rows}x{length}", work, "a step", work.n_tokens)


def table(gpu_name):
    meter = SimpleNamespace(device=SimpleNamespace(name=gpu_name))
    return StageTable(meter, "1b", SHAPE, 3, 1.0)


def test_joules_watts_and_tokens_agree():
    stages = table("A GPU nobody knows")
    stages.add(training(), [window(1000.0), window(1200.0), window(1100.0)])
    found = {id.rpartition(".")[2]: f for id, f in by_id(stages.figures).items()}
    n_tokens = 10 * 8 * 512
    assert found["j_per_token"].value == pytest.approx(1100.0 / n_tokens)
    assert found["power_w"].value == pytest.approx(550.0)
    assert found["tokens_per_s"].value == pytest.approx(n_tokens / 2.0)
    assert found["tokens_per_j"].value == pytest.approx(n_tokens / 1100.0)
    # Half of a row is its completion.
    edi = found["edi_j_per_token"]
    assert edi.value == pytest.approx(2 * 1100.0 / n_tokens)
    (cell,) = stages.edi.cells()
    assert cell.count == 3
    assert cell.value_j_per_token == pytest.approx(edi.value)
    assert all(f.provenance is Provenance.MEASURED for f in found.values())


def test_a_missing_energy_is_missing_and_the_speed_stays():
    stages = table("A GPU nobody knows")
    stages.add(training(), [window(1000.0), window(None)])
    found = by_id(stages.figures)
    for name in ("j_per_token", "power_w", "tokens_per_j", "edi_j_per_token"):
        assert found[f"gpu_stages.actor_train.b8x512.{name}"].value is None
    assert found["gpu_stages.actor_train.b8x512.tokens_per_s"].value is not None
    stages._meter.idle = lambda length_s: window(None)
    stages.idle("before")
    assert by_id(stages.figures)["gpu_stages.idle_before_w"].value is None


def test_a_speed_above_the_bound_is_refused():
    stages = table("NVIDIA H100 80GB HBM3")
    stages.add(training(16, 1024), [window(1000.0, time_s=0.01, n_calls=10)])
    assert all(f.value is None for f in stages.figures)
    assert "h100_sxm" in stages.refused["actor_train.b16x1024"]
    assert stages.edi.cells() == ()


def test_ratios_are_to_the_same_load_in_bf16():
    def load(name, gear):
        return GearLoad(name, gear, 4096, "a product")

    bf16, fp8 = [window(1000.0), window(1000.0)], [window(700.0, 1.0), window(720.0, 1.0)]
    found = by_id(gear_figures([(load("p", Gear.BF16), bf16), (load("p", Gear.FP8), fp8),
                                     (load("alone", Gear.FP32), bf16)]))  # fmt: skip
    assert found["gpu_gears.p.fp8.time_ratio"].value == pytest.approx(0.5)
    assert found["gpu_gears.p.fp8.energy_ratio"].value == pytest.approx(0.71)
    assert "gpu_gears.p.bf16.time_ratio" not in found
    assert "gpu_gears.alone.fp32.time_ratio" not in found
    assert found["gpu_gears.p.bf16.j_per_token"].value == pytest.approx(100.0 / 4096)


def test_what_ecorl_adds_is_by_pairs():
    plain = [LoopTime(1.0, 0.5, 300.0), LoopTime(2.0, 0.5, 600.0), LoopTime(1.0, 0.5, 300.0)]
    attached = [LoopTime(1.1, 0.6, 303.0), LoopTime(2.2, 0.6, 606.0), LoopTime(1.1, 0.6, None)]
    found = by_id(attached_figures("loop", {PLAIN: plain, ATTACHED: attached}, 10))
    assert found["gpu_stages.attached.loop.step_ratio"].value == pytest.approx(1.1)
    assert found["gpu_stages.attached.loop.cpu_ratio"].value == pytest.approx(1.2)
    assert found["gpu_stages.attached.loop.energy_ratio"].value is None
    assert found["gpu_stages.attached.loop.extra_s"].value == pytest.approx(0.01)


def test_what_is_kept_of_windows():
    facts = window_facts([window(1000.0), window(1100.0)])
    assert facts["sm_clock_hz"] == [1.9e9, 1.9e9]
    assert facts["integral_over_counter"] == pytest.approx([0.02, 0.02])
    assert facts["method"] == ["counter"]


def test_the_worst_phase_counts():
    assert phase_figure("own", "x", [90.0, 110.0], 0.1).value == pytest.approx(0.1)
    assert phase_figure("own", "x", [1.0, None], 0.1).value is None
    assert slug("nvml:field186:gpu") == "field186_gpu"
    assert slug("nvml:power_usage") == "power_usage"


def test_the_products_of_a_layer_are_its_weights():
    products = sum(a * b for a, b in layer_products(SHAPE).values())
    assert SHAPE.n_layers * products == SHAPE.n_params_active - SHAPE.vocab_size * 2048 - 33 * 2048
