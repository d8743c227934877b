"""The sampler with its real process: truth, faults, and the promise not to hurt the run."""

import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from fake_nvml import BASE_W, PEAK_W, true_energy_j

from ecorl.config import (
    ModelledSourceConfig,
    NullSourceConfig,
    NvmlSourceConfig,
    RaplSourceConfig,
    ReplaySourceConfig,
    XrtSourceConfig,
)
from ecorl.errors import ConfigError, DataError, LedgerError
from ecorl.records import DeviceKind, Provenance
from ecorl.telemetry.check import check_readings
from ecorl.telemetry.integrate import STOPPED_AFTER_S
from ecorl.telemetry.sampling import sampler as sampler_module
from ecorl.telemetry.sampling.messages import (
    SourceReport,
    decode_specs,
    encode_ready,
    encode_specs,
)
from ecorl.telemetry.sampling.sampler import Sampler
from ecorl.telemetry.sources.specs import DeviceInfo, MeteredDevice, PowerModel, SourceSpec

WAIT_S = 120.0
MODEL = PowerModel(20.0, 65.0, (os.getpid(),), n_threads=os.cpu_count() or 1)
DEVICE = MeteredDevice("gpu0", DeviceKind.GPU, model=MODEL)
MODELLED = SourceSpec((ModelledSourceConfig(interval_s=0.05),), DEVICE)
NVML = SourceSpec((NvmlSourceConfig(interval_s=0.05),))


def until(condition, wait_s=WAIT_S):
    """Wait for a condition; the bound only keeps a broken test from hanging."""
    end_s = time.monotonic() + wait_s
    while not condition():
        assert time.monotonic() < end_s, "the condition never came true"
        time.sleep(0.01)


@pytest.fixture
def start():
    running = []

    def start(*specs, **options):
        sampler = Sampler(specs, **options)
        running.append(sampler)
        sampler.start(WAIT_S)
        return sampler

    yield start
    for sampler in running:
        sampler.stop()


@pytest.fixture
def nvml_environment(fake_nvml, monkeypatch):
    """Children of this process find the fake NVML."""
    for key, value in fake_nvml.child_environment().items():
        monkeypatch.setenv(key, value)
    return fake_nvml


@pytest.fixture
def bare_environment(tmp_path, monkeypatch):
    """Children find a broken NVML, so that the outcome is the same on machines with a GPU."""
    (tmp_path / "libnvidia-ml.so.1").write_bytes(b"")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))


def final(sampler, device_id, t_s):
    until(lambda: (sampler.watermark_s(device_id) or 0) > t_s)


# ---------------------------------------------------------------- truth


SELDOM_S = 10.0
SELDOM = SourceSpec((NvmlSourceConfig(interval_s=SELDOM_S),))


def test_an_edge_is_read_at_once(nvml_environment, start):
    """A source that is due in ten seconds is read where a stage begins and ends."""
    begin_s = time.monotonic()
    sampler = start(SELDOM)
    until(lambda: sampler.watermark_s("gpu1") is not None)
    time.sleep(0.05)  # the first reading is no stand-in for an edge any more
    edges_s, told_s = [], []
    for _ in range(2):
        edges_s.append(time.monotonic())
        sampler.mark_edge()
        until(lambda: sampler.watermark_s("gpu1") >= edges_s[-1])
        told_s.append(time.monotonic())
        time.sleep(0.3)
    now_s = time.monotonic()
    found = sampler.history.readings("gpu0", edges_s[0], now_s)
    # Beside those of the edges only those that were due anyway.
    assert len(found) <= 2 + (now_s - begin_s) // SELDOM_S
    readings = [next(one for one in found if one.t_s >= edge_s) for edge_s in edges_s]
    for edge_s, reading, end_s in zip(edges_s, readings, told_s, strict=True):
        assert edge_s <= reading.t_s <= end_s
        # The counter tells whole millijoules.
        assert true_energy_j(edge_s) - 0.001 <= reading.energy_j <= true_energy_j(end_s)
    energy = sampler.history.energy("gpu0", readings[0].t_s, readings[1].t_s)
    assert energy.energy_j == pytest.approx(readings[1].energy_j - readings[0].energy_j)


def test_edges_before_the_start_and_behind_the_end_are_dropped(nvml_environment, start):
    sampler = Sampler([NVML])
    sampler.mark_edge()
    sampler.start(WAIT_S)
    sampler.stop()
    sampler.mark_edge()


