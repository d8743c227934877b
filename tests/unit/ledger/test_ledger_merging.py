"""Rows that several machines wrote, each on its clock, read back as if one file held them all."""

from __future__ import annotations

import contextlib
import math
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

from hypothesis import given, settings
from hypothesis import strategies as st

from ecorl.ledger import (
    LEDGER_FILE,
    DeviceRecord,
    Ledger,
    LedgerReader,
    NodeRecord,
    node_file,
    schema,
)
from ecorl.ledger import ledger as ledger_module
from ecorl.records import (
    Action,
    BarrierWait,
    EnergyMethod,
    EventKind,
    FaultEvent,
    Placement,
    PowerSample,
    Provenance,
    Stage,
    StageEnergy,
    StageResult,
)

HEAD, OTHERS = "head", ("a", "b.c")
START_S, WALL_S = 1000.0, 1.8e9
NOTES = ("start", "ran", "waited", "failed", "placed", "metric", "note", "power", "checkpoint")


@dataclass(frozen=True)
class Note:
    """One thing to record: what, on which machine, and when on the head's clock, s."""

    what: str
    node: str
    t_s: float
    iteration: int


@contextlib.contextmanager
def clock(t_s: float, offset_s: float) -> Iterator[None]:
    """The clocks of a machine whose monotonic one is ahead of the head's."""
    now = SimpleNamespace(monotonic=lambda: t_s + offset_s, time=lambda: WALL_S + t_s)
    with (
        mock.patch.object(ledger_module, "time", now),
        mock.patch.object(schema, "time", now),
    ):
        yield


def ran(note: Note, t_s: float, device_id: str, node: str | None) -> StageResult:
    span = (t_s - 2.0, t_s)
    energy = StageEnergy(
        (device_id,), *span, 7.0, 3.5, None, 7.0, 20, 1.0, EnergyMethod.INTEGRAL,
        Provenance.MEASURED,
    )  # fmt: skip
    return StageResult(
        note.iteration, Stage.REWARD, Action.GPU, (device_id,), "h100", *span, 2.0,
        Provenance.MEASURED, 2.0, 0.0, 4, 40, 20, energy, node=node,
    )  # fmt: skip


def record(ledger: Ledger, note: Note, offset_s: float, *, alone: bool) -> None:
    """Write a note: ``alone`` into the one file of a run, whose devices name their machines."""
    t_s = note.t_s + offset_s
    gpu = f"{note.node}/gpu0" if alone else "gpu0"
    with clock(note.t_s, offset_s):
        if note.what == "ran":
            ledger.result(ran(note, t_s, gpu, note.node if alone else None))
        elif note.what == "waited":
            ledger.barrier(BarrierWait(note.iteration, Stage.REWARD, 0.5, 8, 1, 2, 3, 4, "math"))
        elif note.what == "failed":
            ledger.fault(FaultEvent(note.iteration, "x", "y", note.node))
        elif note.what == "placed":
            policy = f"p {note.node}"
            ledger.placement(
                Placement(note.iteration, Stage.REWARD, Action.GPU, Action.GPU, policy, "why")
            )
        elif note.what == "metric":
            ledger.metric(note.iteration, f"m {note.node}", note.t_s)
        elif note.what == "note":
            ledger.event(EventKind.WEIGHTS, note.node)
        elif note.what == "checkpoint":
            ledger.checkpoint(note.iteration, note.node)
        elif note.what == "power":
            ledger.device(DeviceRecord(gpu, "h100", Provenance.MEASURED, "nvml", 50.0))
            ledger.samples(
                PowerSample(gpu, t_s + i / 4, power_w, None, None, Provenance.MEASURED, "nvml", why)
                for i, (power_w, why) in enumerate([(100.0, None), (None, "Lost"), (30.0, None)])
            )


def write_alone(folder: Path, attempts: list[list[Note]], steps: list[int]) -> None:
    for k, notes in enumerate(attempts):
        with clock(start_of(k), 0.0):
            path = folder / LEDGER_FILE
            ledger = (
                Ledger.open_for_resume(path, from_step=steps[k])
                if k
                else Ledger.create(path, run_id="r", config_toml="", meta={})
            )
        with ledger:
            for note in notes:
                record(ledger, note, 0.0, alone=True)


