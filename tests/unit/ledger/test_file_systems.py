"""Records on file systems that lack what a local disk has, and on such as fail later."""

from __future__ import annotations

import errno
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from ecorl.errors import RunError
from ecorl.files import lockable, stand_in, write_whole
from ecorl.ledger import LEDGER_FILE, Ledger, LedgerReader
from ecorl.records import EventKind
from ecorl.runtime.runs.record import check_writable, create_run
from tests.fakes.file_system.poor_file_system import build, environment, later
from tests.fakes.grids import plain_config

POOR = {
    "no links": {"links": errno.EPERM},
    "no locks, as NFS says it": {"locks": errno.ENOLCK},
    "no locks, as Lustre says it": {"locks": errno.ENOSYS},
    "no shared memory": {"memory": errno.ENODEV},
    "no permissions": {"attributes": errno.EPERM},
    "nothing of it": {
        "links": errno.EOPNOTSUPP,
        "locks": errno.EOPNOTSUPP,
        "memory": errno.EINVAL,
        "replace": errno.EACCES,
        "attributes": errno.ENOSYS,
    },
}

WRITER = """
import sys, itertools
from pathlib import Path
from ecorl.ledger import Ledger
from ecorl.records import PowerSample, Provenance
ledger = Ledger.create(Path(sys.argv[1]), run_id="r", config_toml="", meta={})
ledger.event("start", "")
for i in itertools.count():
    ledger.metric(i, "reward", float(i))
    ledger.event("width", "x" * 5000)
    if i % 200 == 0 and ledger.flush():
        print(i, flush=True)
        sys.stdin.readline()
"""

BESIDE = """
import sys
from pathlib import Path
from ecorl.errors import RunError
from ecorl.ledger import Ledger, LedgerReader, is_being_written
path = Path(sys.argv[1])
for _ in range(3):
    with LedgerReader(path) as reader:
        print(len(reader.metrics()))
print(is_being_written(path))
try:
    Ledger.open_for_resume(path, from_step=0)
except RunError as error:
    print(error)
"""

RESUME = """
import sys
from pathlib import Path
from ecorl.ledger import Ledger, LedgerReader, is_being_written
path = Path(sys.argv[1])
print(is_being_written(path))
ledger = Ledger.open_for_resume(path, from_step=10**9)
with LedgerReader(path) as reader:
    ledger.metric(10**6, "reward", 1.0)
    assert ledger.flush()
    print(len(reader.metrics()), *[a.attempt for a in reader.attempts()])
    reader.refresh()
    print(len(reader.metrics()))
ledger.close()
with LedgerReader(path) as reader:
    print(len(reader.metrics()))
"""

LOOP = """
import sys, time
from pathlib import Path
import ecorl
from ecorl.config import validate_config
with ecorl.measure(validate_config({"run_dir": sys.argv[1]}), total_steps=4) as run:
    for i in range(4):
        if i == 2:
            Path(sys.argv[2]).touch()
        time.sleep(0.15)
        run.step(n_samples=4, n_tokens=100, loss=1.0)
print("trained")
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory) -> Path:
    return build(tmp_path_factory.mktemp("file_system"))


def run(script: str, *args: Path, **settings: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", script, *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, **settings)


def names(folder: Path) -> set[str]:
    return {file.name for file in folder.iterdir()}


@pytest.mark.parametrize("refused", POOR.values(), ids=POOR)
def test_a_record_is_read_while_it_is_written_and_gone_on_with_when_killed(
    library, tmp_path, refused
):
    """More than the log's 4 MB are written, so that it is moved into the file meanwhile."""
    path = tmp_path / "run" / LEDGER_FILE
    poor = environment(library, tmp_path, **refused)
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=poor,
    )  # fmt: skip
    assert writer.stdin is not None
    assert writer.stdout is not None
    for last in range(0, 1001, 200):
        assert writer.stdout.readline() == b"%d\n" % last
        if last < 1000:
            writer.stdin.write(b"\n")
            writer.stdin.flush()
    beside = run(BESIDE, path, env=poor)
    assert beside.returncode == 0, beside.stderr
    *found, refusal = beside.stdout.splitlines()
    assert found == [*["1001"] * 3, "True"]
    assert refusal.startswith(f"{path}: another process")
    writer.send_signal(signal.SIGKILL)
    warned = writer.communicate()[1].decode()
    assert ("one machine" in warned) == ("locks" in refused)
    resumed = run(RESUME, path, env=poor)
    assert resumed.returncode == 0, resumed.stderr
    assert resumed.stdout.splitlines() == ["False", "1001 1 2", "1002", "1002"]
    assert names(path.parent) == {LEDGER_FILE, f"{LEDGER_FILE}.lock"}
    # On any other file system too.
    with LedgerReader(path) as reader:
        assert len(reader.metrics()) == 1002