def test_edges_of_a_process_that_does_not_read_them_are_dropped(nvml_environment, start):
    sampler = start(NVML)
    os.kill(sampler.pid, signal.SIGSTOP)
    try:
        for _ in range(70_000):  # more than a pipe takes
            sampler.mark_edge()
    finally:
        os.kill(sampler.pid, signal.SIGCONT)
    newest_s = time.monotonic()
    final(sampler, "gpu0", newest_s)


def test_an_edge_costs_no_program_its_life(nvml_environment, start, monkeypatch):
    """Where SIGPIPE ends a process, one to a sampling process that has ended does not come."""
    sampler = start(SELDOM)
    process = sampler._process
    before = signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        os.kill(sampler.pid, signal.SIGKILL)
        until(lambda: process._popen.poll() is not None)
        for _ in range(3):
            process.mark_edge()
    finally:
        signal.signal(signal.SIGPIPE, before)


def test_a_forked_process_marks_no_edge_and_waits_for_no_lock(nvml_environment, start):
    sampler = start(SELDOM)
    with sampler._process._orders_lock:
        pid = os.fork()
        if pid == 0:
            sampler.mark_edge()
            os._exit(0)
    until(lambda: os.waitpid(pid, os.WNOHANG)[0] == pid)


def test_what_waits_for_a_counter_is_recorded_at_the_end(nvml_environment, start):
    counter = "nvmlDeviceGetTotalEnergyConsumption"
    nvml_environment.set("devices 1", f"burn_us {counter} 3000 3000 3000")
    kept = []
    sampler = start(SourceSpec((NvmlSourceConfig(),)), sink=kept.extend)
    until(lambda: (sampler._newest_s.get("gpu0") or 0) > (sampler.watermark_s("gpu0") or 0) + 0.2)
    newest_s = sampler._newest_s["gpu0"]
    sampler.stop()
    assert kept[-1].t_s >= newest_s
    assert [one.t_s for one in kept] == sorted(one.t_s for one in kept)


def test_a_source_that_gains_nothing_by_edges_keeps_its_pace(start):
    sampler = start(replace(MODELLED, candidates=(ModelledSourceConfig(interval_s=10.0),)))
    until(lambda: sampler.watermark_s("gpu0") is not None)
    first_s = sampler.watermark_s("gpu0")
    for _ in range(5):
        sampler.mark_edge()
        time.sleep(0.05)
    assert sampler.watermark_s("gpu0") == first_s


def test_a_slow_counter_costs_few_calls_and_no_truth(nvml_environment, start, tmp_path):
    calls = tmp_path / "calls"
    counter = "nvmlDeviceGetTotalEnergyConsumption"
    lines = ("devices 1", f"burn_us {counter} 3700 11900 29700", f"count_to {calls}")
    nvml_environment.set(*lines)
    sampler = start(SourceSpec((NvmlSourceConfig(),)))
    time.sleep(1.5)  # by then it is known to be slow

    def n_calls():
        return calls.read_text().splitlines().count(counter)

    before, begin_s = n_calls(), time.monotonic()
    sampler.mark_edge()
    time.sleep(2.5)
    until(lambda: len(sampler.history.readings("gpu0", begin_s, time.monotonic())) >= 10)
    sampler.mark_edge()
    end_s = time.monotonic()
    final(sampler, "gpu0", end_s)
    length_s = time.monotonic() - begin_s
    assert n_calls() - before <= length_s + 3
    energy = sampler.history.energy("gpu0", begin_s, end_s)
    truth_j = true_energy_j(end_s) - true_energy_j(begin_s)
    # A counter read at the edges is wrong by its calls' time at most, and by as much as a busy
    # machine is late with readings that are due each 0.1 s.
    readings = sampler.history.readings("gpu0", begin_s - 1, end_s + 1)
    late_s = max(0.0, max(b.t_s - a.t_s for a, b in pairwise(readings)) - 0.15)
    assert energy.energy_j == pytest.approx(truth_j, rel=0.1, abs=2 * PEAK_W * late_s)
    assert energy.method == "counter"


