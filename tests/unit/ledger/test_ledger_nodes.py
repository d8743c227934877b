"""The records of a run's other machines: found, lost, damaged, named; and a writer that died."""

from __future__ import annotations

import collections
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from ecorl.errors import LedgerError, RunError
from ecorl.ledger import (
    LEDGER_FILE,
    NODE,
    DeviceRecord,
    Ledger,
    LedgerReader,
    NodeRecord,
    node_file,
    node_name,
)
from ecorl.records import (
    Action,
    EventKind,
    FaultEvent,
    PowerSample,
    Provenance,
    Stage,
    StageResult,
)

FACTS = {"run_id": "r", "config_toml": "", "meta": {"commit": "c0ffee"}}


def ran(node: str | None = None, device_id: str = "gpu0") -> StageResult:
    return StageResult(
        iteration=1, stage=Stage.REWARD, action=Action.GPU, device_ids=(device_id,), device="h100",
        t_start_s=1.0, t_end_s=2.0, time_s=1.0, time_provenance=Provenance.MEASURED,
        host_time_s=1.0, wait_s=0.0, n_sequences=4, n_tokens=40, n_output_tokens=20, energy=None,
        node=node,
    )  # fmt: skip


def readings(t_s: float, n: int, *, energy: bool = False, step_s: float = 0.25):
    return [
        PowerSample(
            "gpu0", t_s + step_s * i, 100.0, 100.0 * step_s * i if energy else None, None,
            Provenance.MEASURED, "nvml",
        )
        for i in range(n)
    ]  # fmt: skip


def head(folder: Path, node: str | None = "head") -> Ledger:
    return Ledger.create(folder / LEDGER_FILE, **FACTS, node=node)


def other(folder: Path, node: str, attempt: int = 1) -> Ledger:
    path = folder / node_file(node, attempt)
    return Ledger.create(path, **FACTS, node=node, attempt=attempt)


def two_machines(folder: Path) -> Path:
    """A head without devices of its own, and a machine that ran something; the latter's file."""
    file = node_file("b", 1)
    with head(folder) as ledger, other(folder, "b") as own:
        ledger.node(NodeRecord("head"))
        ledger.node(NodeRecord("b", file, 5.0, 0.001, 17.0))
        ledger.metric(1, "reward", 1.0)
        own.device(DeviceRecord("gpu0", "h100", Provenance.MEASURED, "nvml", 50.0))
        own.result(ran())
        # Enough to be packed, so that a block can be damaged.
        own.samples(readings(100.0, 1300, step_s=1.0))
        own.fault(FaultEvent(1, "DeviceLost", "gpu0", "fell off the bus"))
    return folder / file


@pytest.mark.parametrize("name", ["", "a/b", "a b", "ä", "a+b", "a\n"])
def test_a_name_that_would_be_no_file_or_id_is_refused(tmp_path, name):
    for make in (lambda: node_file(name, 1), lambda: head(tmp_path, name)):
        with pytest.raises(RunError) as caught:
            make()
        assert repr(name) in str(caught.value)
    assert not any(tmp_path.iterdir())
    assert node_file(node_name(name), 2).endswith("-2.sqlite")


def test_a_machine_is_named_in_its_file(tmp_path):
    assert node_name("gpu-node_07.cluster") == "gpu-node_07.cluster"
    assert node_name("my host!") == "my-host-"
    assert node_file("b", 3) == "nodes/b-3.sqlite"
    with other(tmp_path, "b", 3) as ledger:
        assert ledger.attempt == 3
        ledger.result(ran())
    with LedgerReader(tmp_path / node_file("b", 3)) as reader:
        assert reader.run().meta == {**FACTS["meta"], NODE: "b"}
        assert [a.attempt for a in reader.attempts()] == [3]
        (row,) = reader.executions()
        assert (row.attempt, row.result.node, row.result.device_ids) == (3, "b", ("b/gpu0",))


