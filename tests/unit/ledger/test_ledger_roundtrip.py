"""What goes into the ledger comes out of it, and a resume marks what it makes void."""

from __future__ import annotations

import contextlib
import math
import sqlite3
import time
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ecorl.errors import LedgerError, RunError
from ecorl.ledger import LEDGER_FILE, DeviceRecord, FileReader, Ledger, LedgerReader
from ecorl.ledger.rollup import SecondRow, pack_block, unpack_block
from ecorl.records import (
    Action,
    ActionCost,
    BarrierWait,
    DeviceKind,
    EnergyMethod,
    EventKind,
    FaultEvent,
    FaultKind,
    GuardRefusal,
    Placement,
    PowerSample,
    Provenance,
    Stage,
    StageEnergy,
    StageResult,
)
from tests.examples import examples


def make(folder: Path, **kwargs) -> Ledger:
    return Ledger.create(
        folder / LEDGER_FILE, run_id="r", config_toml="seed = 1\n", meta={"commit": "abc"}, **kwargs
    )


def result(iteration: int = 1, energy_j: float | None = 12.5, **kwargs) -> StageResult:
    energy = StageEnergy(
        device_ids=("gpu0", "gpu1"),
        t_start_s=10.0,
        t_end_s=12.0,
        energy_j=energy_j,
        mean_power_w=None if energy_j is None else energy_j / 2,
        counter_energy_j=None,
        integral_energy_j=energy_j,
        n_samples=20,
        coverage=0.98,
        method=EnergyMethod.INTEGRAL,
        provenance=Provenance.MEASURED,
    )
    fields = {
        "iteration": iteration,
        "stage": Stage.REWARD,
        "action": Action.CONCURRENT,
        "device_ids": ("gpu0", "gpu1"),
        "device": "h100",
        "t_start_s": 10.0,
        "t_end_s": 12.0,
        "time_s": 2.0,
        "time_provenance": Provenance.MEASURED,
        "host_time_s": 2.1,
        "wait_s": 0.4,
        "n_sequences": 8,
        "n_tokens": 400,
        "n_output_tokens": 100,
        "energy": energy,
        "n_rows_fallback": 1,
        "fault": FaultKind.ENGINE_TIMEOUT,
    }
    return StageResult(**(fields | kwargs))


def sample(t_s: float, power_w: float | None, device_id: str = "gpu0", **kwargs) -> PowerSample:
    fields = {
        "energy_j": None,
        "utilisation": None,
        "provenance": Provenance.MEASURED,
        "source": "nvml",
    }
    return PowerSample(device_id=device_id, t_s=t_s, power_w=power_w, **(fields | kwargs))