def test_counter_and_integral_against_the_truth(nvml_environment, start):
    sampler = start(NVML)
    assert [d.device_id for d in sampler.devices] == ["gpu0", "gpu1"]
    begin_s = time.monotonic() + 0.2
    end_s = begin_s + 2.0
    for gpu, device in enumerate(("gpu0", "gpu1")):
        final(sampler, device, end_s)
        energy = sampler.history.energy(device, begin_s, end_s)
        truth_j = true_energy_j(end_s, gpu) - true_energy_j(begin_s, gpu)
        readings = sampler.history.readings(device, begin_s - 1, end_s + 1)
        longest_s = max(b.t_s - a.t_s for a, b in pairwise(readings))
        # A line through an interval of length L misses a wave between two levels by at most
        # (high - low) * L / 4; time stamps on a busy machine err by less than another L.
        bound_j = 2 * (PEAK_W - BASE_W) * 1.25 * longest_s
        assert energy.method == "counter"
        assert energy.provenance == Provenance.MEASURED
        assert abs(energy.energy_j - truth_j) <= min(bound_j, 0.5 * truth_j)
        assert energy.coverage == pytest.approx(1.0)
        assert BASE_W * 2 - 1e-6 <= energy.integral_energy_j <= PEAK_W * 2 + 1e-6


def test_constant_load_has_no_gap(nvml_environment, start):
    nvml_environment.set("duty 1")
    sampler = start(NVML)
    begin_s = time.monotonic() + 0.1
    final(sampler, "gpu0", begin_s + 1.0)
    check = check_readings(sampler.history, "gpu0", begin_s, begin_s + 1.0)
    assert check.integral_j == pytest.approx(PEAK_W)
    assert check.gap_share == pytest.approx(0, abs=0.1)


def test_a_counter_that_dies_in_the_run_is_not_zero_joules(nvml_environment, start):
    nvml_environment.set("duty 1", "counter_mj 123456789")
    sampler = start(replace(NVML, device=MeteredDevice(gpus=("GPU-00000001-fake",))))
    begin_s = time.monotonic() + 0.1
    end_s = begin_s + STOPPED_AFTER_S + 0.3
    final(sampler, "gpu1", end_s)
    energy = sampler.history.energy("gpu1", begin_s, end_s)
    assert (energy.counter_energy_j, energy.method) == (None, "integral_counter_stopped")
    assert energy.energy_j == pytest.approx(PEAK_W * (end_s - begin_s))
    assert energy.provenance == Provenance.MEASURED


@pytest.mark.parametrize("is_slow", [False, True])
def test_a_counter_of_something_else_bills_nothing_not_even_before(
    nvml_environment, start, is_slow
):
    """A module's counter at 1.7 times beside a GPU whose counter is its own."""
    burn = "burn_us nvmlDeviceGetTotalEnergyConsumption 3700 11900 29700"
    nvml_environment.set("duty 1", "counter_factor 1.7 1", *[burn] * is_slow)
    sampler = start(NVML, stale_after_s=60.0)
    begin_s = time.monotonic() + 0.2
    final(sampler, "gpu1", begin_s + 5.0)
    assert sampler.history.foreign_counters == {"gpu1"}
    for window in ((begin_s, begin_s + 1.0), (begin_s, begin_s + 3.0)):
        energy = sampler.history.energy("gpu1", *window)
        assert energy.method == "integral_counter_foreign"
        assert energy.mean_power_w == pytest.approx(PEAK_W)
        assert sampler.history.energy("gpu0", *window).method == "counter"
    # It is no fault of the readings.
    assert sampler.faults == {}


def test_two_sources_in_one_process(nvml_environment, start):
    seen = []
    sampler = start(
        NVML,
        replace(MODELLED, device=MeteredDevice("fpga0", DeviceKind.FPGA, model=MODEL)),
        sink=seen.extend,
    )
    assert {d.device_id: d.provenance for d in sampler.devices} == {
        "gpu0": Provenance.MEASURED,
        "gpu1": Provenance.MEASURED,
        "fpga0": Provenance.MODELLED,
    }
    final(sampler, "fpga0", time.monotonic() + 0.5)
    until(lambda: {s.device_id for s in seen} == {"gpu0", "gpu1", "fpga0"})
    smoothed = sampler.smoothed("fpga0")
    assert 20.0 <= smoothed.power_w <= 65.0
    assert smoothed.provenance == Provenance.MODELLED
    assert sampler.smoothed("nobody").power_w is None


# ---------------------------------------------------------------- the choice behind auto


def auto(*candidates):
    return SourceSpec(candidates, DEVICE, asked="auto")


