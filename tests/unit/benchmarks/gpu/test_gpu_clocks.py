"""The part `clocks` on a fake NVML whose truth is known, computing on the CPU."""

from __future__ import annotations

import contextlib
import math
import random
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from benchmarks.gpu import clocks
from benchmarks.gpu.clocks import TOY, measure
from benchmarks.gpu.loads import generation, passes
from benchmarks.gpu.loads.llama import EAGER
from benchmarks.gpu.loads.passes import exponent, lacking_memory, part_of_gpu, settling
from benchmarks.gpu.run.setting import Setting
from benchmarks.gpu.sensing.limiters import LIMITERS, Reading, Watch, summarised
from benchmarks.gpu.sensing.meter import first_gpu
from ecorl.devices.llama import model_shape
from ecorl.drivers.nvml import NvmlDriver
from ecorl.errors import NotSupported
from tests.fakes.nvml.counted import Counted, lateness
from tests.fakes.nvml.fake_nvml import true_energy_j

PERIOD_MS = 4
LIMITED = {"power_cap": (74, 0.4), "sw_thermal": (269, 0.125)}
SETTINGS = (
    "devices 1", f"period_ms {PERIOD_MS}", "memory_mw 41000", "sm_mhz_at_peak 1500",
    *(f"limiter {id} {share}" for id, share in LIMITED.values()),
)  # fmt: skip
SHORT = replace(TOY, window_s=0.1, runs=(1, 0.02, 0.1), ramps=(1, 0.2, 60))
LOST = tuple(
    f"error nvmlDeviceGet{call} 15"
    for call in ("TotalEnergyConsumption", "PowerUsage", "FieldValues", "ClockInfo", "Temperature",
                 "CurrentClocksThrottleReasons", "UtilizationRates")
)  # fmt: skip
STAGES = ("stages.reward.b2x32", "stages.reference.b2x32", "stages.actor_train.b2x32",
          "stages.decode.b2")  # fmt: skip
LARGE = ("decode_8b.b2", "decode_8b.b3")


def by_id(figures):
    assert len({f.id for f in figures}) == len(figures)
    return {f.id.removeprefix("gpu_clocks."): f for f in figures}


def truth_j(t_s):
    return true_energy_j(t_s, period_s=PERIOD_MS / 1e3)


def rehearsal(folder, seconds=600.0):
    return Setting(folder, time.monotonic() + seconds, is_rehearsal=True)


def test_every_window_has_the_joules_and_limits_of_the_truth(one_gpu, tmp_path, monkeypatch):
    one_gpu.set(*SETTINGS)
    monkeypatch.setattr(clocks, "TOY", replace(SHORT, window_s=0.4))
    counted = Counted(monkeypatch)
    config, figures = measure(rehearsal(tmp_path))
    found = by_id(figures)
    for name in (*STAGES, *LARGE):
        facts = config["loads"][name]
        ((start_s, end_s),), (energy_j,) = facts["spans_s"], facts["energy_j"]
        edges_s = (start_s, end_s)
        true_j = [truth_j(t_s) for t_s in edges_s]
        late_j = counted.late_j(edges_s, truth_j)
        assert energy_j == pytest.approx(true_j[1] - true_j[0], rel=0.005, abs=late_j)
        value = {id.removeprefix(f"{name}."): f.value for id, f in found.items()}
        assert value["power_w"] == pytest.approx(energy_j / (end_s - start_s), rel=0.01)
        assert value["memory_power_w"] == 41.0
        assert value["rest_power_w"] == pytest.approx(value["power_w"] - 41.0)
        assert value["j_per_token"] * value["tokens_per_s"] == pytest.approx(value["power_w"], 0.01)
        for limiter, (_, share) in LIMITED.items():
            number = list(LIMITERS).index(limiter)
            points = [(t_s, limited_s[number]) for t_s, limited_s in counted.limited[edges_s]]
            late_s = lateness(points, edges_s, lambda t_s, share=share: share * t_s)
            assert value[f"limited_share.{limiter}"] == pytest.approx(
                share, abs=0.01 + late_s / (end_s - start_s)
            )
        assert value["limited_share.hw_thermal"] is None
        assert 1.5e9 <= value["sm_clock_hz"] <= 1.98e9
        assert facts["reasons_share_of_readings"] == {"power_cap": 1.0}
    for kind in ("first_over_settled", "kernel_s", "idle_sm_clock_hz"):
        assert found[f"ramp.{kind}"].value > 0
    assert "part" in found["part.half.product_time_over_full"].note
    assert found["part.half.b2.j_per_token_over_full"].value is None


