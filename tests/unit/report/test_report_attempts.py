"""Attempts that differ: in the devices that they had, and in how these were read."""

from __future__ import annotations

import pytest

from ecorl.ledger import DeviceRecord
from ecorl.records import PowerSample, Provenance, Stage
from ecorl.report.render.event_tables import telemetry_section

MEASURED, MODELLED = Provenance.MEASURED, Provenance.MODELLED
RAPL, CPU_TIME = "rapl:package-0", "modelled:cpu_time"


def read(run, seconds, power_w, source, provenance=MEASURED, device_id="gpu0"):
    """Two readings a second by an instrument of one's own choice."""
    run.ledger.samples(
        PowerSample(device_id, s + half, power_w, None, None, provenance, source)
        for s in seconds
        for half in (0.0, 0.5)
    )


def lost(run, t_s, source="nvml", device_id="gpu0"):
    run.ledger.samples(
        [PowerSample(device_id, t_s, None, None, None, MEASURED, source, "DeviceLost")]
    )


def ended(run, t_s):
    run.clock(t_s)
    run.ledger.event("finish", "")
    return run.report()


def part(report, device_id, cause, provenance=MEASURED):
    (found,) = (
        p
        for p in report.spending.parts
        if (p.device_id, p.cause, p.provenance) == (device_id, cause, provenance)
    )
    return found


def column(report, title):
    return next(c for c in report.spending.columns if c.title == title)


# ---------------------------------------------------------------- calls that nothing holds


def test_calls_in_an_outage_are_in_no_readings(run, snapshot):
    """150 of 10,000 s: far too few to make the readings sparse."""
    read(run, range(1000, 5000), 500.0, "nvml")
    lost(run, 5000.0)
    read(run, range(5150, 11000), 500.0, "nvml")
    for i in range(3):
        span = (5010 + 40 * i, 5045 + 40 * i)
        run.ran(Stage.GENERATION, span, None, iteration=i + 1, method="none")
    run.ran(Stage.GENERATION, (7000, 7010), None, iteration=4, method="none")
    report = ended(run, 11000.0)
    assert column(report, "measured").at_least
    (gap,) = report.spending.gaps
    snapshot(gap)


def test_many_devices_are_read_as_well_as_the_worst_of_them(run, snapshot):
    """Without gpu1 for 15 % of the time; a mean over four would say 96 %."""
    ids = [f"gpu{i}" for i in range(4)]
    joint = {"device": f"{'+'.join(ids)}:h100"}
    for device_id in ids:
        end_s = 1170 if device_id == "gpu1" else 1200
        read(run, range(1000, end_s), 100.0, "nvml", device_id=device_id)
    lost(run, 1170.0, device_id="gpu1")
    run.ran(Stage.GENERATION, (1000, 1100), 40_000.0, **joint)
    run.ran(Stage.GENERATION, (1180, 1190), None, iteration=2, **joint)
    report = ended(run, 1200.0)
    assert column(report, "measured").at_least
    snapshot("\n".join(report.spending.gaps))


# ---------------------------------------------------------------- provenances


@pytest.mark.parametrize("modelled_first", [True, False])
def test_attempts_read_otherwise_stand_apart(run, modelled_first):
    """20 s at 100 W by a model, 10 s at 500 W by an instrument; half of it in calls."""
    ways = [(MODELLED, CPU_TIME, 100.0, 20), (MEASURED, RAPL, 500.0, 10)]
    at_s = 1000
    for i, (provenance, source, power_w, n) in enumerate(ways if modelled_first else ways[::-1]):
        if i:
            run.resume(float(at_s), i)
        run.ledger.device(DeviceRecord("gpu0", "h100", provenance, source, 30.0))
        read(run, range(at_s, at_s + n), power_w, source, provenance)
        half_j = power_w * n / 2
        run.ran(
            Stage.GENERATION, (at_s, at_s + n / 2), half_j, iteration=i + 1, provenance=provenance
        )
        run.clock(at_s + n)
        run.ledger.event("stop", "")
        at_s += 1000
    report = run.report()
    for title, half_j, half_s in (("modelled", 1000.0, 10.0), ("measured", 2500.0, 5.0)):
        beside = part(report, "gpu0", "beside stages", Provenance(title))
        assert (beside.energy_j, beside.time_s) == pytest.approx((half_j, half_s))
        assert column(report, title).by_cause == pytest.approx(
            {"generation": half_j, "beside stages": half_j}
        )
    assert not report.spending.columns[-1].at_least
    assert {(t.provenance, t.source): t.n_readings for t in report.telemetry} == {
        (MODELLED, CPU_TIME): 40,
        (MEASURED, RAPL): 20,
    }
    assert len(telemetry_section(report.telemetry).tables[0].rows) == 2