def test_specs_arrive_as_they_were_sent(tmp_path):
    specs = (
        MODELLED,
        replace(NVML, device=MeteredDevice(gpus=("GPU-1", "GPU-2")), started_s=1.25),
        auto(NvmlSourceConfig(), RaplSourceConfig(root=tmp_path), NullSourceConfig()),
        SourceSpec((ReplaySourceConfig(path=tmp_path / "é.csv", interval_s=1),)),
        SourceSpec((XrtSourceConfig(),), MeteredDevice(cards=(0, 3))),
    )
    line = encode_specs(specs)
    assert line.endswith("\n")
    assert line.count("\n") == 1
    assert decode_specs(line) == specs
    with pytest.raises(ValueError, match="interval_s"):
        decode_specs(line.replace('"interval_s":0.05', '"interval_s":0.0', 1))


def test_auto_takes_nvml_where_it_is(nvml_environment, start):
    sampler = start(auto(NvmlSourceConfig(), ModelledSourceConfig()))
    assert (sampler.reports[0].asked, sampler.reports[0].chosen) == ("auto", "nvml")
    assert sampler.faults == {}


def test_auto_keeps_to_its_order(nvml_environment, start):
    sampler = start(auto(ModelledSourceConfig(), NvmlSourceConfig()))
    assert sampler.reports[0].chosen == "modelled"


def test_auto_ends_at_modelled_and_says_why(bare_environment, tmp_path, start):
    no_counter = RaplSourceConfig(root=tmp_path / "no-powercap")
    sampler = start(auto(NvmlSourceConfig(), no_counter, ModelledSourceConfig()))
    (report,) = sampler.reports
    assert (report.asked, report.chosen) == ("auto", "modelled")
    assert [kind for kind, _ in report.refusals] == ["nvml", "rapl"]
    assert "LibraryNotFound" in report.refusals[0][1]
    assert sampler.devices[0].provenance == Provenance.MODELLED


def test_a_source_that_is_not_there_is_a_fault_not_an_error(bare_environment, start):
    faults = []
    sampler = start(NVML, on_fault=lambda *fault: faults.append(fault))
    assert sampler.devices == ()
    assert sampler.faults == {"nvml": "LibraryNotFound"}
    assert [(device, error) for device, error, _ in faults] == [("nvml", "LibraryNotFound")]
    assert sampler.history.energy("gpu0", 0, 1).energy_j is None


def test_auto_without_anything(bare_environment, tmp_path, start):
    sampler = start(auto(NvmlSourceConfig(), RaplSourceConfig(root=tmp_path / "no-powercap")))
    assert sampler.devices == ()
    assert [kind for kind, _ in sampler.reports[0].refusals] == ["nvml", "rapl"]
    assert set(sampler.faults) == {"auto"}


# ---------------------------------------------------------------- the user's mistakes


def test_mistakes_are_raised_at_the_start(tmp_path):
    with pytest.raises(ConfigError, match="idle_w"):
        Sampler([SourceSpec((ModelledSourceConfig(),))]).start()
    path = tmp_path / "power.csv"
    path.write_text("t_s,device_id,power_w,energy_j,utilisation\n0,gpu0,x,,\n")
    with pytest.raises(DataError, match=r"power\.csv:2"):
        Sampler([SourceSpec((ReplaySourceConfig(path=path),))]).start(WAIT_S)


# ---------------------------------------------------------------- faults in the run


LOST = [f"error nvmlDeviceGet{c} 15 0" for c in ("FieldValues", "PowerUsage", "HandleByUUID")]
"""Settings of a fake NVML that has lost its first GPU."""


def test_a_gpu_lost_in_the_run_is_missing_and_comes_back(nvml_environment, start):
    faults = []
    sampler = start(
        NVML,
        on_fault=lambda *fault: faults.append(fault),
        stale_after_s=60.0,  # on a busy machine readings may be late: no fault of this test's
    )
    begin_s = time.monotonic()
    nvml_environment.set(*LOST)
    until(lambda: sampler.faults == {"gpu0": "DeviceLost"})
    lost_s = time.monotonic()
    for device in ("gpu0", "gpu1"):
        final(sampler, device, lost_s + 0.3)
    energy = sampler.history.energy("gpu0", lost_s, lost_s + 0.3)
    assert (energy.energy_j, energy.integral_energy_j, energy.coverage) == (None, None, 0.0)
    other = sampler.history.energy("gpu1", lost_s, lost_s + 0.2)
    assert other.energy_j is not None
    nvml_environment.set()
    until(lambda: sampler.faults == {})
    back_s = time.monotonic()
    final(sampler, "gpu0", back_s + 0.2)
    assert sampler.history.energy("gpu0", back_s, back_s + 0.1).energy_j is not None
    # The counter is not bridged across the loss.
    assert sampler.history.energy("gpu0", begin_s, back_s).counter_energy_j is None
    assert [(device, error) for device, error, _ in faults] == [
        ("gpu0", "DeviceLost"),
        ("gpu0", None),
    ]