REFRESH = """
import sys
from pathlib import Path
from ecorl.ledger import Ledger, LedgerReader
path = Path(sys.argv[1])
Ledger.create(path, run_id="r", config_toml="", meta={}).close()
with LedgerReader(path) as reader:
    with Ledger.open_for_resume(path, from_step=0) as ledger:
        ledger.metric(1, "reward", 1.0)
        assert ledger.flush()
        reader.refresh()
        print(len(reader.metrics()))
        ledger.metric(2, "reward", 1.0)
    reader.refresh()
    print(len(reader.metrics()))
"""


@pytest.mark.parametrize("kind", ["no locks, as NFS says it", "no shared memory"])
def test_a_reader_of_an_ended_run_sees_it_gone_on_with(library, tmp_path, kind):
    """Its file is read in place before and behind, and from a copy meanwhile."""
    done = run(REFRESH, tmp_path / LEDGER_FILE, env=environment(library, tmp_path, **POOR[kind]))
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["1", "2"]


HALF_DONE = """
import os, sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("PRAGMA cache_size = 1")
connection.execute("BEGIN")
for i in range(2000):
    connection.execute("UPDATE metric SET value = -1")
    connection.execute("INSERT INTO meta VALUES (?, ?)", (str(i), "x" * 2000))
os._exit(0)
"""


def test_a_change_that_was_cut_off_is_undone_in_a_copy(library, tmp_path):
    """A resume marks what it makes void before the file is in WAL mode again."""
    path = tmp_path / LEDGER_FILE
    with Ledger.create(path, run_id="r", config_toml="", meta={}) as ledger:
        for i in range(500):
            ledger.metric(i, "reward", 1.0)
    before = path.read_bytes()
    assert run(HALF_DONE, path).returncode == 0
    assert path.read_bytes() != before
    assert path.with_name(f"{LEDGER_FILE}-journal").stat().st_size > 0
    read = (
        "import sys; from pathlib import Path; from ecorl.ledger import LedgerReader\n"
        "print({row.value for row in LedgerReader(Path(sys.argv[1])).metrics()})"
    )
    for refused in ({"locks": errno.ENOLCK}, {"write": errno.EROFS}):
        done = run(read, path, env=environment(library, tmp_path, **refused))
        assert done.stdout == "{1.0}\n", done.stderr


def test_a_writer_on_another_machine_is_seen_by_the_log_that_grows(library, tmp_path, snapshot):
    """What holds the lock is out of sight, as on another machine."""
    path = tmp_path / "run" / LEDGER_FILE
    poor = environment(library, tmp_path, locks=errno.ENOLCK)
    script = WRITER.replace("        sys.stdin.readline()", "    time.sleep(0.01)")
    script = f"import time\n{script}"
    command = [sys.executable, "-c", script, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=poor) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"0\n"
        stand_in(path.with_name(f"{LEDGER_FILE}.lock")).unlink()
        # Copies of it lie on the same file system here.
        beside = run(BESIDE, path, env=poor | {"TMPDIR": str(tmp_path)})
        writer.kill()
    assert beside.returncode == 0, beside.stderr
    assert beside.stdout.splitlines()[-2] == "None"
    snapshot(beside.stdout.splitlines()[-1])


@pytest.mark.parametrize("kind", ["no links", "no shared memory", "nothing of it"])
def test_a_loop_is_measured(library, tmp_path, kind):
    folder = tmp_path / "run"
    done = run(LOOP, folder, tmp_path / "now", env=environment(library, tmp_path, **POOR[kind]))
    assert done.returncode == 0, done.stderr
    assert " 4 steps" in done.stderr
    assert names(folder) == {
        "config.toml", "emissions.csv", "footprint.json", LEDGER_FILE, f"{LEDGER_FILE}.lock",
    }  # fmt: skip


LATER = {
    "Read-only file system": errno.EROFS,
    "Disk quota exceeded": errno.EDQUOT,
    "disk is full": errno.ENOSPC,
    "Input/output error": errno.EIO,
}


@pytest.mark.parametrize(
    ("reason", "number", "before"),
    [*((*one, {}) for one in LATER.items()), ("Disk quota", errno.EDQUOT, POOR["nothing of it"])],
)
def test_a_disk_that_fails_later_costs_rows_and_no_training(
    library, tmp_path, reason, number, before
):
    folder = tmp_path / "run"
    switch = tmp_path / "now"
    poor = environment(library, folder, **before) | later(switch, write=number)
    done = run(LOOP, folder, tmp_path / "now", env=poor)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "trained\n"
    assert "Traceback" not in done.stderr
    (line,) = [one for one in done.stderr.splitlines() if "goes on" in one]
    assert reason in line
    with LedgerReader(folder) as reader:
        assert EventKind.START in [event.kind for event in reader.events()]
        assert len(reader.executions()) < 4
    again = run(LOOP, folder, tmp_path / "now")
    assert "already" in again.stderr.splitlines()[-1]