def test_a_model_that_takes_over_on_the_way_stands_apart(run):
    """One attempt: an instrument for 60 s, a model for the 40 s after it was lost."""
    run.ledger.device(DeviceRecord("gpu0", "h100", MEASURED, "nvml (H100)", 30.0))
    read(run, range(1000, 1060), 500.0, "nvml")
    lost(run, 1060.0)
    read(run, range(1060, 1100), 100.0, CPU_TIME, MODELLED)
    run.ran(Stage.GENERATION, (1000, 1050), 25_000.0)
    run.ran(Stage.GENERATION, (1070, 1090), 2_000.0, iteration=2, provenance=MODELLED)
    report = ended(run, 1100.0)
    measured, modelled = (part(report, "gpu0", "beside stages", p) for p in (MEASURED, MODELLED))
    assert (measured.energy_j, modelled.energy_j) == pytest.approx((5_000.0, 2_000.0))
    # 30 s beside the calls, by the time that each source covered.
    assert (measured.time_s, modelled.time_s) == pytest.approx((18.0, 12.0))
    assert report.spending.gaps == ()


def test_devices_read_as_one_are_as_good_as_the_weakest(run):
    read(run, range(1000, 1010), 100.0, "nvml")
    read(run, range(1000, 1010), 100.0, CPU_TIME, MODELLED, device_id="gpu1")
    run.ran(Stage.GENERATION, (1000, 1010), 1500.0, meters=("gpu0", "gpu1"), provenance=MODELLED)
    report = ended(run, 1010.0)
    assert part(report, "gpu0+gpu1", "beside stages", MODELLED).energy_j == pytest.approx(500.0)


def test_what_was_announced_and_never_read_has_no_readings(run):
    run.ledger.device(DeviceRecord("gpu0", "h100", MEASURED, "nvml", 30.0))
    read(run, range(1000, 1010), 100.0, "nvml")
    run.resume(2000.0, 0)
    run.ledger.device(DeviceRecord("gpu0", "h100", MODELLED, CPU_TIME, 30.0))
    found = ended(run, 2001.0).telemetry
    assert [(t.source, t.n_readings) for t in found] == [("nvml", 20), (CPU_TIME, 0)]


# ---------------------------------------------------------------- attempts without the device


def test_a_card_idles_only_in_the_attempts_that_had_it(run, snapshot):
    run.standard()
    run.resume(5000.0, 1)
    run.ledger.device(DeviceRecord("gpu0", "h100", MEASURED, "nvml", 30.0))
    run.ran(Stage.GENERATION, (5000, 5800), 1000.0, iteration=2)
    report = ended(run, 6000.0)
    assert part(report, "fpga0", "idle", MODELLED).energy_j == pytest.approx(20.0 * 19.5)
    # The wait of 1.5 s shrinks; the attempt without the card adds nothing.
    assert report.balance.idle_share == pytest.approx(18.0 / 18.5)
    snapshot("\n".join(report.verdict))
    t = report.card_timeline
    moved_s = t.modelled_run_time_s - t.run_time_s
    assert t.idle_j == pytest.approx(20.0 * (20.0 + moved_s - 0.5))


def test_another_gpu_after_a_resume_leaves_no_gap(run):
    for i, device in enumerate(("gpu0", "gpu1")):
        if i:
            run.resume(2000.0, 1)
        at_s = 1000 * (i + 1)
        run.ledger.device(DeviceRecord(device, "h100", MEASURED, "nvml", 30.0))
        run.power(device, range(at_s, at_s + 20), 500.0)
        run.ran(Stage.GENERATION, (at_s, at_s + 10), 5000.0, device=f"{device}:h100", iteration=i)
        run.clock(at_s + 20.0)
        run.ledger.event("stop", "")
    report = run.report()
    measured = column(report, "measured")
    assert (measured.energy_j, measured.at_least) == (pytest.approx(20_000.0), False)