def test_without_time_all_is_said_to_be_left_out(one_gpu, tmp_path):
    config, figures = measure(rehearsal(tmp_path, seconds=0.0))
    assert figures
    assert all(f.value is None for f in figures)
    assert "no time" in by_id(figures)["decode_8b.b3.power_w"].note
    assert config["loads"] == {}


def test_a_board_that_refuses_fields_leaves_the_rest(one_gpu, tmp_path, monkeypatch):
    monkeypatch.setattr(clocks, "TOY", SHORT)
    one_gpu.set(
        "devices 1", "field 185 2 3", "field 186 2 3", "error nvmlDeviceGetClockInfo 3",
        "error nvmlDeviceGetCurrentClocksThrottleReasons 4",
    )  # fmt: skip
    found = by_id(measure(rehearsal(tmp_path))[1])
    for kind in ("memory_power_w", "rest_power_w", "sm_clock_hz", "limited_share.power_cap"):
        assert found[f"{STAGES[0]}.{kind}"].value is None
    assert found[f"{STAGES[0]}.power_w"].value > 0
    assert found["ramp.idle_sm_clock_hz"].value is None
    assert "too few" in found["passes.reward.b2x32.time_over_clock_exponent"].note


def test_a_gpu_that_is_lost_in_the_middle_keeps_what_was_measured(one_gpu, tmp_path, monkeypatch):
    monkeypatch.setattr(clocks, "TOY", SHORT)
    taken = []
    make_stage = clocks._stage

    def stage(model, batch, name):
        taken.append(name)
        if len(taken) == 2:
            one_gpu.set(*SETTINGS, *LOST)
        return make_stage(model, batch, name)

    monkeypatch.setattr(clocks, "_stage", stage)
    one_gpu.set(*SETTINGS)
    found = by_id(measure(rehearsal(tmp_path))[1])
    assert found[f"{STAGES[0]}.power_w"].value > 0
    assert found[f"{STAGES[1]}.power_w"].value is None
    assert "DeviceLost" in found[f"{STAGES[1]}.power_w"].note
    for name in (*STAGES[2:], *LARGE):
        assert "DeviceLost" in found[f"{name}.tokens_per_s"].note
    assert "DeviceLost" in found["ramp.kernel_s"].note
    assert len(taken) == 2


# ------------------------------------------------------------------ what runs on a GPU alone


class FakeCuda:
    """Stands for what is used of `torch.cuda`; work ends when it is launched."""

    def __init__(self):
        self.log, self.free_bytes, self.is_stuck, self.now = [], 10**12, False, None

    class Stream:
        def wait_stream(self, other):
            pass

    def current_stream(self):
        return self.now or self.Stream()

    @contextlib.contextmanager
    def stream(self, stream):
        before, self.now = self.now, stream or self.now
        try:
            yield
        finally:
            self.now = before

    @contextlib.contextmanager
    def graph(self, graph, stream):
        with self.stream(stream):
            yield
        self.log.append(("captured", stream))

    def Event(self, enable_timing=False):
        at_s = []
        event = SimpleNamespace(query=lambda: not self.is_stuck, at_s=at_s)
        event.record = lambda: at_s.append(time.monotonic())
        event.elapsed_time = lambda later: 1e3 * (later.at_s[0] - at_s[0])
        return event

    def CUDAGraph(self):
        return SimpleNamespace(replay=lambda: self.log.append(("replayed", self.now)))

    def get_device_properties(self, index):
        return SimpleNamespace(multi_processor_count=132)

    def mem_get_info(self):
        return self.free_bytes, self.free_bytes

    def empty_cache(self):
        pass

    def synchronize(self):
        pass


