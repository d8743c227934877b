"""Modelled, RAPL and replay: what is particular to each."""

import contextlib
import os
import statistics
import subprocess
import threading

import pytest

from ecorl.errors import ConfigError, DataError, DeviceLost
from ecorl.records import Provenance
from ecorl.telemetry.history import PowerHistory
from ecorl.telemetry.sources import modelled
from ecorl.telemetry.sources.modelled import ModelledSource, process_cpu_time_s
from ecorl.telemetry.sources.registry import RaplSource
from ecorl.telemetry.sources.replay import ReplaySource, read_tracks
from ecorl.telemetry.sources.specs import MeteredDevice, PowerModel

HEADER = "t_s,device_id,power_w,energy_j,utilisation\n"


# ---------------------------------------------------------------- modelled


def modelled_source(monkeypatch, cpu_s, clock_s):
    monkeypatch.setattr(modelled, "process_cpu_time_s", lambda pid: cpu_s[0])
    source = ModelledSource(MeteredDevice(model=PowerModel(20.0, 70.0, pids=(1,), n_threads=2)))
    source._clock = lambda: clock_s[0]
    source.open()
    return source


@pytest.mark.parametrize(
    ("gained_s", "power_w", "utilisation"),
    [(0.0, 20.0, 0.0), (1.0, 45.0, 0.5), (2.0, 70.0, 1.0), (9.0, 70.0, 1.0)],
)
def test_power_is_linear_in_cpu_time_and_clipped(monkeypatch, gained_s, power_w, utilisation):
    cpu_s, clock_s = [50.0], [10.0]
    source = modelled_source(monkeypatch, cpu_s, clock_s)
    cpu_s[0] += gained_s
    clock_s[0] += 1.0
    (sample,) = source.read()
    assert (sample.power_w, sample.utilisation) == (power_w, utilisation)
    assert sample.energy_j == pytest.approx(power_w * 1.0)
    # Asked again at once there is no new step, and so no energy for this moment.
    clock_s[0] += 0.001
    (again,) = source.read()
    assert (again.power_w, again.energy_j, again.error) == (power_w, None, None)


def test_before_the_first_step_there_is_no_figure(monkeypatch):
    clock_s = [10.0]
    source = modelled_source(monkeypatch, [50.0], clock_s)
    clock_s[0] += 0.001
    (sample,) = source.read()
    assert (sample.power_w, sample.error) == (None, None)


def test_full_use_counted_in_ticks_is_full_use(monkeypatch):
    """Steps of 105 ms of one busy thread are counted as 100 and 110 ms: none of it is lost."""
    cpu_s, clock_s = [0.0], [0.0]
    source = modelled_source(monkeypatch, cpu_s, clock_s)
    source._n_threads = 1
    for i in range(1, 101):
        clock_s[0], cpu_s[0] = 0.105 * i, int(10.5 * i) / 100
        (sample,) = source.read()
    assert sample.energy_j == pytest.approx(70.0 * 10.5, rel=2e-3)
    # More threads than count as full use do not: what lies above is not carried on.
    cpu_s[0] += 100.0
    clock_s[0] += 1.0
    before_j = sample.energy_j
    assert source.read()[0].energy_j - before_j == pytest.approx(70.0)
    clock_s[0] += 1.0
    assert source.read()[0].energy_j - before_j == pytest.approx(70.0 + 20.0 + 50.0 * 0.02)


def test_joules_are_booked_where_the_cpu_time_was_spent(monkeypatch):
    """Stages of 120 ms, busy and idle in turn, polled every 100 ms, of 100 W and 10 W.

    Power held from the end of its interval comes out inverted: 41 W busy and 68 W idle.
    """
    cpu_s, clock_s = [0.0], [0.0]
    source = modelled_source(monkeypatch, cpu_s, clock_s)
    source._n_threads, source._idle_w, source._active_w = 1, 10.0, 100.0
    record = PowerHistory(2.0)
    for i in range(1, 121):
        clock_s[0] = 0.1 * i
        whole, phase_s = divmod(clock_s[0], 0.24)
        cpu_s[0] = int(100 * (0.12 * whole + min(phase_s, 0.12)) + 1e-6) / 100
        record.add(source.read())
    stages = [record.energy("gpu0", 0.12 * k, 0.12 * (k + 1)) for k in range(2, 98)]
    assert {e.method for e in stages} == {"model"}
    assert {e.provenance for e in stages} == {Provenance.MODELLED}
    busy_w = statistics.fmean(e.mean_power_w for e in stages[::2])
    idle_w = statistics.fmean(e.mean_power_w for e in stages[1::2])
    # A line through each interval of 100 ms blurs neighbours of 120 ms, but does not swap them.
    assert busy_w > 70 > 40 > idle_w
    assert busy_w + idle_w == pytest.approx(110, rel=0.02)