def test_every_record_comes_back_equal(tmp_path):
    placement = Placement(
        iteration=3,
        stage=Stage.REWARD,
        proposed=Action.CONCURRENT,
        action=Action.GPU,
        policy="lookahead",
        reason="queue full",
        costs=(
            ActionCost(Action.GPU, 1.5, 300.0, 0.0),
            ActionCost(Action.FPGA, 2.5, 90.0, 2.5, Provenance.PUBLISHED),
        ),
        refusal=GuardRefusal.QUEUE_FULL,
    )
    with make(tmp_path) as ledger:
        ledger.placement(placement)
        ledger.result(result(3))
        ledger.result(result(4, energy=None, time_s=None, fault=None))
        ledger.result(result(5, energy_j=None))
        ledger.barrier(BarrierWait(3, Stage.REWARD, 0.25, 64, 2, 1))
        ledger.fault(FaultEvent(None, "DeviceLost", "gpu0", "fell off the bus"))
        ledger.fault(FaultEvent(3, FaultKind.INVALID_RESULT, "fpga0", "NaN", n_rows=4))
        ledger.metric(3, "reward", np.float32(0.5))
        ledger.metric(4, "kl", None)
        ledger.metric(4, "loss", math.nan)
        ledger.evaluation("reward", "before", [1.0, None, math.nan, 2])
        ledger.device(
            DeviceRecord("fpga0", "u55c", Provenance.MODELLED, "cycle model", 35.0, '{"a": 1}')
        )
        ledger.device(DeviceRecord("fpga0", "u55c", Provenance.MODELLED, "cycle model", None, "{}"))
        ledger.device(
            DeviceRecord("mine", "own", Provenance.MEASURED, "x", None, kind=DeviceKind.CPU)
        )
        ledger.checkpoint(np.int64(20), "checkpoints/20")
        ledger.edi("{1}")
        ledger.edi("{2}")
        ledger.event(EventKind.START, "fresh")
        assert ledger.flush()
        with LedgerReader(tmp_path) as reader:
            assert reader.run().meta == {"commit": "abc"}
            assert reader.run().config_toml == "seed = 1\n"
            (row,) = reader.placements()
            assert row.placement == placement
            assert not row.superseded
            assert [e.result for e in reader.executions()] == [
                result(3),
                result(4, energy=None, time_s=None, fault=None),
                result(5, energy_j=None),
            ]
            (barrier,) = reader.barriers()
            assert (barrier.stage, barrier.wait_s, barrier.n_rows) == (Stage.REWARD, 0.25, 64)
            assert (barrier.n_missing, barrier.n_late) == (2, 1)
            assert [(f.iteration, f.kind, f.where, f.n_rows) for f in reader.faults()] == [
                (None, "DeviceLost", "gpu0", 0),
                (3, "InvalidResult", "fpga0", 4),
            ]
            assert [(m.name, m.value) for m in reader.metrics()] == [
                ("reward", 0.5),
                ("kl", None),
                ("loss", None),
            ]
            assert [m.iteration for m in reader.metrics("kl")] == [4]
            assert reader.evaluations()[0].values == (1.0, None, None, 2.0)
            device, named = reader.devices()
            assert (device.profile, device.idle_w, device.kind) == ("u55c", None, DeviceKind.FPGA)
            assert (named.profile, named.kind) == ("own", DeviceKind.CPU)
            assert reader.checkpoints()[0].iteration == 20
            assert [e.json for e in reader.edi()] == ["{2}"]
            assert [(e.kind, e.detail) for e in reader.events()] == [("start", "fresh")]
    assert ledger.dropped_rows == 0


def test_a_closed_ledger_is_one_plain_file(tmp_path):
    ledger = make(tmp_path)
    ledger.result(result())
    ledger.close()
    ledger.close()
    assert {p.name for p in tmp_path.iterdir()} == {LEDGER_FILE, LEDGER_FILE + ".lock"}
    assert len(LedgerReader(tmp_path / LEDGER_FILE).executions()) == 1


def test_a_resume_marks_later_work_as_superseded(tmp_path):
    with make(tmp_path) as ledger:
        assert ledger.attempt == 1
        for i in (1, 2, 3, 4):
            ledger.result(result(i))
            ledger.metric(i, "reward", float(i))
            ledger.barrier(BarrierWait(i, Stage.REWARD, 0.1, 1, 0, 0))
        ledger.fault(FaultEvent(None, "x", "y", "z"))
        ledger.samples([sample(100.0 + i / 10, 50.0) for i in range(40)])
    with Ledger.open_for_resume(tmp_path / LEDGER_FILE, from_step=2) as again:
        assert again.attempt == 2
        again.result(result(3))
        again.flush()
        with LedgerReader(tmp_path) as reader:
            seen = [(e.attempt, e.result.iteration, e.superseded) for e in reader.executions()]
            assert seen == [(1, 1, 0), (1, 2, 0), (1, 3, 1), (1, 4, 1), (2, 3, 0)]
            assert [m.superseded for m in reader.metrics()] == [False, False, True, True]
            assert [b.superseded for b in reader.barriers()] == [False, False, True, True]
            assert [f.superseded for f in reader.faults()] == [False]
            assert [a.from_step for a in reader.attempts()] == [0, 2]
            assert sum(p.n for p in reader.power_seconds()) == 40
    with Ledger.open_for_resume(tmp_path / LEDGER_FILE, from_step=0) as third:
        third.flush()
        with LedgerReader(tmp_path) as reader:
            assert all(e.superseded for e in reader.executions())