def test_the_files_of_all_machines_are_read_as_one_run(tmp_path):
    two_machines(tmp_path)
    with LedgerReader(tmp_path) as reader:
        assert [(n.node, n.file, n.offset_s, n.offset_error_s, n.t_s) for n in reader.nodes()] == [
            ("b", "nodes/b-1.sqlite", 5.0, 0.001, 17.0),
            ("head", None, None, None, None),
        ]
        assert reader.lost_nodes() == []
        (row,) = reader.executions()
        assert (row.result.node, row.result.device_ids) == ("b", ("b/gpu0",))
        assert (row.result.t_start_s, row.result.t_end_s) == (-4.0, -3.0)
        assert [d.device_id for d in reader.devices()] == ["b/gpu0"]
        assert reader.read_device_ids() == ["b/gpu0"]
        assert [s.second for s in reader.power_seconds("b/gpu0")][:2] == [95, 96]
        assert [*reader.power_seconds("gpu0"), *reader.raw_samples("gpu0")] == []
        assert [(f.node, f.where) for f in reader.faults()] == [("b", "gpu0")]
        spans = {s.node: s for s in reader.node_spans()}
        assert {node: s.device_ids for node, s in spans.items()} == {"b": ("b/gpu0",), "head": ()}
        assert spans["b"].end_t_s is None
        short = reader.short_ids()
        assert short.executions()[0].result.device_ids == ("gpu0",)
        assert len(list(short.power_seconds("gpu0"))) == len(list(reader.power_seconds()))


def test_devices_of_several_machines_keep_their_long_names(tmp_path):
    two_machines(tmp_path)
    with Ledger.reopen(tmp_path / LEDGER_FILE) as ledger:
        ledger.result(ran())
        # What the head recorded of another machine's devices is that machine's.
        ledger.result(ran(node="c"))
        ledger.result(ran(device_id="d/gpu1"))
    with LedgerReader(tmp_path) as reader:
        ids = {i for e in reader.executions() for i in e.result.device_ids}
        assert ids == {"head/gpu0", "b/gpu0", "c/gpu0", "d/gpu1"}
        assert reader.short_ids() is reader
        spans = {s.node: s.device_ids for s in reader.node_spans()}
        assert spans == {"head": ("head/gpu0",), "b": ("b/gpu0",)}


def test_a_machine_whose_record_is_lost_keeps_the_long_names(tmp_path):
    two_machines(tmp_path)
    with Ledger.reopen(tmp_path / LEDGER_FILE) as ledger:
        ledger.node(NodeRecord("c", lost="no route to host"))
    with LedgerReader(tmp_path) as reader:
        assert reader.short_ids() is reader
        assert [(n.node, n.lost) for n in reader.lost_nodes()] == [("c", "no route to host")]


def spoil(path: Path, how: str) -> None:
    if how == "missing":
        path.unlink()
    elif how == "no database":
        path.write_bytes(b"no database at all " * 400)
    elif how == "damaged page":
        data = bytearray(path.read_bytes())
        data[len(data) // 2 :] = b"\xa5" * (len(data) - len(data) // 2)
        path.write_bytes(bytes(data))
    else:
        with closing(sqlite3.connect(path, isolation_level=None)) as db:
            db.execute(how)


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("missing", "there is no such file"),
        ("no database", "nodes/b-1.sqlite"),
        ("damaged page", "nodes/b-1.sqlite"),
        ("UPDATE execution SET stage = 'tea'", "tea"),
        ("UPDATE power_second SET n = 'many'", "power_second"),
        ("UPDATE meta SET value = 'c' WHERE key = 'node'", "'c'"),
        ("UPDATE attempt SET attempt = 2", "attempt 1"),
        ("PRAGMA user_version = 99", "version 99"),
    ],
)
def test_a_record_that_cannot_be_read_is_lost_and_the_rest_is_read(tmp_path, how, reason):
    spoil(two_machines(tmp_path), how)
    with LedgerReader(tmp_path) as reader:
        assert reader.executions() == reader.devices() == reader.faults() == []
        assert list(reader.power_seconds()) == []
        assert [m.value for m in reader.metrics()] == [1.0]
        (row,) = reader.lost_nodes()
        assert (row.attempt, row.node, row.offset_s) == (1, "b", 5.0)
        assert reason in (row.lost or "")
        assert "\n" not in (row.lost or "")
        # What the head wrote down of it stays as it is.
        assert [n.lost for n in reader.nodes()] == [None, None]
        reader.refresh()
        assert [n.node for n in reader.lost_nodes()] == ["b"]