@pytest.mark.parametrize("refused", [{"write": errno.EROFS}, {"write": errno.EDQUOT},
                                     {"rename": errno.ENOSYS}], ids=str)  # fmt: skip
def test_a_start_that_fails_says_why_and_leaves_nothing(library, tmp_path, refused):
    base = tmp_path / "disk"
    base.mkdir()
    folder = base / "a" / "run"
    poor = environment(library, base, **refused)
    done = run(LOOP, folder, tmp_path / "now", env=poor)
    last = done.stderr.splitlines()[-1]
    assert last.startswith("ecorl.errors.")
    assert any(words in last for words in ("Read-only", "quota exceeded", "not implemented"))
    assert names(base) == set()


def test_a_config_that_finds_no_room_takes_the_record_with_it(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(RunError, match="No space left"):
        create_run(plain_config(tmp_path / "a" / "run"), tmp_path / "a" / "run", {})
    assert names(tmp_path) == set()


def test_a_folder_that_another_run_uses_by_now_is_writable_all_the_same(tmp_path, monkeypatch):
    make = tempfile.TemporaryFile

    def while_another_begins(**settings):
        (tmp_path / "runs" / "other").mkdir()
        return make(**settings)

    monkeypatch.setattr(tempfile, "TemporaryFile", while_another_begins)
    check_writable(tmp_path / "runs" / "mine")
    assert names(tmp_path / "runs") == {"other"}


def test_what_a_killed_start_left_goes_with_the_next(tmp_path):
    for end in ("7.new", "7.new-journal", "7.probe-shm"):
        (tmp_path / f".{LEDGER_FILE}.{end}").touch()
    (tmp_path / ".mine").touch()
    Ledger.create(tmp_path / LEDGER_FILE, run_id="r", config_toml="", meta={}).close()
    assert names(tmp_path) == {".mine", LEDGER_FILE, f"{LEDGER_FILE}.lock"}


def test_a_lock_that_another_user_has_made_is_not_made_again(tmp_path, monkeypatch):
    """As Linux keeps to it in folders that all may write (``fs.protected_regular``)."""
    opened = Path.open

    def protected(path, mode="r", *args, **kwargs):
        if "a" in mode and path.exists():
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return opened(path, mode, *args, **kwargs)

    monkeypatch.setattr(Path, "open", protected)
    path = tmp_path / LEDGER_FILE
    Ledger.create(path, run_id="r", config_toml="", meta={}).close()
    Ledger.open_for_resume(path, from_step=0).close()


REPLACE = """
import sys
from pathlib import Path
from ecorl.files import write_whole
write_whole(Path(sys.argv[1]), "new")
"""


def test_a_file_is_written_anew_where_no_rename_replaces_one(library, tmp_path):
    path = tmp_path / "report.html"
    write_whole(path, "old")
    done = run(REPLACE, path, env=environment(library, tmp_path, replace=errno.EACCES))
    assert done.returncode == 0, done.stderr
    assert path.read_text() == "new"
    done = run(REPLACE, path, env=environment(library, tmp_path, rename=errno.EPERM))
    assert "PermissionError" in done.stderr
    assert path.read_text() == "new"
    assert names(tmp_path) == {"report.html"}


LOCK = """
import sys
from pathlib import Path
from filelock import FileLock
from ecorl.files import lockable
with FileLock(lockable(Path(sys.argv[1])), timeout=0):
    print("held", flush=True)
    sys.stdin.readline()
"""


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_cache_is_locked_where_the_file_system_knows_no_locks(library, tmp_path, number):
    poor = environment(library, tmp_path, locks=number)
    command = [sys.executable, "-c", LOCK, str(tmp_path / ".lock")]
    first = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=poor)
    assert first.stdout is not None
    assert first.stdout.readline() == b"held\n"
    assert "Timeout" in run(LOCK, tmp_path / ".lock", env=poor, input="").stderr
    first.kill()
    first.communicate()
    assert run(LOCK, tmp_path / ".lock", env=poor, input="").stdout == "held\n"
    stand_in(tmp_path / ".lock").unlink()


def test_a_lock_stays_in_its_folder_where_it_can(tmp_path):
    assert lockable(tmp_path / ".lock") == tmp_path / ".lock"
    assert names(tmp_path) == set()