def write_split(
    folder: Path,
    attempts: list[list[Note]],
    steps: list[int],
    offsets_s: dict[str, float],
    *,
    measured: bool,
) -> None:
    for k, notes in enumerate(attempts):
        with contextlib.ExitStack() as stack:
            with clock(start_of(k), 0.0):
                path = folder / LEDGER_FILE
                head = (
                    Ledger.open_for_resume(path, from_step=steps[k])
                    if k
                    else Ledger.create(path, run_id="r", config_toml="", meta={}, node=HEAD)
                )
            ledgers = {HEAD: stack.enter_context(head)}
            for node in OTHERS:
                file = node_file(node, k + 1)
                with clock(start_of(k), offsets_s[node]):
                    ledgers[node] = stack.enter_context(
                        Ledger.create(
                            folder / file,
                            run_id="r",
                            config_toml="",
                            meta={},
                            node=node,
                            attempt=k + 1,
                        )
                    )
                head.node(NodeRecord(node, file, offsets_s[node] if measured else None))
            for note in notes:
                record(ledgers[note.node], note, offsets_s[note.node], alone=False)


def start_of(k: int) -> float:
    return START_S + 1000.0 * k


@st.composite
def notes(draw, k: int) -> list[Note]:
    """Notes of one attempt in the order of time; times are whole 64ths of a second.

    They are a second apart, so that the three readings of one note end before the next begins: a
    sampler hands over no reading that is older than the one before.
    """
    kinds = draw(st.lists(st.sampled_from(NOTES), max_size=14))
    t_s, found = start_of(k), []
    for what in kinds:
        t_s += draw(st.integers(64, 512)) / 64
        node = draw(st.sampled_from((HEAD, *OTHERS)))
        found.append(Note(what, node, t_s, draw(st.integers(1, 4))))
    return found


def plain(rows):
    """Rows without float error in their times and without the machine that recorded a note."""
    found = []
    for row in rows:
        if hasattr(row, "result"):
            r = row.result
            times = {"t_start_s": round(r.t_start_s, 6), "t_end_s": round(r.t_end_s, 6)}
            row = replace(row, result=replace(r, **times, energy=replace(r.energy, **times)))
        for name in {"t_s", "first_t_s", "last_t_s"}.intersection(row.__dataclass_fields__):
            row = replace(row, **{name: round(getattr(row, name), 6)})
        found.append(replace(row, node=None) if "node" in row.__dataclass_fields__ else row)
    return found


def sums(seconds):
    """Readings and energy by attempt and device."""
    found: dict[tuple[int, str], list[float]] = {}
    for s in seconds:
        into = found.setdefault((s.attempt, s.device_id), [0, 0, 0.0, 0.0])
        for i, value in enumerate((s.n, s.n_missing, s.held_s, s.held_j)):
            into[i] += value
    return {key: [round(v, 4) for v in values] for key, values in found.items()}


@settings(max_examples=15, deadline=None)
@given(
    st.tuples(notes(0), notes(1)),
    st.integers(0, 4),
    st.lists(st.floats(-1e6, 1e6) | st.integers(-1000, 1000), min_size=2, max_size=2),
    st.booleans(),
)
def test_any_split_over_machines_reads_back_as_one_file(attempts, step, offsets, measured):
    offsets_s = {HEAD: 0.0, **dict(zip(OTHERS, map(float, offsets), strict=True))}
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as many:
        write_alone(Path(one), list(attempts), [0, step])
        write_split(Path(many), list(attempts), [0, step], offsets_s, measured=measured)
        with LedgerReader(Path(one)) as expected, LedgerReader(Path(many)) as found:
            assert found.lost_nodes() == []
            for name in (
                "executions", "barriers", "faults", "placements", "events", "checkpoints",
                "devices", "raw_samples", "sample_errors",
            ):  # fmt: skip
                assert plain(getattr(found, name)()) == plain(getattr(expected, name)()), name
            # Metrics have no time that could order them across machines.
            assert sorted(found.metrics(), key=repr) == sorted(expected.metrics(), key=repr)
            assert {a: round(t, 6) for a, t in found.last_times().items()} == {
                a: round(t, 6) for a, t in expected.last_times().items()
            }
            assert found.read_device_ids() == expected.read_device_ids()
            for device_id in (None, *found.read_device_ids()):
                assert [s.t_s for s in found.raw_samples(device_id)] == sorted(
                    s.t_s for s in found.raw_samples() if device_id in (None, s.device_id)
                )
                mine = list(found.power_seconds(device_id))
                theirs = list(expected.power_seconds(device_id))
                assert {s.device_id for s in mine} <= {device_id or s.device_id for s in mine}
                # Parts of a second may not add up to the same whole mJ.
                for key, values in sums(theirs).items():
                    for a, b in zip(sums(mine)[key], values, strict=True):
                        assert math.isclose(a, b, abs_tol=0.02), (key, a, b)
                if all(float(o).is_integer() for o in offsets):
                    assert sorted(mine, key=repr) == sorted(theirs, key=repr)