def test_an_idle_model_of_no_watts_is_not_a_dead_counter(monkeypatch):
    clock_s = [0.0]
    source = modelled_source(monkeypatch, [0.0], clock_s)
    source._idle_w = 0.0
    record = PowerHistory(2.0)
    for i in range(1, 101):
        clock_s[0] = 0.1 * i
        record.add(source.read())
    energy = record.energy("gpu0", 1.0, 9.0)
    assert (energy.energy_j, energy.method) == (0.0, "model")


def test_cpu_time_of_a_process_with_an_odd_name(tmp_path):
    program = tmp_path / "a) b ("
    program.symlink_to("/bin/sleep")
    with subprocess.Popen([str(program), "30"]) as process:
        try:
            assert 0 <= process_cpu_time_s(process.pid) < 5
        finally:
            process.kill()
    with pytest.raises(DeviceLost):
        process_cpu_time_s(process.pid)


def test_cpu_time_counts_work():
    before_s = process_cpu_time_s(os.getpid())
    while process_cpu_time_s(os.getpid()) < before_s + 0.05:
        sum(range(10_000))


@pytest.mark.parametrize(
    ("idle_w", "active_w", "n"), [(-1, 5, 1), (9, 5, 1), (1, 5, 0), (1, 1e17, 1)]
)
def test_impossible_parameters(idle_w, active_w, n):
    with pytest.raises(ConfigError):
        ModelledSource(MeteredDevice(model=PowerModel(idle_w, active_w, pids=(1,), n_threads=n)))


def test_a_model_needs_its_figures():
    with pytest.raises(ConfigError, match="idle_w"):
        ModelledSource(MeteredDevice())


# ---------------------------------------------------------------- RAPL


def test_rapl_power_is_the_rise_of_the_counter_across_a_wrap(tmp_path):
    zone = tmp_path / "intel-rapl:0"
    zone.mkdir()
    (zone / "name").write_text("package-0")
    (zone / "max_energy_range_uj").write_text("100000000")
    counter = zone / "energy_uj"
    counter.write_text("90000000")
    clock_s = [0.0]
    source = RaplSource(tmp_path)
    source._clock = lambda: clock_s[0]
    source.open()
    clock_s[0] = 2.0
    counter.write_text("10000000")
    (sample,) = source.read()
    assert sample.energy_j == pytest.approx(110.0)
    assert sample.power_w == pytest.approx(10.0)
    # Asked again at once, it repeats its power and does not divide by nearly nothing.
    clock_s[0] = 2.001
    assert source.read()[0].power_w == pytest.approx(10.0)
    counter.unlink()
    clock_s[0] = 3.0
    assert source.read()[0].power_w is None
    counter.write_text("30000000")
    clock_s[0] = 5.0
    (back,) = source.read()
    assert (back.power_w, back.energy_j) == (None, pytest.approx(130.0))
    clock_s[0] = 6.0
    counter.write_text("35000000")
    assert source.read()[0].power_w == pytest.approx(5.0)


@pytest.fixture
def package(tmp_path, request):
    """A package of 262143 J range at a given counter; reads it at a given time."""
    range_uj = getattr(request, "param", "262143000000")
    zone = tmp_path / "intel-rapl:0"
    zone.mkdir()
    (zone / "name").write_text("package-0")
    (zone / "max_energy_range_uj").write_text(range_uj)
    source = RaplSource(tmp_path)

    def read(t_s, raw_j):
        (zone / "energy_uj").write_text(str(round(raw_j * 1e6)))
        source._clock = lambda: t_s
        if not source.describe():
            source.open()
        (sample,) = source.read()
        return sample

    return read


