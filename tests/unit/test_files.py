from __future__ import annotations

import multiprocessing
import os
import signal
from pathlib import Path

import pytest

from ecorl.files import write_whole


def left_in(folder):
    return sorted(p.name for p in folder.iterdir())


@pytest.mark.parametrize("content", [b"\x00\r\n\xff", "two lines\r\nand \u00e9\n", b"", ""])
def test_what_is_written_is_read_byte_by_byte(tmp_path, content):
    write_whole(tmp_path / "f", content)
    expected = content if isinstance(content, bytes) else content.encode("utf-8")
    assert (tmp_path / "f").read_bytes() == expected
    assert left_in(tmp_path) == ["f"]


def test_a_file_that_is_there_is_replaced_and_not_written_over(tmp_path):
    path = tmp_path / "f"
    write_whole(path, "the old one is longer")
    with path.open() as reader:
        write_whole(path, "new")
        assert reader.read() == "the old one is longer"
    assert path.read_text() == "new"


def test_the_permissions_are_those_of_any_new_file(tmp_path):
    before = os.umask(0o027)
    try:
        write_whole(tmp_path / "ours", "x")
        (tmp_path / "plain").write_text("x")
    finally:
        os.umask(before)
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "plain").stat().st_mode


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
@pytest.mark.parametrize("at", ["os.fsync", "Path.replace"])
def test_a_write_that_fails_leaves_the_old_file_and_no_temporary(tmp_path, monkeypatch, at, error):
    write_whole(tmp_path / "f", "old")

    def fails(*_):
        assert len(left_in(tmp_path)) == 2
        raise error

    monkeypatch.setattr(f"ecorl.files.{at}", fails)
    with pytest.raises(type(error)):
        write_whole(tmp_path / "f", "new")
    assert left_in(tmp_path) == ["f"]
    assert (tmp_path / "f").read_text() == "old"


def test_it_is_on_the_disk_before_it_has_the_name(tmp_path, monkeypatch):
    path, seen = tmp_path / "f", []
    sync, replace = os.fsync, Path.replace

    def syncs(handle):
        seen.append(("sync", os.fstat(handle).st_size, path.exists()))
        sync(handle)

    def replaces(self, target):
        seen.append(("replace", self.parent, target))
        return replace(self, target)

    monkeypatch.setattr("ecorl.files.os.fsync", syncs)
    monkeypatch.setattr("ecorl.files.Path.replace", replaces)
    write_whole(path, b"12345")
    assert seen == [("sync", 5, False), ("replace", tmp_path, path)]


def test_what_cannot_be_a_file_is_told_as_it_is(tmp_path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError):
        write_whole(tmp_path / "folder", "x")
    with pytest.raises(FileNotFoundError):
        write_whole(tmp_path / "none" / "f", "x")
    (tmp_path / "file").write_text("x")
    with pytest.raises(NotADirectoryError):
        write_whole(tmp_path / "file" / "f", "x")
    assert left_in(tmp_path) == ["file", "folder"]


def _killed_in_between(path):
    os.fsync = lambda handle: os.kill(os.getpid(), signal.SIGKILL)
    write_whole(path, "new")


def test_a_kill_in_between_leaves_the_old_file(tmp_path):
    write_whole(tmp_path / "f", "old")
    process = multiprocessing.get_context("fork").Process(
        target=_killed_in_between, args=(tmp_path / "f",)
    )
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert (tmp_path / "f").read_text() == "old"
    write_whole(tmp_path / "f", "newer")  # what the dead one left is in nobody's way
    assert (tmp_path / "f").read_text() == "newer"
