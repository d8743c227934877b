"""Energy of a device over the run by its readings: holds, counters, and what is wrong with them."""

from __future__ import annotations

import random
import shutil
import time
from types import SimpleNamespace

import pytest

from ecorl.ledger import LEDGER_FILE, DeviceRecord, LedgerReader
from ecorl.records import PowerSample, Provenance
from ecorl.report.energy.readings import attempt_spans, device_readings, remark
from ecorl.telemetry.integrate import Reading, hold_integral

MEASURED = Provenance.MEASURED


def poll(run, times, power_w=300.0, counter_j=None, provenance=MEASURED, **missing):
    """Readings at given times; ``counter_j`` and ``missing`` (error by time) are functions."""
    error_at = missing.get("error_at", {})
    run.ledger.samples(
        PowerSample(
            device_id="gpu0",
            t_s=t,
            power_w=None if t in error_at else power_w,
            energy_j=None if t in error_at or counter_j is None else counter_j(t),
            utilisation=None,
            provenance=provenance,
            source="nvml",
            error=error_at.get(t),
        )
        for t in times
    )


def every(step_s, start_s=1000.0, end_s=1100.0):
    return [start_s + i * step_s for i in range(round((end_s - start_s) / step_s))]


def ended(run, t_s=1100.0):
    run.clock(t_s)
    run.ledger.event("finish", "")
    assert run.ledger.flush()
    return read(run.folder)


def read(folder):
    with LedgerReader(folder) as reader:
        spans = attempt_spans(reader.attempts(), reader.last_times())
        (one,) = device_readings(reader.power_seconds(), spans)
        (span,) = spans.values()
    coverage = one.covered_s / (span[1] - span[0])
    return SimpleNamespace(
        energy_j=one.energy_j, coverage=coverage, remark=remark([one]), readings=one
    )


@pytest.mark.parametrize("step_s", [0.1, 0.25, 0.7, 1.0, 1.5, 2.0])
def test_a_reading_holds_until_the_next(run, step_s):
    poll(run, every(step_s))
    found = ended(run)
    assert found.energy_j == pytest.approx(30_000.0, rel=1e-6)
    assert found.coverage == pytest.approx(1.0)
    assert found.remark is None


@pytest.mark.parametrize(("hold_s", "expected_j"), [(None, 12_000.0), (12.5, 30_000.0)])
def test_a_slow_poll_holds_as_long_as_the_run_says(run, hold_s, expected_j):
    if hold_s is not None:
        run.ledger.hold_readings(hold_s)
    poll(run, every(5.0))
    found = ended(run)
    assert found.energy_j == pytest.approx(expected_j)
    assert found.coverage == pytest.approx(expected_j / 30_000)
    with LedgerReader(run.folder) as reader:
        assert reader.attempts()[0].hold_s == (hold_s or 2.0)


def test_nothing_is_extrapolated_at_the_edges(run):
    """Read from 1000.7 to 1099.2, and no record after 1099.9."""
    poll(run, every(0.5, 1000.7, 1099.7))
    found = ended(run, 1099.9)
    assert found.energy_j == pytest.approx(300.0 * 99.2)
    assert found.coverage == pytest.approx(99.2 / 99.9)


def test_a_missing_reading_ends_the_hold(run):
    times = every(1.0)
    poll(run, times, error_at={1050.0: "DriverTimeout", 1051.0: "DriverTimeout"})
    found = ended(run)
    assert found.energy_j == pytest.approx(300.0 * 98)
    assert found.coverage == pytest.approx(0.98)


def test_an_outage_is_not_bridged_by_power_but_by_the_counter(run):
    times = [t for t in every(0.5) if not 1040 < t < 1060]
    poll(run, times)
    assert ended(run).energy_j == pytest.approx(300.0 * 82)


def test_a_counter_bridges_an_outage(run):
    times = [t for t in every(0.5) if not 1040 < t < 1060]
    poll(run, times, counter_j=lambda t: 310.0 * (t - 1000))
    found = ended(run)
    # 99.5 s by the counter, 0.5 s by the last reading.
    assert found.energy_j == pytest.approx(310.0 * 99.5 + 150.0)
    assert (found.coverage, found.remark) == (pytest.approx(1.0), None)


# ---------------------------------------------------------------- counters that are wrong


@pytest.mark.parametrize("at_s", [1030.0, 1049.5, 1090.0])
def test_a_counter_that_starts_again_is_bridged_and_told(run, at_s):
    """First and last value alone would give 300 W x (end - 2 x restart), or nothing at all."""
    poll(run, every(0.5), counter_j=lambda t: 300.0 * (t - (1000 if t < at_s else at_s)))
    found = ended(run)
    assert found.energy_j == pytest.approx(30_000.0)
    assert found.coverage == pytest.approx(1.0)
    assert found.readings.n_breaks == 1