def test_the_anchor_is_one_instant_on_both_clocks(tmp_path):
    offset_s = time.time() - time.monotonic()
    with make(tmp_path), LedgerReader(tmp_path) as reader:
        (attempt,) = reader.attempts()
        found_s = attempt.unix_anchor_s - attempt.monotonic_anchor_s
        assert found_s == pytest.approx(offset_s, abs=1.0)


def test_one_writer_only_and_clear_errors(tmp_path, snapshot):
    lines, path = [], tmp_path / LEDGER_FILE

    def refused(error, what):
        with pytest.raises(error) as caught:
            what()
        lines.append(str(caught.value))

    refused(RunError, lambda: LedgerReader(tmp_path))
    refused(RunError, lambda: Ledger.open_for_resume(path, from_step=0))
    with make(tmp_path) as ledger:
        refused(RunError, lambda: make(tmp_path))
        refused(RunError, lambda: Ledger.open_for_resume(path, from_step=0))
        ledger.result(result())
        assert ledger.flush()
    Ledger.open_for_resume(path, from_step=0).close()
    blocked = tmp_path / "file"
    blocked.write_text("")
    refused(LedgerError, lambda: make(blocked))
    snapshot("\n".join(lines))


@pytest.mark.parametrize("content", [b"", b"no database at all " * 400])
def test_what_is_no_ledger_is_refused(tmp_path, content):
    path = tmp_path / LEDGER_FILE
    path.write_bytes(content)
    with pytest.raises(LedgerError, match=r"ledger"):
        LedgerReader(path)
    with pytest.raises(LedgerError):
        Ledger.open_for_resume(path, from_step=0)


@pytest.mark.parametrize("version", [6, 8])
def test_another_version_is_refused(tmp_path, version):
    make(tmp_path).close()
    path = tmp_path / LEDGER_FILE
    with sqlite3.connect(path) as connection:
        connection.execute(f"PRAGMA user_version = {version}")
    connection.close()
    words = f"{path}: ledger version {version}, this ecorl reads version 7"
    for refuse in (LedgerReader, partial(Ledger.open_for_resume, from_step=0), Ledger.reopen):
        with pytest.raises(LedgerError) as caught:
            refuse(path)
        assert str(caught.value) == words


@pytest.mark.parametrize(
    ("change", "read"),
    [
        ("UPDATE placement SET refusal = 'unheard of'", LedgerReader.placements),
        ("UPDATE event SET kind = 'unheard of'", LedgerReader.events),
    ],
)
def test_a_value_that_is_none_of_its_enum_is_damage(tmp_path, change, read):
    with make(tmp_path) as ledger:
        ledger.event(EventKind.START, "")
        ledger.placement(Placement(1, Stage.REWARD, Action.FPGA, Action.GPU, "p", "why"))
    with contextlib.closing(sqlite3.connect(tmp_path / LEDGER_FILE)) as connection, connection:
        assert connection.execute(change).rowcount == 1
    with LedgerReader(tmp_path) as reader, pytest.raises(LedgerError, match="unheard of"):
        read(reader)


def test_a_damaged_page_is_one_clear_error(tmp_path):
    with make(tmp_path) as ledger:
        for i in range(2000):
            ledger.result(result(i))
    path = tmp_path / LEDGER_FILE
    data = bytearray(path.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 40_000] = b"\xa5" * 40_000
    path.write_bytes(bytes(data))
    with pytest.raises(LedgerError, match=str(path)), LedgerReader(path) as reader:
        reader.executions()
    with pytest.raises(LedgerError):
        Ledger.open_for_resume(path, from_step=0)


