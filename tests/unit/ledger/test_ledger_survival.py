"""The ledger under SIGKILL, on a full disk, behind a foreign lock, and its size."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from ecorl.errors import RunError
from ecorl.ledger import LEDGER_FILE, FileReader, Ledger, LedgerReader
from ecorl.records import (
    BarrierWait,
    FaultEvent,
    PowerSample,
    Provenance,
    Stage,
)

CHILD = """
import sys, itertools
from pathlib import Path
from ecorl.ledger import Ledger
from ecorl.records import PowerSample, Provenance
path = Path(sys.argv[1])
ledger = (Ledger.open_for_resume(path, from_step=10**9, raw_samples=500) if path.exists() else
          Ledger.create(path, run_id="r", config_toml="", meta={}, raw_samples=500))
print("ready", flush=True)
for i in itertools.count():
    ledger.metric(i, f"m{ledger.attempt}", float(i))
    ledger.event("width", "x" * (i % 700))
    ledger.samples([PowerSample(f"gpu{d}", i / 10, 100.0 + d, None, None, Provenance.MEASURED,
                                "nvml") for d in range(4)])
    if i % 7 == 0 and ledger.flush():
        print(i, flush=True)
"""


def create(folder: Path, **kwargs) -> Ledger:
    return Ledger.create(folder / LEDGER_FILE, run_id="r", config_toml="", meta={}, **kwargs)


def test_sigkill_at_any_instant_loses_no_committed_row(tmp_path):
    """Sixteen kills in a row of one and the same ledger, resumed each time."""
    rng = random.Random(5)
    path = tmp_path / LEDGER_FILE
    acknowledged: dict[int, int] = {}
    for attempt in range(1, 17):
        child = subprocess.Popen([sys.executable, "-c", CHILD, str(path)], stdout=subprocess.PIPE)
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        if attempt == 2:
            with pytest.raises(RunError, match="another process"):
                Ledger.open_for_resume(path, from_step=0)
        time.sleep(rng.uniform(0.0, 0.25))
        child.send_signal(signal.SIGKILL)
        told = [line for line in child.communicate()[0].split(b"\n")[:-1] if line]
        assert child.returncode == -signal.SIGKILL
        if told:
            acknowledged[attempt] = int(told[-1])
        with FileReader(path) as reader:
            assert next(reader._rows("PRAGMA integrity_check"))[0] == "ok"
            assert len(reader.attempts()) == attempt
            for earlier, last in acknowledged.items():
                values = [m.value for m in reader.metrics(f"m{earlier}")]
                # All acknowledged rows are there, in order and without a gap.
                assert len(values) > last
                assert values == [float(i) for i in range(len(values))]
            assert len(reader.raw_samples()) <= 500
            list(reader.power_seconds())
    assert sum(acknowledged.values()) > 100


def test_a_full_disk_costs_rows_and_one_warning(tmp_path, caplog):
    """The file size limit of a child process stands for the disk that fills up."""
    script = """
import logging, re, resource, sys
from pathlib import Path
logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stdout)
from ecorl.ledger import Ledger, LedgerReader
ledger = Ledger.create(Path(sys.argv[1]), run_id="r", config_toml="", meta={})
ledger.event("start", "kept"); assert ledger.flush()
resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, resource.RLIM_INFINITY))
for round_ in range(20):
    for i in range(100):
        ledger.event("width", "x" * 2000)
    ledger.flush()
dropped = ledger.dropped_rows
assert dropped > 500, dropped
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
ledger.event("resume", "kept"); assert not ledger.flush() or True
first = ledger.dropped_rows
resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, resource.RLIM_INFINITY))
for i in range(100):
    ledger.event("width", "x" * 5000)
ledger.flush()
dropped = ledger.dropped_rows
assert dropped > first, (dropped, first)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
ledger.event("finish", "kept"); ledger.flush()
ledger.close()
events = LedgerReader(Path(sys.argv[1])).events()
assert events[0].kind == "start" and events[-1].kind == "finish", events[-1]
told = [e for e in events if e.kind == "ledger_rows_dropped"]
# Each names the rows by their kind, and says when they came.
assert all(re.search(r"\\): \\d+ events, (of|from) 2", e.detail) for e in told), told
assert all(e.detail.endswith(" UTC") for e in told), told
# Each outage tells of its own rows, and together they are all.
assert sum(int(e.detail.split()[0]) for e in told) == dropped, told
assert len({e.detail for e in told}) == len(told), told
print("fine")
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / LEDGER_FILE)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines[-1] == "fine"
    assert sum("goes on" in line for line in lines) == 2, lines
    assert sum("writing again" in line for line in lines) == 2