def test_rapl_counter_that_starts_again_is_marked(package):
    record = PowerHistory(2.0)
    figures = [(0.0, 100_000.0), (0.1, 100_010.0), (0.2, 5.0), (0.3, 15.0), (0.4, 25.0)]
    samples = [package(*figure) for figure in figures]
    record.add(samples)
    assert [s.error for s in samples] == [None, None, "CounterReset", None, None]
    assert (samples[2].power_w, samples[2].energy_j) == (None, None)
    assert [s.power_w for s in samples] == [
        None,
        pytest.approx(100),
        None,
        None,
        pytest.approx(100),
    ]
    energies_j = [s.energy_j for s in samples if s.energy_j is not None]
    assert max(energies_j) < 100_100
    assert record.energy("cpu0", 0.0, 0.4).energy_j is None
    assert record.energy("cpu0", 0.3, 0.4).counter_energy_j == pytest.approx(10.0)


@pytest.mark.parametrize("package", ["0"], indirect=True)
def test_rapl_counter_that_falls_is_unknown_where_its_range_is(package):
    """It may have wrapped or begun anew: neither the joules of the fall nor later ones are told."""
    record = PowerHistory(2.0)
    samples = [package(0.1 * i, 100.0 + 10.0 * i) for i in range(11)]
    samples += [package(1.1 + 0.1 * i, 5.0 + 10.0 * i) for i in range(11)]
    record.add(samples)
    assert [s.error for s in samples] == [None] * 11 + ["CounterReset"] * 11
    assert all((s.power_w, s.energy_j) == (None, None) for s in samples[11:])
    assert record.energy("cpu0", 0.0, 1.0).energy_j == pytest.approx(100.0)
    for window in ((0.0, 2.0), (1.3, 1.9)):
        assert record.energy("cpu0", *window).energy_j is None


def test_rapl_zones_of_one_counter_are_one_device(tmp_path, snapshot):
    """Dies of one socket, their memory, and a second view of the same name; and another socket."""
    names = {"0": "package-0-die-0", "0:0": "dram", "1": "package-0-die-1", "1:0": "dram"}
    own = {"2": ("package-1", "7000000"), "3": ("package-1", "9000000")}
    shared = {"": tmp_path / "package_uj", ":0": tmp_path / "dram_uj"}
    root = tmp_path / "powercap"
    for number, name in names.items():
        zone = make_zone(root / f"intel-rapl:{number}", name)
        (zone / "energy_uj").symlink_to(shared[number[1:]])
    for number, (name, energy_uj) in own.items():
        (make_zone(root / f"intel-rapl:{number}", name) / "energy_uj").write_text(energy_uj)
    with counting(shared.values()):
        source = RaplSource(root)
        source.open()
    assert tuple(d.device_id for d in source.describe()) == (
        "cpu0-die-0",
        "cpu1",
        "cpu1-3",
        "dram0-die-0",
    )
    snapshot("\n".join(d.name for d in source.describe()))


def make_zone(folder, name):
    folder.mkdir(parents=True)
    (folder / "name").write_text(name)
    (folder / "max_energy_range_uj").write_text("262143000000")
    return folder


@contextlib.contextmanager
def counting(files):
    """Let counters rise by 1 J each millisecond or so, the second from another value."""
    done = threading.Event()

    def count():
        uj = 5_000_000
        while not done.wait(0.001):
            uj += 1_000_000
            for i, file in enumerate(files):
                new = file.with_suffix(".new")
                new.write_text(str(uj + i * 400_000_000))
                new.replace(file)

    for file in files:
        file.write_text("5000000")
    thread = threading.Thread(target=count)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def test_rapl_counter_that_leaps_is_marked(package):
    assert package(0.0, 100.0).error is None
    assert package(0.1, 90_000.0).error == "CounterReset"


def test_rapl_counter_that_stands_still_is_missing(package):
    """Power comes from the counter, so no other reading tells; but a package never draws 0 W."""
    record = PowerHistory(2.0)
    samples = [package(0.1 * i, 100.0 + 10.0 * min(i, 10)) for i in range(31)]
    samples += [package(3.1 + 0.1 * i, 200.0 + 10.0 * i) for i in range(1, 11)]
    record.add(samples)
    assert all(s.power_w != 0 for s in samples)
    stopped = [s for s in samples if s.error == "CounterStopped"]
    assert [(s.power_w, s.energy_j) for s in stopped] == [(None, None)] * len(stopped)
    assert (stopped[0].t_s, stopped[-1].t_s) == (pytest.approx(1.5), pytest.approx(3.0))
    still = record.energy("cpu0", 1.6, 2.9)
    assert (still.energy_j, still.method) == (None, "none")
    # What was drawn meanwhile is not known, whatever the counter says afterwards.
    assert record.energy("cpu0", 0.5, 3.9).counter_energy_j is None
    assert record.energy("cpu0", 3.3, 3.9).energy_j == pytest.approx(60.0)


