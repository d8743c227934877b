"""How the devices were read, in figures and in words."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from ecorl.ledger import DeviceRecord
from ecorl.records import FOREIGN_COUNTER, DeviceKind, PowerSample, Provenance, Stage
from ecorl.report.render.event_tables import telemetry_section
from ecorl.report.render.page import render_html, render_json
from ecorl.report.render.text import print_report

MEASURED = Provenance.MEASURED


def telemetry(report, device_id="gpu0"):
    return next(d for d in report.telemetry if d.device_id == device_id)


def cells(report, device_id="gpu0"):
    made = telemetry_section(report.telemetry).tables[0]
    (row,) = (r for r in made.rows if r[0] == device_id)
    return dict(zip(made.columns, row, strict=True))


def test_devices_read_together_have_the_gap_of_both(run, snapshot):
    run.ledger.device(DeviceRecord("gpu0", "h100", MEASURED, "nvml", 30.0))
    run.ledger.device(DeviceRecord("gpu1", "h100", MEASURED, "nvml", 30.0))
    joint = {"meters": ("gpu0", "gpu1"), "counter_j": 100.0, "integral_j": 80.0}
    run.ran(Stage.GENERATION, (1000, 1010), 100.0, **joint)
    report = run.report()
    for device_id in ("gpu0", "gpu1"):
        found = telemetry(report, device_id)
        assert (round(found.counter_gap, 6), found.n_counter_gap) == (-0.2, 1)
        snapshot(cells(report, device_id)["integral against counter"], device_id)


def test_a_counter_of_nought_joules_is_said_to_be_so(run, snapshot):
    run.ledger.device(DeviceRecord("gpu0", "h100", MEASURED, "nvml", 30.0))
    run.ran(Stage.GENERATION, (1000, 1010), 80.0, counter_j=0.0, integral_j=80.0)
    report = run.report()
    assert telemetry(report).counter_gap is None
    snapshot(cells(report)["integral against counter"])


def test_idle_power_is_named_as_a_figure_of_the_profile(run):
    run.ledger.device(DeviceRecord("gpu0", "h100", MEASURED, "nvml", 30.0))
    run.power("gpu0", range(1000, 1004), 100.0)
    row = cells(run.report())
    assert (row["provenance"], row["idle W (profile)"]) == ("measured", "30.0")
    # Beside the provenance of the readings stand figures of readings alone.
    assert "idle W" not in row
    assert (row["readings"], row["polled every"]) == ("8", "0.500 s")


def foreign(run, factor=1.7):
    """A run of 20 s at 300 W whose counter counts more; found after 3 s, in the second stage."""
    run.ledger.device(DeviceRecord("gpu0", "h100", MEASURED, "nvml", 30.0))
    counted_j = 300.0 * factor
    samples = []
    for i in range(1, 40):
        t_s = 1000 + 0.5 * i
        error = FOREIGN_COUNTER if t_s >= 1003 else None
        energy_j = 50.0 + counted_j * (t_s - 1000)
        samples.append(PowerSample("gpu0", t_s, 300.0, energy_j, None, MEASURED, "nvml", error))
    run.ledger.samples(samples)
    both = {"counter_j": 2 * counted_j, "integral_j": 600.0}
    run.ran(Stage.GENERATION, (1001, 1003), 2 * counted_j, method="counter", **both)
    late = {"method": "integral_counter_foreign", **both}
    run.ran(Stage.ACTOR_TRAIN, (1003, 1005), 600.0, **late)


def test_what_a_counter_of_something_else_had_booked_is_booked_anew_and_said(run, snapshot):
    foreign(run)
    report = run.report()
    assert [row.energy_j for row in report.stages] == [600.0, 600.0]
    known_j = sum(p.energy_j for p in report.spending.parts if p.energy_j is not None)
    assert known_j == pytest.approx(300.0 * 19.0, rel=0.06)
    (doubt,) = (line for line in report.missing if "counter" in line)
    snapshot(doubt)
    out = io.StringIO()
    print_report(report, Console(file=out))
    for text in (out.getvalue(), render_html(report), render_json(report)):
        assert doubt in " ".join(text.split())


def test_a_counter_that_shares_executions_with_a_foreign_one_is_not_said_to_be_used(run):
    foreign(run)
    run.ledger.device(DeviceRecord("gpu1", "h100", MEASURED, "nvml", 30.0))
    run.ledger.samples([PowerSample("gpu1", 1001.0, 300.0, 9.0, None, MEASURED, "nvml", None)])
    both = {"counter_j": 4500.0, "integral_j": 3000.0, "device_ids": ("gpu0", "gpu1")}
    run.ran(Stage.REWARD, (1006, 1011), 3000.0, method="integral_counter_foreign", **both)
    report = run.report()
    lines = [line for line in report.missing if "counter" in line]
    assert [line.split(":")[0] for line in lines] == ["gpu0"]


@pytest.mark.parametrize(("counter_j", "is_doubtful"), [(800.0, True), (600.0, False)])
def test_a_counter_that_is_used_against_its_power_readings_is_doubtful(
    run, counter_j, is_doubtful, snapshot
):
    run.ledger.device(DeviceRecord("gpu0", "h100", MEASURED, "nvml", 30.0))
    both = {"counter_j": counter_j, "integral_j": 580.0}
    run.ran(Stage.GENERATION, (1001, 1006), counter_j, method="counter", **both)
    lines = [line for line in run.report().missing if "energy counter" in line]
    assert len(lines) == is_doubtful
    snapshot("\n".join(lines))


@pytest.mark.parametrize(
    ("source", "kind", "n_said"),
    [
        ("modelled:cpu_time (7 W idle)", DeviceKind.CPU, 1),
        ("modelled:cpu_time:tree (7 W idle)", DeviceKind.CPU, 1),
        ("modelled:cpu_time:tree+cgroup (7 W)", DeviceKind.CPU, 1),
        ("modelled:cpu_time (7 W idle)", DeviceKind.GPU, 0),
        ("rapl:package-0", DeviceKind.CPU, 0),
    ],
)
def test_what_a_modelled_processors_power_leaves_out_is_said_once(
    run, source, kind, n_said, snapshot
):
    for device_id in ("cpu0", "cpu1"):
        record = DeviceRecord(device_id, "host", Provenance.MODELLED, source, 7.0, kind=kind)
        run.ledger.device(record)
    lines = [line for line in run.report().missing if "modelled" in line]
    assert len(lines) == n_said
    snapshot("\n".join(lines))