def test_a_read_only_file_never_raises(tmp_path, caplog):
    ledger = create(tmp_path)
    ledger._writer.put(lambda c: c.execute("PRAGMA query_only = 1"))
    ledger.flush()
    with caplog.at_level(logging.WARNING):
        for i in range(50):
            ledger.metric(i, "reward", 1.0)
            ledger.samples([PowerSample("g", i, 1.0, None, None, Provenance.MEASURED, "s")])
        assert not ledger.flush()
        ledger.metric(51, "reward", 1.0)
        ledger.flush()
    assert ledger.dropped_rows == 101
    assert sum("goes on" in r.message for r in caplog.records) == 1
    ledger.close()
    ledger.metric(52, "reward", 1.0)
    assert ledger.dropped_rows == 102


def test_one_unusable_row_leaves_the_others_alone(tmp_path, caplog):
    with create(tmp_path) as ledger:
        ledger.metric(1, "reward", 1.0)
        ledger.metric("no number", "reward", 1.0)  # type: ignore[arg-type]
        ledger.result(None)  # type: ignore[arg-type]
        ledger.fault(FaultEvent(2**70, "x", "y", "z"))
        ledger.event("bad text", "\ud800")
        ledger.metric(2, "reward", 2.0)
        assert not ledger.flush()
        assert ledger.dropped_rows == 4
        assert [m.value for m in LedgerReader(tmp_path).metrics()] == [1.0, 2.0]
    assert sum("stored" in r.message for r in caplog.records) == 1


HUGE = (1e17, 1e300, 2.0**53, math.inf, -1.0, math.nan)


@pytest.mark.parametrize("huge", HUGE)
def test_a_reading_that_the_file_cannot_hold_is_missing(tmp_path, huge):
    with create(tmp_path) as ledger:
        for t in range(20):
            power_w = huge if t == 10 else 50.0
            reading = PowerSample("g", t, power_w, power_w, None, Provenance.REPLAYED, "csv")
            ledger.samples([reading])
            ledger.metric(t, "reward", float(t))
            if t % 5 == 0:
                assert ledger.flush()
    assert ledger.dropped_rows == 0
    with LedgerReader(tmp_path) as reader:
        assert len(reader.metrics()) == 20
        rows = list(reader.power_seconds("g"))
        assert sum(r.n for r in rows) == 19
        assert sum(r.n_missing for r in rows) == 1
        assert max(r.max_w for r in rows if r.max_w is not None) == 50.0
        assert sum(r.held_s for r in rows) == 18.0


def test_a_batch_whose_end_fails_is_counted_and_the_next_is_written(tmp_path, monkeypatch):
    """What no row can be blamed for costs a batch, not the rest of the run."""
    with create(tmp_path) as ledger:
        own, fails = ledger.after_batch, [True]

        def after_batch(connection, everything):
            if fails:
                fails.clear()
                raise OverflowError("Python int too large to convert to SQLite INTEGER")
            own(connection, everything)

        monkeypatch.setattr(ledger, "after_batch", after_batch)
        ledger.metric(1, "reward", 1.0)
        assert not ledger.flush()
        assert ledger.dropped_rows == 1
        ledger.metric(2, "reward", 2.0)
        assert ledger.flush()
    with LedgerReader(tmp_path) as reader:
        assert [m.iteration for m in reader.metrics()] == [2]
        (event,) = reader.events()
        assert event.detail.startswith("1 row ")
        assert "(Python int" in event.detail


def test_rows_that_cannot_be_stored_are_told_of(tmp_path):
    with create(tmp_path) as ledger:
        ledger.metric("no number", "reward", 1.0)
        ledger.metric(1, "reward", 1.0)
        assert not ledger.flush()
        assert ledger.flush()
        ledger.metric("no number", "reward", 1.0)
    with LedgerReader(tmp_path) as reader:
        told = [e.detail for e in reader.events()]
    assert [int(detail.split()[0]) for detail in told] == [1, 1]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_dead_writing_thread_is_no_silent_one(tmp_path, caplog):
    ledger = create(tmp_path)
    taken, gate = threading.Event(), threading.Event()

    def die(_: sqlite3.Connection) -> None:
        taken.set()
        gate.wait(240)
        raise RuntimeError("a fault of the program itself")

    ledger._writer.put(die)
    assert taken.wait(240)
    ledger.metric(1, "reward", 1.0)
    gate.set()
    assert not ledger.flush()
    ledger._writer._thread.join(240)
    assert ledger.dropped_rows == 2
    ledger.metric(2, "reward", 1.0)
    assert ledger.dropped_rows == 3
    assert not ledger.flush()
    ledger.close()
    assert any("2 rows" in r.message for r in caplog.records)


