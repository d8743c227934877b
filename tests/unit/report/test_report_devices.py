"""How the devices were read, in figures and in words."""

from __future__ import annotations

from ecorl.ledger import DeviceRecord
from ecorl.records import Provenance, Stage
from ecorl.report.render.event_tables import telemetry_section

MEASURED = Provenance.MEASURED


def telemetry(report, device_id="gpu0"):
    return next(d for d in report.telemetry if d.device_id == device_id)


def cells(report, device_id="gpu0"):
    made = telemetry_section(report.telemetry).tables[0]
    (row,) = (r for r in made.rows if r[0] == device_id)
    return dict(zip(made.columns, row, strict=True))


def test_devices_read_together_have_the_gap_of_both(run):
    run.ledger.device(DeviceRecord("gpu0", "h100", MEASURED, "nvml", 30.0))
    run.ledger.device(DeviceRecord("gpu1", "h100", MEASURED, "nvml", 30.0))
    joint = {"meters": ("gpu0", "gpu1"), "counter_j": 100.0, "integral_j": 80.0}
    run.ran(Stage.GENERATION, (1000, 1010), 100.0, **joint)
    report = run.report()
    for device_id in ("gpu0", "gpu1"):
        found = telemetry(report, device_id)
        assert (round(found.counter_gap, 6), found.n_counter_gap) == (-0.2, 1)
        gap = cells(report, device_id)["integral against counter"]
        assert gap == "-20.0 % (of gpu0+gpu1 together)"


def test_a_counter_of_nought_joules_is_said_to_be_so(run):
    run.ledger.device(DeviceRecord("gpu0", "h100", MEASURED, "nvml", 30.0))
    run.ran(Stage.GENERATION, (1000, 1010), 80.0, counter_j=0.0, integral_j=80.0)
    report = run.report()
    assert telemetry(report).counter_gap is None
    assert "the counter says 0 J" in cells(report)["integral against counter"]


def test_idle_power_is_named_as_a_figure_of_the_profile(run):
    run.ledger.device(DeviceRecord("gpu0", "h100", MEASURED, "nvml", 30.0))
    run.power("gpu0", range(1000, 1004), 100.0)
    row = cells(run.report())
    assert (row["provenance"], row["idle W (profile)"]) == ("measured", "30.0")
    # Beside the provenance of the readings stand figures of readings alone.
    assert "idle W" not in row
    assert (row["readings"], row["polled every"]) == ("8", "0.500 s")
