"""Ledgers of version 2, without columns for refusals and kinds, are read and resumed."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import pytest

from ecorl.errors import LedgerError
from ecorl.ledger import LEDGER_FILE, DeviceRecord, Ledger, LedgerReader
from ecorl.records import Action, DeviceKind, GuardRefusal, Placement, Provenance, Stage

KEPT = "fpga proposed (because); kept on the GPU: "
ALONE = "the guards leave a1 alone: "
REASONS = [
    (KEPT + "the model of critic is not frozen", GuardRefusal.NOT_FROZEN),
    (KEPT + "the FPGA path is not available", GuardRefusal.UNAVAILABLE),
    (KEPT + "the queue of 9 has reached q_max = 8", GuardRefusal.QUEUE_FULL),
    (KEPT + "the queue of other jobs has reached q_max = 8", GuardRefusal.QUEUE_FULL),
    (KEPT + "the mean length of 2100 is above l_max = 2048", GuardRefusal.TOO_LONG),
    (
        KEPT + "its modelled energy of 9 J is above (1 + 0.1) x the GPU path's 3 J",
        GuardRefusal.ENERGY,
    ),
    (KEPT + "the energy guard is on and there is no cost model", GuardRefusal.COST_UNKNOWN),
    (KEPT + "the energy guard is on and costs are unknown (why)", GuardRefusal.COST_UNKNOWN),
    (KEPT + "its energy or the queue is above the limit", None),
    (ALONE + "the card cannot run this stage", GuardRefusal.CANNOT_RUN),
    (ALONE + "the FPGA path is not available", GuardRefusal.UNAVAILABLE),
    (ALONE + "the mean length of 2100 is above 2048", GuardRefusal.TOO_LONG),
    (ALONE + "the queue of 9 has reached 8", GuardRefusal.QUEUE_FULL),
    (ALONE + "an offload's energy is above 1.1 x the GPU path's", GuardRefusal.ENERGY),
    ("queue of 9 is above 8 batches", None),
    ("fpga proposed (the queue of 9); kept on the GPU: something", None),
]


KINDS = {
    "cpu0": DeviceKind.CPU,
    "dram0": DeviceKind.CPU,
    "fpga12": DeviceKind.FPGA,
    "gpu0": DeviceKind.GPU,
    "other": DeviceKind.GPU,
}


def old_ledger(folder: Path) -> Path:
    """A ledger as version 2 wrote it: GPU placements with the reasons above, and one offload."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / LEDGER_FILE
    with Ledger.create(path, run_id="r", config_toml="seed = 1\n", meta={}) as ledger:
        for i, (reason, _) in enumerate(REASONS, start=1):
            ledger.placement(Placement(i, Stage.REWARD, Action.FPGA, Action.GPU, "p", reason))
        last = Placement(99, Stage.REWARD, Action.FPGA, Action.FPGA, "p", REASONS[2][0])
        ledger.placement(last)
        for name in KINDS:
            ledger.device(DeviceRecord(name, "p", Provenance.MEASURED, "x", None))
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("ALTER TABLE placement DROP COLUMN refusal")
        connection.execute("ALTER TABLE device DROP COLUMN kind")
        connection.execute("PRAGMA user_version = 2")
    return path


def refusals(path: Path) -> list[GuardRefusal | None]:
    with LedgerReader(path) as reader:
        return [row.placement.refusal for row in reader.placements()]


def kinds(path: Path) -> dict[str, DeviceKind]:
    with LedgerReader(path) as reader:
        return {row.device_id: row.kind for row in reader.devices()}


def version(path: Path) -> int:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return int(connection.execute("PRAGMA user_version").fetchone()[0])


def test_refusals_of_version_2_are_told_from_the_reasons(tmp_path):
    path = old_ledger(tmp_path)
    before = path.read_bytes()
    assert refusals(path) == [*(refusal for _, refusal in REASONS), None]
    assert kinds(path) == KINDS
    assert path.read_bytes() == before


def test_a_resume_brings_version_2_up_to_date(tmp_path):
    path = old_ledger(tmp_path)
    with Ledger.open_for_resume(path, from_step=3) as ledger:
        new = Placement(
            4, Stage.REWARD, Action.GPU, Action.GPU, "p", "words", (), GuardRefusal.TOO_LONG
        )
        ledger.placement(new)
        # A reason of the new version is no fact: nothing is told from it.
        ledger.placement(Placement(5, Stage.REWARD, Action.FPGA, Action.GPU, "p", REASONS[2][0]))
    assert version(path) == 3
    assert kinds(path) == KINDS
    told = [*(refusal for _, refusal in REASONS), None]
    assert refusals(path) == [*told, GuardRefusal.TOO_LONG, None]
    # And once more, now that it is of the newest version.
    Ledger.open_for_resume(path, from_step=4).close()
    assert refusals(path) == [*told, GuardRefusal.TOO_LONG, None]


def test_a_resume_that_fails_leaves_version_2_as_it_was(tmp_path):
    path = old_ledger(tmp_path)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("DELETE FROM attempt")
    with pytest.raises(LedgerError, match="no attempt"):
        Ledger.open_for_resume(path, from_step=3)
    assert version(path) == 2
    assert refusals(path) == [*(refusal for _, refusal in REASONS), None]


def test_a_refusal_that_is_none_of_the_enum_is_damage(tmp_path):
    path = old_ledger(tmp_path)
    Ledger.open_for_resume(path, from_step=0).close()
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("UPDATE placement SET refusal = 'because' WHERE id = 1")
    with pytest.raises(LedgerError, match="because"):
        refusals(path)