def test_a_resume_of_a_run_that_another_process_writes_touches_nothing(tmp_path):
    path = tmp_path / LEDGER_FILE
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(path)], stdout=subprocess.PIPE)
    assert child.stdout is not None
    try:
        assert child.stdout.readline() == b"ready\n"
        os.kill(child.pid, signal.SIGSTOP)
        os.waitpid(child.pid, os.WUNTRACED)
        before = {p.name: (p.stat().st_mtime_ns, p.read_bytes()) for p in tmp_path.iterdir()}
        for _ in range(2):
            with pytest.raises(RunError, match="another process"):
                Ledger.open_for_resume(path, from_step=0)
        after = {p.name: (p.stat().st_mtime_ns, p.read_bytes()) for p in tmp_path.iterdir()}
        assert after == before
    finally:
        child.kill()
        child.communicate()
    Ledger.open_for_resume(path, from_step=10**9).close()


def test_a_foreign_lock_delays_rows_but_loses_none(tmp_path):
    with create(tmp_path) as ledger:
        ledger._writer.put(lambda c: c.execute("PRAGMA busy_timeout = 20"), 0)
        assert ledger.flush()
        foreign = sqlite3.connect(tmp_path / LEDGER_FILE, isolation_level=None)
        foreign.execute("BEGIN IMMEDIATE")
        for i in range(1000):  # it comes to an end, though nobody lets go of the lock meanwhile
            ledger.metric(i, "reward", 0.0)
        assert not ledger.flush(timeout_s=0.3)
        foreign.execute("COMMIT")
        foreign.close()
        assert ledger.flush()
        assert ledger.dropped_rows == 0
        assert len(LedgerReader(tmp_path).metrics()) == 1000


def test_a_process_that_ends_without_closing_leaves_its_rows(tmp_path):
    script = """
import sys
from pathlib import Path
from ecorl.ledger import Ledger
ledger = Ledger.create(Path(sys.argv[1]), run_id="r", config_toml="", meta={})
for i in range(3000):
    ledger.metric(i, "reward", 1.0)
raise SystemExit(3)
"""
    path = tmp_path / LEDGER_FILE
    assert subprocess.run([sys.executable, "-c", script, str(path)]).returncode == 3
    assert len(LedgerReader(path).metrics()) == 3000


def test_the_queue_is_bounded_and_never_blocks(tmp_path, caplog):
    with create(tmp_path) as ledger:
        taken, gate = threading.Event(), threading.Event()
        ledger._writer._max_pending = 100
        ledger._writer.put(lambda _: (taken.set(), gate.wait(240)), 0)
        assert taken.wait(240)
        for i in range(5000):
            ledger.metric(i, "reward", 0.0)
        assert ledger.dropped_rows == 4900
        gate.set()
        ledger.flush()
        assert len(LedgerReader(tmp_path).metrics()) == 100


def test_a_reader_sees_one_instant_until_refreshed(tmp_path):
    with create(tmp_path) as ledger:
        ledger.metric(1, "reward", 1.0)
        ledger.flush()
        with LedgerReader(tmp_path) as reader:
            ledger.metric(2, "reward", 2.0)
            ledger.barrier(BarrierWait(2, Stage.REWARD, 1.0, 1, 0, 0))
            ledger.flush()
            assert len(reader.metrics()) == 1
            assert not reader.barriers()
            reader.refresh()
            assert len(reader.metrics()) == 2