def test_rapl_between_two_refreshes_the_power_stands(package):
    package(0.0, 100.0)
    assert package(0.1, 110.0).power_w == pytest.approx(100.0)
    assert package(0.2, 110.0).power_w == pytest.approx(100.0)
    assert package(0.3, 130.0).power_w == pytest.approx(100.0)


# ---------------------------------------------------------------- replay


def replay(tmp_path, text, **options):
    path = tmp_path / "power.csv"
    path.write_text(HEADER + text)
    source = ReplaySource(path, **options)
    clock_s = [1000.0]
    source._clock = lambda: clock_s[0]
    source.open()

    def at(file_s):
        clock_s[0] = 1000.0 + file_s
        return {s.device_id: s for s in source.read()}

    return at


def test_rows_play_in_their_time(tmp_path):
    at = replay(tmp_path, "50,gpu0,100,1000,0.5\n51,gpu0,200,1100,1\n51.5,gpu1,7,,\n")
    assert at(0)["gpu0"].power_w == 100
    assert at(0)["gpu1"].error == "NotStarted"
    assert at(0.99)["gpu0"].power_w == 100
    late = at(1.7)
    assert (late["gpu0"].power_w, late["gpu0"].energy_j) == (200, 1100)
    assert (late["gpu1"].power_w, late["gpu1"].energy_j, late["gpu1"].utilisation) == (
        7,
        None,
        None,
    )
    assert late["gpu0"].t_s == pytest.approx(1001.7)


def test_the_counter_rises_between_rows(tmp_path):
    """Rows 4 s apart: held until the next row, the counter would seem to stand still."""
    at = replay(tmp_path, "0,gpu0,100,1000,\n4,gpu0,50,1400,\n8,gpu0,50,,\n12,gpu0,50,90,\n")
    assert [at(t)["gpu0"].energy_j for t in (0, 1, 3.99)] == [1000, 1100, pytest.approx(1399)]
    assert (at(3.99)["gpu0"].power_w, at(4)["gpu0"].power_w) == (100, 50)
    assert [at(t)["gpu0"].energy_j for t in (5, 9, 13)] == [1400, None, 90]


def test_empty_figures_gaps_and_the_end_are_missing(tmp_path):
    at = replay(tmp_path, "0,gpu0,100,,\n1,gpu0,,,\n2,gpu0,100,,\n60,gpu0,100,,\n")
    assert at(0.5)["gpu0"].error is None
    assert (at(1.5)["gpu0"].power_w, at(1.5)["gpu0"].error) == (None, "RecordedMissing")
    assert (at(30)["gpu0"].power_w, at(30)["gpu0"].error) == (None, "RecordingGap")
    assert at(60.5)["gpu0"].power_w == 100
    assert (at(90)["gpu0"].power_w, at(90)["gpu0"].error) == (None, "RecordingEnded")


def test_a_restart_goes_on_where_the_recording_was(tmp_path):
    at = replay(tmp_path, "0,gpu0,100,,\n10,gpu0,200,,\n", started_s=990.0)
    assert at(0.5)["gpu0"].power_w == 200


def test_malformed_rows_are_named_by_file_and_line(tmp_path, snapshot):
    path, lines = tmp_path / "power.csv", []
    for text in (
        "0,gpu0,100,,\n1,gpu0,much,,\n",
        "0,gpu0,100,\n",
        "0,gpu0,100,,\n0,gpu0,100,,\n",
        "0,gpu0,-1,,\n",
        "0,gpu0,1,,1.5\n",
        "0,gpu0,nan,,\n",
        "0,gpu0,1000000,,\n1,gpu0,1e17,,\n",
        "0,gpu0,1,9.1e12,\n",
        ",gpu0,1,,\n",
        "0,,1,,\n",
        "",
    ):
        path.write_text(HEADER + text)
        with pytest.raises(DataError) as caught:
            read_tracks(path)
        lines.append(str(caught.value))
    snapshot("\n".join(lines))


def test_wrong_header_missing_file_and_binary(tmp_path):
    path = tmp_path / "power.csv"
    path.write_text("time,watts\n0,1\n")
    with pytest.raises(DataError, match=r"csv:1: .*t_s,device_id"):
        read_tracks(path)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match="UTF-8"):
        read_tracks(path)
    with pytest.raises(DataError, match=r"none\.csv"):
        read_tracks(tmp_path / "none.csv")