@pytest.mark.parametrize("is_read", [True, False])
def test_one_of_two_devices_goes_on_alone(run, is_read):
    """Read together for 20 s, then gpu0 alone for 10 s; half of it in calls."""
    for i, ids in enumerate((["gpu0", "gpu1"], ["gpu0"])):
        if i:
            run.resume(2000.0, 1)
        at_s, half_s = 1000 * (i + 1), 10 - 5 * i
        for device_id in ids:
            run.ledger.device(DeviceRecord(device_id, "h100", MEASURED, "nvml", 30.0))
            if is_read:
                run.power(device_id, range(at_s, at_s + 2 * half_s), 100.0)
        half_j = 100.0 * half_s * len(ids)
        run.ran(Stage.GENERATION, (at_s, at_s + half_s), half_j, meters=tuple(ids), iteration=i)
        run.clock(at_s + 2 * half_s)
        run.ledger.event("stop", "")
    report = run.report()
    assert not any(c.at_least for c in report.spending.columns)
    if is_read:
        found = part(report, "gpu0+gpu1", "beside stages")
        assert found.energy_j == pytest.approx(2 * 1000.0 + 500.0)
    else:
        found = part(report, "gpu0+gpu1", "idle", MODELLED)
        assert found.energy_j == pytest.approx(30.0 * (2 * 10 + 5))


def test_fewer_devices_after_a_resume_are_counted_once(run):
    """Three for 20 s, then two of them for 20 s, at 100 W each."""
    for i, ids in enumerate((["gpu0", "gpu1", "gpu2"], ["gpu0", "gpu1"])):
        if i:
            run.resume(2000.0, 1)
        at_s = 1000 * (i + 1)
        for device_id in ids:
            run.ledger.device(DeviceRecord(device_id, "h100", MEASURED, "nvml", 30.0))
            run.power(device_id, range(at_s, at_s + 20), 100.0)
        joint = {"meters": tuple(ids), "iteration": i}
        run.ran(Stage.GENERATION, (at_s, at_s + 10), 1000.0 * len(ids), **joint)
        run.clock(at_s + 20.0)
        run.ledger.event("stop", "")
    measured = column(run.report(), "measured")
    assert (measured.energy_j, measured.at_least) == (pytest.approx(10_000.0), False)


def test_an_attempt_that_recorded_no_device_counts_for_all(run):
    run.ledger.device(DeviceRecord("gpu0", "h100", MEASURED, "nvml", 30.0))
    run.ran(Stage.GENERATION, (1000, 1010), 1000.0)
    run.resume(2000.0, 1)
    report = ended(run, 2010.0)
    assert part(report, "gpu0", "idle", MODELLED).time_s == pytest.approx(10.0)


# ---------------------------------------------------------------- instruments


def test_instruments_that_follow_each_other_add_up(run):
    """600 s by one, then 399 s by another, of 1000 s."""
    read(run, range(1000, 1600), 500.0, "nvml:field186:gpu")
    lost(run, 1600.0, "nvml:field186:gpu")
    read(run, range(1601, 2000), 500.0, "nvml:power_usage")
    report = ended(run, 2000.0)
    measured = column(report, "measured")
    assert (measured.energy_j, measured.at_least) == (pytest.approx(999 * 500.0), False)
    assert [(t.source, t.n_readings, t.n_missing) for t in report.telemetry] == [
        ("nvml:field186:gpu", 1200, 1),
        ("nvml:power_usage", 798, 0),
    ]


def test_instruments_side_by_side_count_once(run):
    read(run, range(1000, 1100), 500.0, "a")
    read(run, range(1040, 1060), 100.0, "b")
    assert column(ended(run, 1100.0), "measured").energy_j == pytest.approx(50_000.0)


def test_joules_of_executions_are_told_in_a_fitting_unit(run, snapshot):
    run.ran(Stage.GENERATION, (1000, 1010), 5e6)
    run.power("gpu0", range(1000, 1010), 100.0)
    (gap,) = ended(run, 1010.0).spending.gaps
    snapshot(gap)