def test_damage_in_packed_readings_leaves_the_rest_of_that_machine(tmp_path):
    path = two_machines(tmp_path)
    with LedgerReader(tmp_path) as reader:
        n_seconds = len(list(reader.power_seconds()))
    spoil(path, "UPDATE power_block SET packed = zeroblob(40)")
    with LedgerReader(tmp_path) as reader:
        assert reader.lost_nodes() == []
        assert len(list(reader.power_seconds())) < n_seconds
        assert [n.node for n in reader.lost_nodes()] == ["b"]
        assert len(reader.executions()) == 1


@pytest.mark.parametrize("file", ["../b.sqlite", "/tmp/b.sqlite", "nodes/../../b.sqlite"])
def test_a_file_outside_of_the_run_folder_is_not_opened(tmp_path, file):
    with head(tmp_path) as ledger:
        ledger.node(NodeRecord("b", file))
    with LedgerReader(tmp_path) as reader:
        (row,) = reader.lost_nodes()
        assert row.lost.startswith(f"'{file}': ")


def test_a_record_that_came_in_part_is_read_and_told_of(tmp_path):
    two_machines(tmp_path)
    with Ledger.reopen(tmp_path / LEDGER_FILE) as ledger:
        ledger.node(NodeRecord("b", node_file("b", 1), 5.0, lost="the copy broke off"))
    with LedgerReader(tmp_path) as reader:
        assert len(reader.executions()) == 1
        assert [n.lost for n in reader.lost_nodes()] == ["the copy broke off"]


def test_a_machine_that_joins_later_is_seen_after_a_refresh(tmp_path):
    with head(tmp_path) as ledger, LedgerReader(tmp_path) as reader:
        ledger.node(NodeRecord("b", node_file("b", 1), 0.0))
        assert ledger.flush()
        assert reader.nodes() == reader.lost_nodes() == []
        reader.refresh()
        assert len(reader.lost_nodes()) == 1
        with other(tmp_path, "b") as own:
            own.result(ran())
            assert own.flush()
            reader.refresh()
            assert reader.lost_nodes() == []
            assert len(reader.executions()) == 1
            own.result(ran())
            assert own.flush()
            assert len(reader.executions()) == 1
            reader.refresh()
            assert len(reader.executions()) == 2


def test_how_the_run_stands_is_the_heads_to_say(tmp_path):
    with head(tmp_path) as ledger, other(tmp_path, "b") as own:
        ledger.node(NodeRecord("b", node_file("b", 1), 0.0))
        ledger.event(EventKind.START, "")
        own.event(EventKind.START, "its own")
        own.event(EventKind.WEIGHTS, "taken over")
        own.event(EventKind.FINISH, "its own")
    with LedgerReader(tmp_path) as reader:
        kinds = [(e.kind, e.node) for e in reader.events()]
        assert kinds == [(EventKind.START, "head"), (EventKind.WEIGHTS, "b")]
        (span,) = [s for s in reader.node_spans() if s.node == "b"]
        assert span.end_t_s is not None
        assert span.end_t_s >= span.start_t_s


# ---------------------------------------------------------------- a writer that died

CHILD = """
import itertools, sys
from pathlib import Path
from ecorl.ledger import Ledger
from ecorl.records import PowerSample, Provenance
path, fresh = Path(sys.argv[1]), sys.argv[2] == "fresh"
ledger = (Ledger.create(path, run_id="r", config_toml="", meta={}, node="b", attempt=7) if fresh
          else Ledger.reopen(path))
print(ledger.attempt, flush=True)
start = int(sys.argv[3])
for i in itertools.count(start):
    ledger.metric(i, "m", float(i))
    ledger.samples([PowerSample("gpu0", i / 4, 100.0, None, None, Provenance.MEASURED, "nvml")])
    if i % 9 == 0 and ledger.flush():
        print(i, flush=True)
"""


