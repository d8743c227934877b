"""A machine's copy of a checkpoint: written once, and waited for within a limit."""

from __future__ import annotations

import tempfile

import pytest
from filelock import FileLock

from ecorl.engines.lanes.cluster import worker
from ecorl.errors import CheckpointError


def test_a_copy_that_another_process_never_ends_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(worker, "_LOCK_S", 0.1)
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    manifest = worker.manifest_of(folder)
    target = worker.copy_folder(manifest)
    target.mkdir(parents=True)
    with (
        FileLock(target / ".lock"),
        pytest.raises(CheckpointError, match=r"another process .*0\.1 s"),
    ):
        worker.write_copy(manifest, {"config.json": b"{}"})
    assert worker.write_copy(manifest, {"config.json": b"{}"}) == target
    assert worker.holds(target, manifest)