def test_roll_ups_count_missing_readings_apart(tmp_path):
    with make(tmp_path, raw_samples=4) as ledger:
        ledger.samples(
            [
                sample(7.0, 100.0, energy_j=1000.0),
                sample(7.3, None, error="Timeout"),
                sample(7.6, 130.0, energy_j=1070.0),
                sample(8.0, None, error="Timeout"),
                sample(9.0, 60.0, provenance=Provenance.MODELLED, source="model"),
                sample(9.5, math.nan),
            ]
        )
        ledger.flush()
        ledger.samples([sample(9.9, 61.0, provenance=Provenance.MODELLED, source="model")])
    with LedgerReader(tmp_path) as reader:
        rows = list(reader.power_seconds("gpu0"))
        first = rows[0]
        assert (first.second, first.n, first.n_missing) == (7, 2, 1)
        assert (first.mean_w, first.min_w, first.max_w) == (115.0, 100.0, 130.0)
        # 100 W for 0.3 s, then a missing reading; 130 W up to the next missing one at 8.0.
        assert (first.held_s, first.held_j) == pytest.approx((0.7, 30.0 + 52.0))
        # The counter bridges the missing reading and ends with its last value.
        assert (first.counted_s, first.counted_j) == pytest.approx((0.6, 70.0))
        assert (first.alone_s, first.alone_j) == pytest.approx((0.4, 52.0))
        assert (rows[1].second, rows[1].n, rows[1].mean_w) == (8, 0, None)
        assert (rows[1].held_s, rows[1].counted_s) == (0.0, 0.0)
        modelled = [r for r in rows if r.provenance is Provenance.MODELLED]
        # Split by the flush in between, one row all the same.
        assert [(r.second, r.n, r.mean_w, r.max_w) for r in modelled] == [(9, 2, 60.5, 61.0)]
        raw = reader.raw_samples()
        assert [r.t_s for r in raw] == [8.0, 9.0, 9.5, 9.9]
        assert [(e.error, e.n, e.first_t_s, e.last_t_s) for e in reader.sample_errors()] == [
            ("Timeout", 2, 7.3, 8.0)
        ]
        assert not list(reader.power_seconds("gpu1"))


def test_a_second_written_in_many_parts_is_one_row(tmp_path):
    """Flushed after each reading: 10 a second at 50 W, whose counter falls once a second."""
    with make(tmp_path) as ledger:
        for i in range(31):
            joules = 5.0 * ((i + 5) % 10)
            ledger.samples([sample(7.0 + i / 10, 50.0 if i % 2 else 30.0, energy_j=joules)])
            assert ledger.flush()
        with FileReader(tmp_path) as reader:
            (n_rows,) = next(reader._rows("SELECT count(*) FROM power_second"))
            rows = [r for r in reader.power_seconds() if r.second < 10]
            assert n_rows == 4
    assert [(r.second, r.n) for r in rows] == [(7, 10), (8, 10), (9, 10)]
    for row in rows:
        assert (row.held_s, row.held_j) == pytest.approx((1.0, 40.0), abs=1e-5)
        assert (row.counted_s, row.counted_j) == pytest.approx((0.9, 45.0), abs=1e-5)
        assert (row.alone_s, row.alone_j) == pytest.approx((0.1, 3.0), abs=1e-5)
    assert [r.n_breaks for r in rows] == [1, 1, 1]


def test_the_newest_reading_holds_up_to_the_last_record(tmp_path):
    t_s = time.monotonic()
    with make(tmp_path) as ledger:
        ledger.samples([sample(t_s, 100.0)])
        assert ledger.flush()
        with LedgerReader(tmp_path) as reader:
            assert sum(r.held_s for r in reader.power_seconds()) == 0.0
            ledger.metric(1, "reward", 1.0)
            time.sleep(0.05)
            ledger.event("finish", "")
            assert ledger.flush()
            assert sum(r.held_s for r in reader.power_seconds()) == 0.0
            reader.refresh()
            (event,) = reader.events()
            held_s = sum(r.held_s for r in reader.power_seconds())
            assert held_s == pytest.approx(event.t_s - t_s, abs=1e-5)