def killed(path: Path, how: str, start: int, n_lines: int) -> int:
    """The last row that a killed writer said was in the file."""
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(path), how, str(start)], stdout=subprocess.PIPE
    )
    assert child.stdout is not None
    assert child.stdout.readline() == b"7\n"
    lines = [child.stdout.readline() for _ in range(n_lines)]
    child.send_signal(signal.SIGKILL)
    lines += [line for line in child.communicate()[0].splitlines() if line]
    return int(lines[-1])


def test_a_killed_writers_attempt_goes_on(tmp_path):
    path = tmp_path / "b-7.sqlite"
    killed(path, "fresh", 0, 3)
    for n_lines in (1, 4, 2):
        with LedgerReader(path) as reader:
            start = len(reader.metrics())
        last = killed(path, "again", start, n_lines)
    with Ledger.reopen(path) as ledger:
        ledger.event(EventKind.STOP, "")
    with LedgerReader(path) as reader:
        (attempt,) = reader.attempts()
        assert (attempt.attempt, attempt.from_step) == (7, 0)
        rows = reader.metrics()
        assert len(rows) > last
        assert [r.value for r in rows] == [float(i) for i in range(len(rows))]
        assert not any(r.superseded or r.attempt != 7 for r in rows)
        # A reading comes after its metric: that of a killed batch is there with it or not at all.
        seconds = list(reader.power_seconds())
        assert sum(s.n for s in seconds) == len(rows)
        # 100 W from the first reading to the last, and what the last one holds.
        held_s = sum(s.held_s for s in seconds)
        assert len(rows) / 4 - 0.25 <= held_s <= len(rows) / 4 + 2.0
        assert sum(s.held_j for s in seconds) == pytest.approx(100.0 * held_s, abs=0.1)


def test_no_rise_of_a_counter_is_counted_over_a_dead_writer(tmp_path):
    with head(tmp_path) as ledger:
        ledger.samples(readings(100.0, 21, energy=True))
    for t_s in (110.0, 120.0):
        with Ledger.reopen(tmp_path / LEDGER_FILE) as ledger:
            # What counts has begun anew and may look as if it had gone on.
            ledger.samples(readings(t_s, 21, energy=True))
            assert ledger.flush()
    with LedgerReader(tmp_path) as reader:
        rows = list(reader.power_seconds())
        assert sum(r.counted_s for r in rows) == pytest.approx(15.0)
        assert sum(r.counted_j for r in rows) == pytest.approx(1500.0)
        # The last reading before each gap stands for its two seconds, as readings do.
        assert sum(r.alone_s for r in rows) == pytest.approx(4.0)
        assert sum(r.n for r in rows) == 63


def by_second(rows):
    """Readings and held time of each second, whose parts add up."""
    found = collections.Counter()
    for row in rows:
        found["n", row.second] += row.n
        found["held", row.second] += row.held_s
    return dict(found)


@pytest.mark.parametrize("n", range(0, 40, 7))
@pytest.mark.parametrize("flushed", [True, False])
def test_a_reopened_series_loses_and_doubles_nothing(tmp_path, n, flushed):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    rows = readings(100.0, 40)
    with head(whole) as ledger:
        ledger.samples(rows)
    with head(parts) as ledger:
        ledger.samples(rows[:n])
        if flushed:
            assert ledger.flush()
    with Ledger.reopen(parts / LEDGER_FILE) as ledger:
        ledger.samples(rows[n:])
    found = []
    for folder in (whole, parts):
        with LedgerReader(folder) as reader:
            found.append(by_second(reader.power_seconds()))
    assert found[0] == pytest.approx(found[1], abs=1e-5)


def test_what_cannot_be_reopened_is_refused(tmp_path, snapshot):
    path = tmp_path / LEDGER_FILE
    with pytest.raises(RunError) as caught:
        Ledger.reopen(path)
    snapshot(str(caught.value), "absent")
    with head(tmp_path), pytest.raises(RunError) as caught:
        Ledger.reopen(path)
    snapshot(str(caught.value), "being written")
    spoil(path, "DELETE FROM attempt")
    with pytest.raises(LedgerError) as caught:
        Ledger.reopen(path)
    snapshot(str(caught.value), "without attempt")
    path.write_bytes(b"no database at all " * 400)
    with pytest.raises(LedgerError):
        Ledger.reopen(path)
