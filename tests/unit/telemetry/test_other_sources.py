"""Modelled, RAPL and replay: what is particular to each."""

import os
import subprocess

import pytest

from ecorl.errors import ConfigError, DataError, DeviceLost
from ecorl.telemetry import modelled
from ecorl.telemetry.modelled import ModelledSource, process_cpu_time_s
from ecorl.telemetry.rapl import RaplSource
from ecorl.telemetry.replay import ReplaySource, read_tracks

HEADER = "t_s,device_id,power_w,energy_j,utilisation\n"


# ---------------------------------------------------------------- modelled


def modelled_source(monkeypatch, cpu_s, clock_s):
    monkeypatch.setattr(modelled, "process_cpu_time_s", lambda pid: cpu_s[0])
    source = ModelledSource("gpu0", 20.0, 70.0, 1, 2)
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
    assert sample.energy_j is None


def test_before_the_first_step_there_is_no_figure(monkeypatch):
    clock_s = [10.0]
    source = modelled_source(monkeypatch, [50.0], clock_s)
    clock_s[0] += 0.001
    (sample,) = source.read()
    assert (sample.power_w, sample.error) == (None, None)


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


@pytest.mark.parametrize(("idle_w", "active_w", "n"), [(-1, 5, 1), (9, 5, 1), (1, 5, 0)])
def test_impossible_parameters(idle_w, active_w, n):
    with pytest.raises(ConfigError):
        ModelledSource("gpu0", idle_w, active_w, 1, n)


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


@pytest.mark.parametrize(
    ("text", "line", "why"),
    [
        ("0,gpu0,100,,\n1,gpu0,much,,\n", 3, "not a number"),
        ("0,gpu0,100,\n", 2, "4 cells"),
        ("0,gpu0,100,,\n0,gpu0,100,,\n", 3, "does not ascend"),
        ("0,gpu0,-1,,\n", 2, "negative"),
        ("0,gpu0,1,,1.5\n", 2, "above 1"),
        ("0,gpu0,nan,,\n", 2, "not finite"),
        (",gpu0,1,,\n", 2, "may not be empty"),
        ("0,,1,,\n", 2, "may not be empty"),
        ("", 2, "no readings"),
    ],
)
def test_malformed_rows_are_named_by_file_and_line(tmp_path, text, line, why):
    path = tmp_path / "power.csv"
    path.write_text(HEADER + text)
    with pytest.raises(DataError, match=why) as caught:
        read_tracks(path)
    assert str(caught.value).startswith(f"{path}:{line}:")


def test_wrong_header_missing_file_and_binary(tmp_path):
    path = tmp_path / "power.csv"
    path.write_text("time,watts\n0,1\n")
    with pytest.raises(DataError, match=r"csv:1: the header must be t_s,device_id"):
        read_tracks(path)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match="UTF-8"):
        read_tracks(path)
    with pytest.raises(DataError, match=r"none\.csv"):
        read_tracks(tmp_path / "none.csv")