def write_power(ledger: Ledger, n_seconds: int, n_gpus: int = 32, n_fpgas: int = 4) -> None:
    """Noisy readings of GPUs every 100 ms and cards every 50 ms, with energy counters.

    Readings fall anywhere in a second, so that held and counted energy are no multiples of others.
    """
    rng = np.random.default_rng(3)
    devices = [(f"gpu{i}", 10, 400.0) for i in range(n_gpus)]
    devices += [(f"fpga{i}", 20, 60.0) for i in range(n_fpgas)]
    counter = rng.uniform(1e6, 1e9, len(devices))
    phase = rng.uniform(0, 1, len(devices))
    for second in range(n_seconds):
        batch = []
        for k, (name, rate, level) in enumerate(devices):
            power = level * (1 + 0.3 * np.sin(second / 9 + k)) + rng.normal(0, 0.1 * level, rate)
            energy = counter[k] + np.cumsum(power) / rate
            counter[k] = energy[-1]
            for j, (w, e) in enumerate(zip(power.tolist(), energy.tolist(), strict=True)):
                batch.append(
                    PowerSample(
                        name,
                        second + (j + phase[k]) / rate,
                        w,
                        e,
                        0.5,
                        Provenance.MEASURED,
                        "nvml:field186:gpu",
                    )
                )
        ledger.samples(batch)
        if second % 100 == 0:
            ledger.flush()


def size_of_day(tmp_path: Path, n_seconds: int) -> tuple[float, float]:
    """Bytes of the file after ``n_seconds``, and the size of a day extrapolated, MB."""
    ledger = create(tmp_path / "full")
    write_power(ledger, n_seconds)
    ledger.close()
    assert ledger.dropped_rows == 0
    path = tmp_path / "full" / LEDGER_FILE
    with FileReader(path) as reader:
        (blocks,) = next(reader._rows("SELECT sum(length(packed)) FROM power_block"))
        (rows,) = next(reader._rows("SELECT sum(n_seconds) FROM power_block"))
        assert sum(r.n for r in reader.power_seconds("gpu7")) == 10 * n_seconds
        assert len({r.second for r in reader.power_seconds("gpu7")}) == n_seconds
    size = path.stat().st_size
    # All that is no block (ring, plain seconds, free pages) is bounded: it is counted once, and
    # the blocks, with a tenth for the tree around them, grow with time.
    day = (size - blocks) + 1.1 * blocks / rows * 36 * 86_400
    print(f"\n{blocks / rows:.1f} bytes per roll-up, {size / 1e6:.1f} MB, a day {day / 1e6:.1f} MB")
    return size / 1e6, day / 1e6


def test_a_day_of_36_devices_fits_100_mb(tmp_path):
    _, day_mb = size_of_day(tmp_path, 1300)
    assert day_mb < 100


@pytest.mark.slow
@pytest.mark.skipif(
    os.environ.get("ECORL_FULL_DAY") != "1", reason="ECORL_FULL_DAY=1 simulates the whole day"
)
@pytest.mark.timeout(1800)
def test_a_whole_day_of_36_devices_fits_100_mb(tmp_path):
    size_mb, _ = size_of_day(tmp_path, 86_400)
    assert size_mb < 100


def test_notes_of_other_processes_stand_with_their_numbers_or_not_at_all(tmp_path):
    ledger = Ledger.create(tmp_path / "l.sqlite", run_id="r", config_toml="", meta={})
    with ledger.note("one", 1):
        ledger.metric(1, "loss", 1.0)
        ledger.metric(2, "loss", 2.0)
    with ledger.note("two", 5):
        pass
    assert ledger.flush()
    assert (ledger.kept("one"), ledger.kept("two"), ledger.kept("three")) == (1, 5, 0)
    with pytest.raises(ZeroDivisionError), ledger.note("one", 2):
        ledger.metric(3, "loss", 1 / 0)
    ledger.metric(4, "loss", 4.0)
    ledger.close()
    with contextlib.closing(Ledger.reopen(tmp_path / "l.sqlite")) as again:
        assert (again.kept("one"), again.kept("two")) == (2, 5)
    resumed = Ledger.open_for_resume(tmp_path / "l.sqlite", from_step=0)
    assert resumed.kept("one") == 0  # the processes of another attempt are others
    resumed.close()
    with LedgerReader(tmp_path / "l.sqlite") as reader:
        assert [m.iteration for m in reader.metrics("loss")] == [1, 2, 4]


def test_a_note_whose_rows_were_dropped_counts_as_dealt_with(tmp_path):
    ledger = Ledger.create(tmp_path / "l.sqlite", run_id="r", config_toml="", meta={})
    ledger.close()
    with ledger.note("one", 1):
        ledger.metric(1, "loss", 1.0)
    assert ledger.dropped_rows == 1
    assert ledger.kept("one") == 1