def test_the_smoothed_power_of_a_lost_gpu_becomes_missing(nvml_environment, start):
    sampler = start(NVML, stale_after_s=0.5)
    until(lambda: sampler.smoothed("gpu0").power_w is not None)
    nvml_environment.set(*LOST)
    until(lambda: sampler.faults.get("gpu0") == "DeviceLost")
    until(lambda: sampler.smoothed("gpu0").power_w is None)


def test_a_broken_gpu_is_told_of_once_and_one_that_fails_later_too(
    nvml_environment, start, caplog, snapshot
):
    nvml_environment.set("devices 3", "error nvmlDeviceGetHandleByIndex 8 2")
    sampler = start(replace(NVML, device=MeteredDevice(n_gpus=2)), stale_after_s=30.0)
    assert [d.device_id for d in sampler.devices] == ["gpu0", "gpu1"]
    (unread,) = sampler.unread
    assert "nvmlDeviceGetHandleByIndex" in unread
    lost = [f"error nvmlDeviceGet{call} 15 0" for call in ("FieldValues", "PowerUsage")]
    for _ in range(2):
        nvml_environment.set("devices 3", *lost)
        until(lambda: sampler.faults == {"gpu0": "DeviceLost"})
        nvml_environment.set("devices 3")
        until(lambda: sampler.faults == {})
    assert caplog.messages[0] == unread
    snapshot("\n".join(caplog.messages))


def test_a_source_that_does_not_open_says_why(nvml_environment, start, caplog):
    nvml_environment.set("devices 1", "error nvmlDeviceGetHandleByIndex 4")
    sampler = start(NVML)
    assert sampler.faults == {"nvml": "DriverError"}
    told = (
        "nvml cannot be read (DriverError: gpu0 does not answer "
        "(NoPermission: nvmlDeviceGetHandleByIndex: Insufficient Permissions))"
    )
    assert sampler.unread == (told,)
    assert caplog.messages == [told]


def test_a_restart_that_finds_more_gpus_reads_those_of_the_first_start(nvml_environment, start):
    nvml_environment.set("error nvmlDeviceGetHandleByIndex 999 1")
    kept = []
    sampler = start(NVML, sink=kept.extend, stale_after_s=30.0)
    nvml_environment.set()
    os.kill(sampler.pid, signal.SIGKILL)
    until(lambda: sampler.faults == {"gpu0": "SamplerLost"})
    until(lambda: sampler.faults == {})
    final(sampler, "gpu0", time.monotonic() + 0.2)
    assert {one.device_id for one in kept} == {"gpu0"}


def test_a_killed_process_is_missing_and_is_started_again(bare_environment, start):
    faults = []
    sampler = start(
        MODELLED,
        on_fault=lambda *fault: faults.append(fault[:2]),
    )
    final(sampler, "gpu0", time.monotonic() + 0.1)
    pid = sampler.pid
    os.kill(pid, signal.SIGKILL)
    until(lambda: ("gpu0", "SamplerLost") in faults)
    until(lambda: faults[-1] == ("gpu0", None))
    assert sampler.pid not in (None, pid)
    readings = sampler.history.readings("gpu0", 0, time.monotonic())
    lost = next(r for r in readings if r.power_w is None and r.energy_j is None and r.reset)
    # The model counts from 0 again in the new process: no sum may cross the loss.
    back_s = time.monotonic()
    final(sampler, "gpu0", back_s)
    across = sampler.history.energy("gpu0", lost.t_s - 0.05, back_s)
    assert (across.counter_energy_j, across.energy_j) == (None, None)


def test_restarts_are_bounded_and_time_goes_on(bare_environment, start, monkeypatch):
    monkeypatch.setattr(sampler_module, "RESTART_PAUSE_S", 0.01)
    sampler = start(MODELLED)
    killed = set()
    for _ in range(sampler_module.MAX_RESTARTS + 1):
        until(lambda: sampler.pid is not None and sampler.pid not in killed)
        killed.add(sampler.pid)
        os.kill(sampler.pid, signal.SIGKILL)
    until(lambda: sampler.pid is None)
    now_s = time.monotonic()
    final(sampler, "gpu0", now_s + 0.6)
    assert sampler.pid is None
    assert sampler.faults == {"gpu0": "SamplerLost"}
    assert sampler.history.energy("gpu0", now_s, now_s + 0.6).energy_j is None