def test_a_counter_that_starts_again_above_its_old_value_is_seen_by_the_loss(run):
    """Lost at 1010, read again from 1011 on, with 1e6 J more on the counter."""
    error_at = {1010.0: "DeviceLost", 1010.5: "DeviceLost"}
    poll(
        run,
        every(0.5),
        counter_j=lambda t: 300.0 * (t - 1000) + (1e6 if t > 1010 else 0.0),
        error_at=error_at,
    )
    found = ended(run)
    assert found.energy_j == pytest.approx(300.0 * 99)
    assert found.coverage == pytest.approx(0.99)
    assert found.readings.n_breaks == 1


def test_a_dead_counter_gives_way_to_the_power_readings(run, snapshot):
    poll(run, every(0.5), counter_j=lambda _: 5e6)
    found = ended(run)
    assert found.energy_j == pytest.approx(30_000.0)
    assert found.readings.stopped_s == pytest.approx(99.5)
    snapshot(found.remark)


def test_a_counter_that_dies_on_the_way_gives_way_from_there(run):
    poll(run, every(0.5), counter_j=lambda t: 300.0 * (min(t, 1040.0) - 1000))
    found = ended(run)
    assert found.energy_j == pytest.approx(30_000.0)
    assert found.readings.stopped_s == pytest.approx(59.5)


def test_a_slow_counter_that_catches_up_is_right(run):
    poll(run, every(0.5), counter_j=lambda t: 300.0 * ((t - 1000) // 5 * 5))
    found = ended(run)
    # What follows the last step, at 1095, is held.
    assert found.energy_j == pytest.approx(30_000.0)
    assert found.readings.stopped_s == pytest.approx(4.5)


def test_a_counter_of_a_device_without_power_may_stand_still(run):
    poll(run, every(0.5), power_w=0.0, counter_j=lambda _: 7.0)
    found = ended(run)
    assert (found.energy_j, found.remark) == (0.0, None)


def test_counter_and_power_that_contradict_each_other_give_no_energy(run, snapshot):
    poll(run, every(0.5), counter_j=lambda t: 10.0 * (t - 1000))
    found = ended(run)
    assert found.energy_j is None
    assert found.readings.disputed == pytest.approx((995.0, 29_850.0))
    report = run.report()
    (part,) = report.spending.parts
    assert (part.energy_j, part.at_least) == (None, True)
    snapshot("\n".join(report.missing))


def test_the_counter_of_a_model_is_not_judged(run):
    modelled = Provenance.MODELLED
    poll(run, every(0.5), counter_j=lambda t: 10.0 * (t - 1000), provenance=modelled)
    assert ended(run).energy_j == pytest.approx(995.0 + 150.0)


def test_a_remark_alone_makes_no_lower_bound(run, snapshot):
    run.ledger.device(DeviceRecord("gpu0", "h100", MEASURED, "nvml", None))
    poll(run, every(0.5), counter_j=lambda t: 300.0 * (t - (1000 if t < 1030 else 1030)))
    ended(run)
    report = run.report()
    (column,) = report.spending.columns
    assert (column.energy_j, column.at_least) == (pytest.approx(30_000.0), False)
    snapshot("\n".join(report.missing))


# ---------------------------------------------------------------- the whole run against its ring


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_hold_over_the_raw_ring_is_the_figure_of_the_report(run, seed):
    """Uneven readings with gaps, of a run that is flushed, goes on, is killed: at each instant."""
    draw = random.Random(seed)
    t_s = 1000.0
    for part in range(4):
        samples = []
        for _ in range(100):
            t_s += draw.choice([0.05, 0.1, 0.11, 0.4, 1.3, 3.7])
            power_w = None if draw.random() < 0.1 else draw.uniform(20, 400)
            samples.append(PowerSample("gpu0", t_s, power_w, None, None, MEASURED, "nvml"))
        run.ledger.samples(samples)
        run.clock(t_s + draw.uniform(0, 4))
        if part % 2:
            run.ledger.event("width", "")
            assert run.ledger.flush()
        else:
            # Wait for the queue, without the flush that would write what is open.
            run.ledger._writer.put(lambda _: None, 0)
            while run.ledger._writer._queue or run.ledger._writer._pending:
                time.sleep(0.01)
        killed = run.folder / f"killed-{part}"
        killed.mkdir()
        for name in (LEDGER_FILE, LEDGER_FILE + "-wal"):
            shutil.copyfile(run.folder / name, killed / name)
        with LedgerReader(killed) as reader:
            (span,) = attempt_spans(reader.attempts(), reader.last_times()).values()
            ring = [Reading(r.t_s, r.power_w, r.energy_j) for r in reader.raw_samples()]
        assert len(ring) == 100 * (part + 1)
        integral = hold_integral(ring, *span, 2.0)
        found = read(killed)
        assert found.energy_j == pytest.approx(integral.energy_j, rel=1e-6)
        assert found.coverage == pytest.approx(integral.covered_s / (span[1] - span[0]), rel=1e-6)
