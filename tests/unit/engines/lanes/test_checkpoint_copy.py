"""A machine's copy of a checkpoint: written once, and waited for within a limit."""

from __future__ import annotations

import tempfile

import pytest
from filelock import FileLock

from ecorl.engines.lanes.cluster import weights
from ecorl.errors import CheckpointError


def test_a_copy_that_another_process_never_ends_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(weights, "_LOCK_S", 0.1)
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    manifest = weights.manifest_of(folder)
    target = weights.copy_folder(manifest)
    target.mkdir(parents=True)
    with (
        FileLock(target / ".lock"),
        pytest.raises(CheckpointError, match=r"another process has been writing it for 0\.1 s"),
    ):
        weights.write_copy(manifest, {"config.json": b"{}"})
    assert weights.write_copy(manifest, {"config.json": b"{}"}) == target
    assert weights.holds(target, manifest)