def test_a_process_that_stands_still_is_silent_not_constant(bare_environment, start):
    sampler = start(MODELLED, stale_after_s=0.3)
    final(sampler, "gpu0", time.monotonic() + 0.1)
    os.kill(sampler.pid, signal.SIGSTOP)
    try:
        until(lambda: sampler.faults == {"gpu0": "DriverTimeout"})
        assert sampler.smoothed("gpu0").power_w is None
        still_s = time.monotonic()
        final(sampler, "gpu0", still_s + 0.5)
    finally:
        os.kill(sampler.pid, signal.SIGCONT)
    until(lambda: sampler.faults == {})


class HangingProcess:
    """Says which device it opened, and nothing more: the driver hangs in the first read."""

    pid = 1

    def __init__(self, specs):
        device = DeviceInfo(
            "gpu0", DeviceKind.GPU, Provenance.MEASURED, "nvml:field186:gpu", "H100"
        )
        self.left = [encode_ready([SourceReport("nvml", "nvml", (device,), 0.05)]).encode().strip()]

    def lines(self, wait_s):
        if self.left:
            return [self.left.pop()]
        time.sleep(wait_s)
        return []

    def end(self):
        pass


def test_a_driver_that_hangs_in_its_first_read_is_told(monkeypatch, start):
    monkeypatch.setattr(sampler_module, "SamplerProcess", HangingProcess)
    told = []
    sampler = start(NVML, stale_after_s=0.2, on_fault=lambda *fault: told.append(fault[:2]))
    final(sampler, "gpu0", time.monotonic() + 0.1)
    assert told == [("gpu0", "DriverTimeout")]
    energy = sampler.history.energy("gpu0", time.monotonic() - 0.1, time.monotonic())
    assert energy.energy_j is None


def test_a_sink_that_fails_is_dropped(bare_environment, start, caplog):
    calls = []

    def sink(samples):
        calls.append(samples)
        raise LedgerError("disk full")

    sampler = start(MODELLED, sink=sink)
    final(sampler, "gpu0", time.monotonic() + 0.3)
    assert len(calls) == 1
    assert "disk full" in caplog.text


# ---------------------------------------------------------------- the process


def gone(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_stop_ends_the_process_and_may_be_called_twice(bare_environment, start):
    sampler = start(MODELLED)
    pid = sampler.pid
    sampler.stop()
    sampler.stop()
    assert gone(pid)
    assert not any(t.name == "ecorl-sampler" for t in threading.enumerate())


SCRIPT = """
import os, sys, time
from ecorl.telemetry.sampling.sampler import Sampler
from ecorl.config import ModelledSourceConfig
from ecorl.telemetry.sources.specs import MeteredDevice, PowerModel, SourceSpec
print("imported", flush=True)  # a second time if the child imported this script
device = MeteredDevice(model=PowerModel(1, 2, (os.getpid(),), 1))
sampler = Sampler([SourceSpec((ModelledSourceConfig(),), device)])
sampler.start(120)
print(sampler.pid, flush=True)
if os.fork() == 0:
    # A forked worker holds the pipes open, and must not end the sampler of its parent.
    sampler.stop()
    print("worker", os.getpid(), flush=True)
    time.sleep(60)
time.sleep(60)
"""


def test_the_process_ends_with_its_parent_and_ignores_ctrl_c(tmp_path, bare_environment):
    # Files of these names beside the script would shadow the standard library's.
    for name in ("json.py", "random.py"):
        (tmp_path / name).write_text("raise SystemExit('shadowed')")
    folder = tmp_path / "bin"
    folder.mkdir()
    script = folder / "train.py"
    script.write_text(SCRIPT)
    root = str(Path(sampler_module.__file__).parents[3])
    env = os.environ | {"PYTHONPATH": root}
    with subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, text=True, cwd=tmp_path, env=env
    ) as parent:
        lines = [parent.stdout.readline().split() for _ in range(3)]
        pid, worker = int(lines[1][0]), int(lines[2][1])
        try:
            assert lines[0] == ["imported"]
            os.kill(pid, signal.SIGINT)
            time.sleep(0.3)
            assert not gone(pid)
            parent.kill()
            parent.wait()
            until(lambda: gone(pid))
            assert not gone(worker)
        finally:
            os.kill(worker, signal.SIGKILL)
