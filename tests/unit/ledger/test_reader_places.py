"""Reading a ledger where one may not write."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ecorl.errors import LedgerError
from ecorl.ledger import LEDGER_FILE, Ledger, LedgerReader

NOBODY = 65534


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that other users may enter, which pytest's own are not."""
    made = Path(tempfile.mkdtemp(prefix="ecorl-test-"))
    made.chmod(0o755)
    yield made
    made.chmod(0o755)
    shutil.rmtree(made)


@contextlib.contextmanager
def unable_to_write(folder: Path) -> Iterator[None]:
    """As a user who may read the folder's files and nothing more; modes do not bind root."""
    for path in folder.iterdir():
        path.chmod(0o444)
    folder.chmod(0o555)
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(NOBODY)
    try:
        with pytest.raises(PermissionError):
            (folder / "x").touch()
        yield
    finally:
        if is_root:
            os.seteuid(0)


def killed_run(folder: Path) -> None:
    """What SIGKILL leaves: the file, and its newest rows in the write-ahead log alone."""
    with tempfile.TemporaryDirectory() as elsewhere:
        path = Path(elsewhere, LEDGER_FILE)
        with Ledger.create(path, run_id="killed", config_toml="", meta={}) as ledger:
            ledger.metric(1, "reward", 1.0)
            assert ledger.flush()
            for name in (LEDGER_FILE, LEDGER_FILE + "-wal"):
                shutil.copyfile(path.with_name(name), folder / name)


def copies() -> set[Path]:
    return set(Path(tempfile.gettempdir()).glob("ecorl-ledger-*"))


def test_a_killed_run_is_read_where_nothing_may_be_written(folder):
    killed_run(folder)
    before, others = {p.name: p.read_bytes() for p in folder.iterdir()}, copies()
    with unable_to_write(folder):
        with LedgerReader(folder) as reader:
            assert [m.value for m in reader.metrics()] == [1.0]
            reader.refresh()
            assert len(reader.metrics()) == 1
            assert len(copies() - others) == 1
        assert copies() == others
        reader.close()
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == before


def test_a_run_in_wal_mode_without_a_log_is_read_there_too(folder):
    killed_run(folder)
    with contextlib.closing(sqlite3.connect(folder / LEDGER_FILE)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    (folder / (LEDGER_FILE + "-wal")).unlink(missing_ok=True)
    (folder / (LEDGER_FILE + "-shm")).unlink(missing_ok=True)
    others = copies()
    with unable_to_write(folder), LedgerReader(folder) as reader:
        assert len(reader.metrics()) == 1
        assert copies() == others


def test_a_closed_run_is_read_there_too(folder):
    path = folder / LEDGER_FILE
    Ledger.create(path, run_id="closed", config_toml="", meta={}).close()
    with unable_to_write(folder), LedgerReader(folder) as reader:
        assert reader.run().run_id == "closed"


def test_what_is_no_ledger_leaves_no_copy_behind(folder):
    (folder / LEDGER_FILE).write_bytes(b"no database at all " * 400)
    (folder / (LEDGER_FILE + "-wal")).write_bytes(b"x" * 100)
    others = copies()
    with unable_to_write(folder), pytest.raises(LedgerError, match="ledger"):
        LedgerReader(folder)
    assert copies() == others
