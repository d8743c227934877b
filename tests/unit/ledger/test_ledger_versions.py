"""Ledgers of earlier versions are read as they are, and brought up to date on a resume."""

from __future__ import annotations

import contextlib
import sqlite3
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from ecorl.control import Command, Gear, GearChoice, Why
from ecorl.errors import LedgerError
from ecorl.grid import AverageIntensity
from ecorl.ledger import LEDGER_FILE, DeviceRecord, Ledger, LedgerReader, NodeRecord
from ecorl.ledger.schema import SCHEMA_VERSION
from ecorl.records import (
    Action,
    BarrierWait,
    DeviceKind,
    GuardRefusal,
    Placement,
    Provenance,
    Stage,
    StageResult,
)

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


NEW_COLUMNS = {
    7: [
        ("gear_choice", name)
        for name in ("price_g_per_token", "price_g_per_step", "clock_share", "memory")
    ],
    4: [
        *(("execution", name) for name in ("node", "role_name", "gear", "width", "clock_mhz")),
        ("placement", "role_name"),
        *(("barrier", name) for name in ("role_name", "n_duplicates", "n_unknown")),
    ],
    3: [("placement", "refusal"), ("device", "kind")],
}
"""Columns by the version that brought them."""

NEW_TABLES = {6: ["gear_choice", "pue"], 5: ["intensity"], 4: ["node", "teller"]}
"""Tables by the version that brought them."""

WAIT = BarrierWait(1, Stage.REWARD, 0.5, 8, 1, 2)
RAN = StageResult(
    iteration=1, stage=Stage.REWARD, action=Action.GPU, device_ids=("gpu0",), device="h100",
    t_start_s=1.0, t_end_s=2.0, time_s=1.0, time_provenance=Provenance.MEASURED, host_time_s=1.0,
    wait_s=0.0, n_sequences=4, n_tokens=40, n_output_tokens=20, energy=None,
)  # fmt: skip

CHOICE = GearChoice(
    10.0, Command.RUN, Why.PRICED, "stochastic", "it pays", 310.0, 120.0, "grid", width=64,
    gear=Gear.FP8, price_g_per_token=1e-6, price_g_per_step=0.5, clock_share=0.85,
)  # fmt: skip
OLD_CHOICE = GearChoice(5.0, Command.PAUSE, Why.DIRTY, "threshold", "it is dirty", 9.0, gear=None)


def old_ledger(folder: Path, of_version: int = 2) -> Path:
    """A ledger as an earlier version wrote it: GPU placements with the reasons above, one offload,
    an execution and a wait."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / LEDGER_FILE
    with Ledger.create(path, run_id="r", config_toml="seed = 1\n", meta={}) as ledger:
        for i, (reason, _) in enumerate(REASONS, start=1):
            ledger.placement(Placement(i, Stage.REWARD, Action.FPGA, Action.GPU, "p", reason))
        last = Placement(99, Stage.REWARD, Action.FPGA, Action.FPGA, "p", REASONS[2][0])
        ledger.placement(last)
        for name in KINDS:
            ledger.device(DeviceRecord(name, "p", Provenance.MEASURED, "x", None))
        ledger.result(RAN)
        ledger.barrier(WAIT)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for columns in (own for later, own in NEW_COLUMNS.items() if later > of_version):
            for table, column in columns:
                connection.execute(f"ALTER TABLE {table} DROP COLUMN {column}")
        for tables in (own for later, own in NEW_TABLES.items() if later > of_version):
            for table in tables:
                connection.execute(f"DROP TABLE {table}")
        connection.execute(f"PRAGMA user_version = {of_version}")
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
    assert version(path) == SCHEMA_VERSION
    assert kinds(path) == KINDS
    told = [*(refusal for _, refusal in REASONS), None]
    assert refusals(path) == [*told, GuardRefusal.TOO_LONG, None]
    # And once more, now that it is of the newest version.
    Ledger.open_for_resume(path, from_step=4).close()
    assert refusals(path) == [*told, GuardRefusal.TOO_LONG, None]


@pytest.mark.parametrize("of_version", [2, 3, 4, 5, 6])
def test_what_earlier_versions_did_not_know_is_missing(tmp_path, of_version):
    path = old_ledger(tmp_path, of_version)
    before = path.read_bytes()
    with LedgerReader(path) as reader:
        (row,), (wait,) = reader.executions(), reader.barriers()
        assert row.result == RAN
        counted = (0, 0) if of_version >= 4 else (None, None)
        assert (wait.n_late, wait.n_duplicates, wait.n_unknown, wait.role) == (
            2, *counted, "reward",
        )  # fmt: skip
        assert {p.placement.role_name for p in reader.placements()} == {""}
        assert reader.nodes() == reader.lost_nodes() == []
        assert reader.short_ids() is reader
        assert reader.intensities() == reader.choices() == reader.pues() == []
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "open_again", [Ledger.reopen, partial(Ledger.open_for_resume, from_step=1)]
)
@pytest.mark.parametrize("of_version", [2, 3, 4, 5, 6])
def test_what_is_new_can_be_recorded_after_an_upgrade(tmp_path, of_version, open_again):
    path = old_ledger(tmp_path, of_version)
    ran = replace(RAN, iteration=2, role_name="math", gear="bf16", width=3, clock_mhz=1200)
    with open_again(path) as ledger:
        ledger.result(replace(ran, node="b"))
        ledger.barrier(replace(WAIT, role_name="math", n_duplicates=3, n_unknown=4))
        ledger.node(NodeRecord("b", lost="it burnt down"))
        ledger.control.intensity(AverageIntensity, None)
        ledger.control.pue(5.0, 1.5)
        ledger.control.choice(CHOICE, {"price": 0.25})
    assert version(path) == SCHEMA_VERSION
    with LedgerReader(path) as reader:
        assert [e.result for e in reader.executions()] == [
            RAN,
            replace(ran, node="b", device_ids=("b/gpu0",)),
        ]
        old, new = reader.barriers()
        assert (old.n_duplicates, new.n_duplicates, new.n_unknown, new.role) == (
            0 if of_version >= 4 else None, 3, 4, "reward:math",
        )  # fmt: skip
        assert [row.value for row in reader.intensities()] == [None]
        assert [(row.start_s, row.pue) for row in reader.pues()] == [(5.0, 1.5)]
        assert [(row.choice, row.memory) for row in reader.choices()] == [(CHOICE, {"price": 0.25})]
        assert [n.lost for n in reader.lost_nodes()] == ["it burnt down"]
        # In words in version 2 alone; the words of version 3 are none.
        told = reader.placements()[0].placement.refusal
        assert told is (REASONS[0][1] if of_version == 2 else None)


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


def test_decisions_of_version_6_lack_price_clock_and_memory(tmp_path):
    path = old_ledger(tmp_path, 7)
    with Ledger.reopen(path) as ledger:
        ledger.control.choice(OLD_CHOICE, {"price": 0.25})
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for table, column in NEW_COLUMNS[7]:
            connection.execute(f"ALTER TABLE {table} DROP COLUMN {column}")
        connection.execute("PRAGMA user_version = 6")
    with LedgerReader(path) as reader:
        assert [(row.choice, row.memory) for row in reader.choices()] == [(OLD_CHOICE, {})]
    with Ledger.reopen(path) as ledger:
        ledger.control.choice(CHOICE)
    with LedgerReader(path) as reader:
        assert [row.choice for row in reader.choices()] == [OLD_CHOICE, CHOICE]