class GpuSetting(Setting):
    """Computes on the CPU what a GPU would compute."""

    device = torch.device("cpu")


@pytest.fixture
def cuda(one_gpu, monkeypatch):
    fake = FakeCuda()
    names = ("Stream", "current_stream", "stream", "graph", "Event", "CUDAGraph", "synchronize",
             "get_device_properties", "mem_get_info", "empty_cache")  # fmt: skip
    for name in names:
        monkeypatch.setattr(torch.cuda, name, getattr(fake, name))
    monkeypatch.setattr(generation, "fused", lambda: EAGER)
    monkeypatch.setattr(clocks, "FULL", SHORT)
    monkeypatch.setattr(torch.compiler, "reset", lambda: None)
    one_gpu.set(*SETTINGS)
    return fake


def on_gpu(folder, seconds=600.0):
    return by_id(measure(GpuSetting(folder, time.monotonic() + seconds))[1])


def test_parts_of_a_gpu_are_captured_and_replayed_on_their_streams(cuda, tmp_path, monkeypatch):
    made = []

    def create(num_sms, device_id):
        made.append(num_sms)
        return SimpleNamespace(Stream=FakeCuda.Stream)

    context = SimpleNamespace(create=create)
    monkeypatch.setattr("torch.cuda.green_contexts.GreenContext", context)
    monkeypatch.setattr(passes, "product_s", lambda stream: 1.0)
    found = on_gpu(tmp_path)
    assert made == [64, 32, 96]
    assert found["part.half.product_time_over_full"].value == 1.0
    for part in ("half", "quarter", "three_quarters"):
        assert found[f"part.{part}.b2.j_per_token_over_full"].value > 0
        assert found[f"part.{part}.b2.tokens_per_s_over_full"].value > 0
    captures = [stream for what, stream in cuda.log if what == "captured"]
    # Decoding of the small model, twice of the large one, and on three parts.
    assert len(captures) == 6
    replays = {stream for what, stream in cuda.log if what == "replayed"}
    assert replays == {None, *captures[3:]}


@pytest.mark.deep
def test_without_green_contexts_the_rest_is_measured(cuda, tmp_path):
    found = on_gpu(tmp_path)
    assert "green context" in found["part.half.b2.power_w"].note
    assert found["decode_8b.b3.power_w"].value > 0


@pytest.mark.deep
def test_a_batch_that_does_not_fit_is_left_out(cuda, tmp_path):
    cuda.free_bytes = 10**9
    found = on_gpu(tmp_path)
    note = found["decode_8b.b3.power_w"].note
    assert note.startswith("CardFull: ")
    assert " 2 GB" in note
    assert found["stages.reward.b2x32.power_w"].value > 0
    assert lacking_memory(model_shape("8b"), 1, 256) is not None
    cuda.free_bytes = 64 * 10**9
    assert lacking_memory(model_shape("8b"), 1024, 256) is None
    assert " 64 GB" in lacking_memory(model_shape("8b"), 2048, 256)


def test_memory_that_runs_out_costs_one_load(cuda, tmp_path, monkeypatch):
    def full(*args, **kwargs):
        raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate")

    monkeypatch.setattr(passes, "decoding", full)
    found = on_gpu(tmp_path)
    assert found["decode_8b.b2.power_w"].note == "OutOfMemoryError: CUDA out of memory."
    assert found["stages.actor_train.b2x32.power_w"].value > 0


def test_work_that_never_ends_ends_the_part(cuda, tmp_path, monkeypatch):
    decode_and_parts = clocks.large_model

    def stuck_from_here_on(bench):
        cuda.is_stuck = True
        decode_and_parts(bench)

    monkeypatch.setattr(generation, "PATIENCE_S", 0.05)
    monkeypatch.setattr(clocks, "large_model", stuck_from_here_on)
    found = on_gpu(tmp_path)
    assert found["stages.reward.b2x32.power_w"].value > 0
    assert "DriverTimeout" in found["part.quarter.b2.power_w"].note