def test_long_series_are_packed_and_read_back(tmp_path):
    with make(tmp_path, raw_samples=0) as ledger:
        for second in range(3000):
            power = 300.0 + 0.001 * second
            ledger.samples([sample(second + 0.5, power, energy_j=second * 300.0)])
        ledger.flush()
        reader = FileReader(tmp_path)
        (plain,) = next(reader._rows("SELECT count(*) FROM power_second"))
        assert 600 <= plain < 1300
        rows = list(reader.power_seconds())
        assert [r.second for r in rows] == list(range(3000))
        assert [r.mean_w for r in rows] == pytest.approx([300.0 + 0.001 * s for s in range(3000)])
        assert [r.counted_j for r in rows] == [150.0, *[300.0] * 2998, 150.0]
        held = [0.5 * (a + b) for a, b in pairwise(r.mean_w for r in rows)]
        assert [r.held_j for r in rows[1:]][:-1] == pytest.approx(held[:-1], abs=1e-3)
        assert sum(r.held_s for r in rows) == 2999.0
        assert reader.raw_samples() == []
        reader.close()


def test_a_shorter_ring_after_resume_forgets_the_surplus(tmp_path):
    with make(tmp_path, raw_samples=10) as ledger:
        ledger.samples([sample(float(i), 1.0) for i in range(25)])
    with Ledger.open_for_resume(tmp_path / LEDGER_FILE, from_step=0, raw_samples=3) as ledger:
        ledger.samples([sample(100.0 + i, 2.0) for i in range(5)])
    raw = LedgerReader(tmp_path).raw_samples()
    assert [r.t_s for r in raw] == [102.0, 103.0, 104.0]


BAD_TEXT = "/tmp/\udcff"


@pytest.mark.parametrize(
    "given", [{"run_id": BAD_TEXT}, {"config_toml": BAD_TEXT}, {"meta": {"commit": BAD_TEXT}}]
)
def test_text_that_cannot_be_written_is_refused_and_leaves_no_lock(tmp_path, given):
    folder = tmp_path / "\udcff"  # a folder may be named so
    fine = {"run_id": "r", "config_toml": "", "meta": {}}
    for _ in range(2):
        with pytest.raises(RunError, match="text") as caught:
            Ledger.create(folder / LEDGER_FILE, **(fine | given))
        str(caught.value).encode("utf-8")
        assert not folder.exists()
    Ledger.create(folder / LEDGER_FILE, **fine).close()
    with LedgerReader(folder) as reader:
        assert reader.run().run_id == "r"


def test_a_resume_that_fails_leaves_no_lock(tmp_path):
    make(tmp_path).close()
    path = tmp_path / LEDGER_FILE
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("DELETE FROM attempt")
    for _ in range(2):
        with pytest.raises(LedgerError, match="attempt"):
            Ledger.open_for_resume(path, from_step=0)


def test_facts_of_the_run_are_read_back(tmp_path):
    facts = {"origin": "attach", "commit": "abc"}
    path = tmp_path / LEDGER_FILE
    Ledger.create(path, run_id="r", config_toml="", meta=facts).close()
    with LedgerReader(tmp_path) as reader:
        assert reader.run().meta == facts


COUNTS = st.integers(0, 2**31)
MILLI = st.integers(-(2**53), 2**53)
SPAN_US = st.sampled_from([0, 1_000_000]) | st.integers(-(10**6), 10**9)


@st.composite
def packed_rows(draw):
    rows = []
    for second in sorted(draw(st.sets(st.integers(-(10**9), 10**9), min_size=1, max_size=30))):
        power = draw(st.none() | st.lists(MILLI, min_size=3, max_size=3).map(sorted))
        low, mean, high = power or (None, None, None)
        energies = [draw(column) for _ in range(3) for column in (SPAN_US, MILLI)]
        counts = (draw(COUNTS), draw(COUNTS))
        rows.append(SecondRow(second, *counts, mean, low, high, *energies, draw(COUNTS)))
    return rows


@given(packed_rows())
@settings(max_examples=examples(100), deadline=None)
def test_packing_is_exact(rows):
    assert unpack_block(pack_block(rows), len(rows)) == rows
