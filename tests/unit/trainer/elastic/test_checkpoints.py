from __future__ import annotations

import errno
from pathlib import Path

import pytest

from ecorl.errors import RunError
from ecorl.trainer.elastic.checkpoints import CheckpointFolder


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_the_last_two_are_kept_and_the_newest_is_read(tmp_path):
    folder = CheckpointFolder(tmp_path / "made")
    for n_done in (8, 9, 10, 100_000_000):
        folder.write(n_done, f"state {n_done}".encode())
    newest, damaged = folder.newest()
    assert (newest.n_done, newest.payload) == (100_000_000, b"state 100000000")
    assert damaged == []
    assert folder.n_done() == 100_000_000
    assert names(folder.folder) == ["step-00000010.ckpt", "step-100000000.ckpt"]


def test_what_the_controller_remembers_lies_beside_the_state(tmp_path):
    folder = CheckpointFolder(tmp_path)
    folder.write(1, b"one", {"low_tokens": 60.0})
    newest, _ = folder.newest()
    assert (newest.payload, newest.control) == (b"one", {"low_tokens": 60.0})


def test_one_of_another_format_is_refused_in_one_line(tmp_path):
    folder = CheckpointFolder(tmp_path)
    folder.write(1, b"one")
    path = tmp_path / "step-00000001.ckpt"
    path.write_bytes(path.read_bytes().replace(b'"format": 1', b'"format": 2'))
    told = r"step-00000001\.ckpt \(format 2, this ecorl reads 1\)"
    with pytest.raises(RunError, match=told):
        folder.newest()


def cut(path):
    path.write_bytes(path.read_bytes()[:-3])


def flip(path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def lengthen(path):
    path.write_bytes(path.read_bytes() + b"x")


def empty(path):
    path.write_bytes(b"")


def rename(path):
    path.rename(path.with_name("step-00000003.ckpt"))


@pytest.mark.parametrize("harm", [cut, flip, lengthen, empty, rename])
def test_a_damaged_one_is_recognised_and_the_one_before_it_taken(tmp_path, harm):
    folder = CheckpointFolder(tmp_path)
    folder.write(1, b"one\nwith lines\n")
    folder.write(2, b"two")
    harm(tmp_path / "step-00000002.ckpt")
    if harm is not flip:  # all but the hash is seen without reading the state
        assert folder.n_done() == 1
    newest, damaged = folder.newest()
    assert (newest.n_done, newest.payload) == (1, b"one\nwith lines\n")
    (one,) = damaged
    assert one.name.startswith("step-0000000")
    # It is not looked at again, and kept for whoever wants to know.
    assert folder.newest() == (newest, [])
    assert one.name.replace(".ckpt", ".damaged") in names(tmp_path)


def test_nothing_is_there_or_all_is_damaged(tmp_path):
    folder = CheckpointFolder(tmp_path)
    assert folder.newest() == (None, [])
    assert folder.n_done() == 0
    folder.write(1, b"one")
    folder.write(2, b"two")
    for path in tmp_path.iterdir():
        flip(path)
    for _ in range(2):  # a second try begins no training anew either
        with pytest.raises(RunError, match=r"step-00000002\.ckpt .*step-00000001\.ckpt"):
            folder.newest()


def test_one_that_cannot_be_read_for_now_is_not_taken_for_damaged(tmp_path, monkeypatch):
    folder = CheckpointFolder(tmp_path)
    folder.write(1, b"one")

    def exhausted(_):
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "read_bytes", exhausted)
        with pytest.raises(OSError, match="Too many open files"):
            folder.newest()
    assert folder.newest()[0].payload == b"one"


def test_a_full_disk_leaves_what_is_there(tmp_path, monkeypatch):
    folder = CheckpointFolder(tmp_path)
    folder.write(1, b"one")

    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("ecorl.files.os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        folder.write(2, b"two")
    assert names(tmp_path) == ["step-00000001.ckpt"]
    assert folder.newest()[0].payload == b"one"


def test_what_a_killed_driver_left_half_written_is_removed(tmp_path):
    (tmp_path / ".step-00000007.ckpt.0a1b2c3d.part").write_bytes(b"hal")
    (tmp_path / "notes.txt").write_text("the user's own")
    assert CheckpointFolder(tmp_path).newest() == (None, [])
    assert names(tmp_path) == ["notes.txt"]