# ------------------------------------------------------------------ arithmetic


def test_limited_time_is_taken_between_readings():
    readings = [
        Reading(0.02 * i, 1e9 if i % 2 else 2e9, 0x4 if i >= 50 else 0x1, 40.0,
                (0.3 * 0.02 * i, None, 0.0, 0.0, 0.0))
        for i in range(101)
    ]  # fmt: skip
    seen = summarised(readings, 0.505, 1.505)
    assert seen.limited["power_cap"] == pytest.approx(0.3)
    assert seen.limited["sync_boost"] is None
    assert seen.limited["hw_thermal"] == 0.0
    assert seen.reasons["power_cap"] == pytest.approx(0.5, abs=0.03)
    assert set(seen.clocks_hz) == {1e9, 2e9}
    # Nothing is extrapolated, and a counter that fell tells nothing.
    assert summarised(readings, 1.5, 2.5).limited["power_cap"] is None
    fallen = [*readings[:51], *(r._replace(limited_s=(0.0,) * 5) for r in readings[51:])]
    assert summarised(fallen, 0.5, 1.5).limited["power_cap"] is None


def test_a_watch_ends_with_its_block(one_gpu):
    driver = NvmlDriver()
    device = first_gpu(driver)
    with Watch(driver, device, interval_s=0.005) as watch:
        start_s = time.monotonic()
        time.sleep(0.1)
        seen = watch.seen(start_s, time.monotonic())
    assert seen.clocks_hz
    assert watch.clocks_hz(start_s, math.inf)
    assert watch.fault is None
    driver.close()


@pytest.mark.parametrize("slope", [-1.0, -0.4, 0.0])
def test_the_exponent_is_found(slope):
    chance = random.Random(0)
    points = [
        (clock_hz, clock_hz**slope * math.exp(chance.gauss(0.0, 0.005)))
        for clock_hz in (chance.uniform(1.4e9, 1.9e9) for _ in range(60))
    ]
    found, spread = exponent(points)
    assert found == pytest.approx(slope, abs=0.05)
    low, high = spread["interval_95"]
    assert abs(found - slope) < high - low
    assert 1.4e9 < spread["clock_p10_hz"] < spread["clock_p90_hz"] < 1.9e9


def test_no_exponent_without_a_clock_that_varies():
    with pytest.raises(NotSupported, match="hardly varied"):
        exponent([(1.98e9, 0.01 + 1e-5 * i) for i in range(30)])
    with pytest.raises(NotSupported, match="too few"):
        exponent([(1e9 + 1e7 * i, 0.01) for i in range(9)])


def test_kernels_that_rise_to_their_speed():
    slow, fast = [80e-6] * 100, [50e-6] * 900
    found = settling([*slow, *fast])
    assert found.first_over_settled == pytest.approx(1.6)
    assert found.settle_s == pytest.approx(100 * 80e-6, rel=0.15)
    assert found.settled_s == 50e-6
    assert settling(fast).settle_s == 0.0
    # One that is held up by something is no sign of a clock.
    assert settling([*fast[:400], 1e-3, *fast[:400]]).settle_s == 0.0
    assert settling([1e-6 * (100 + i) for i in range(400)]).settle_s is None


def test_calls_are_timed_by_events(cuda, monkeypatch):
    times_s = passes.timed_s(lambda: time.sleep(0.01), 3, SimpleNamespace(type="cuda"))
    assert len(times_s) == 3
    assert min(times_s) >= 0.01
    make = torch.randn
    monkeypatch.setattr(passes, "PRODUCT_SIDE", 8)
    monkeypatch.setattr(torch, "randn", lambda sizes, device, dtype: make(sizes, dtype=dtype))
    stream = cuda.Stream()
    assert passes.product_s(stream) >= 0
    assert cuda.log == [("captured", stream), *[("replayed", stream)] * 20]


def test_what_pytorch_lacks_is_named(cuda):
    with pytest.raises(NotSupported, match="green context"):
        part_of_gpu(0.5)
