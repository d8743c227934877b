"""Children of tests as forks of a process that has the training framework loaded.

To import PyTorch, transformers and TRL takes several seconds of a core, and tests start hundreds of
children. `Fork` stands in for `subprocess.Popen` where a test is about what a command does, and not
about how its interpreter starts: each test process has one forkserver of Python's own library,
which imports the framework once, uses nothing of it, and forks for everyone who asks.

What a fresh interpreter alone can show starts one: signals that come while libraries load, another
environment of the dynamic linker, a framework that is not there.
"""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from multiprocessing import forkserver
from pathlib import Path
from typing import IO, Any

# Without Ray, whose library keeps the environment that it was loaded in.
PRELOADED = (
    "torch", "trl.trainer.grpo_trainer", "trl.trainer.rloo_trainer", "roll_adapters.trl.attempt",
    "ecorl.cli.commands", "ecorl.engines.fpga", "ecorl.report",
)  # fmt: skip

_NOWHERE = os.open(os.devnull, os.O_RDWR)


class Fork:
    """A child that runs Python as ``python WORDS`` would; the names are those of `Popen`.

    Args:
        words: ``-m MODULE``, ``-c CODE`` or the path of a script, and what it finds in `sys.argv`.
        env: its environment; None: that of this process.
        cwd: its working folder; None: that of this process.
        new_session: whether it leads a session of its own.
        merged: whether what it prints as errors goes with the rest.
    """

    def __init__(
        self,
        *words: str,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        new_session: bool = False,
        merged: bool = False,
    ) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="fork-")
        folder = Path(self._folder.name)
        self.args, self._out = words, folder / "out"
        self._err = self._out if merged else folder / "err"
        env = dict(os.environ if env is None else env)
        told = (words, env, str(cwd or Path.cwd()), str(self._out), str(self._err), new_session)
        # It imports these when it starts, with the first child of this process.
        forkserver.set_forkserver_preload(list(PRELOADED))
        context = multiprocessing.get_context("forkserver")
        self._process = context.Process(target=_run, args=told)
        self._process.start()
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        """The exit code, or the signal that ended it as a negative number; None while it runs."""
        return self._process.exitcode

    def poll(self) -> int | None:
        """As `returncode`."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end.

        Raises:
            TimeoutExpired: it has not ended in this time, s.
        """
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return self._process.exitcode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Wait for its end; all that it has printed on standard output, and of errors."""
        self.wait(timeout)
        return self.output(), "" if self._err == self._out else _text_of(self._err)

    def output(self) -> str:
        """What it has printed on standard output so far."""
        return _text_of(self._out)

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if self._process.exitcode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """Send it SIGKILL, unless it has ended."""
        self.send_signal(signal.SIGKILL)


def _text_of(path: Path) -> str:
    """What a child has printed to a file; one that was killed at once has made none."""
    return path.read_text("utf-8") if path.exists() else ""


def run(*words: str, timeout: float, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a fork to its end, as `subprocess.run` does with captured output.

    Raises:
        TimeoutExpired: it has not ended in this time, s, and was killed.
    """
    fork = Fork(*words, **options)
    try:
        out, err = fork.communicate(timeout)
    except subprocess.TimeoutExpired:
        fork.kill()
        raise
    return subprocess.CompletedProcess(words, fork.returncode or 0, out, err)


class ForkedModule:
    """A process that was forked by this one; what `ecorl.child_process.start_module` returns.

    Args:
        pid: of the process.
    """

    def __init__(self, pid: int) -> None:
        self.pid, self.returncode = pid, None

    def poll(self) -> int | None:
        """The exit code, or the signal that ended it as a negative number; None while it runs."""
        if self.returncode is None:
            found, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if found else None
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end.

        Raises:
            TimeoutExpired: it has not ended in this time, s.
        """
        end_s = time.monotonic() + (float("inf") if timeout is None else timeout)
        while (code := self.poll()) is None:
            if time.monotonic() >= end_s:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
            time.sleep(0.005)
        return code

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Send it SIGKILL, unless it has ended."""
        self.send_signal(signal.SIGKILL)


def fork_module(
    module: str,
    fd: int,
    variables: Mapping[str, str] | None = None,
    output: IO[bytes] | None = None,
    own_session: bool = False,
) -> ForkedModule:
    """Stand in for `ecorl.child_process.start_module` where this process has loaded the framework.

    The arguments are those of that function.
    """
    words = ("-m", module, str(fd), str(os.getpid()))
    outputs = (1, 2) if output is None else (output.fileno(), output.fileno())
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return ForkedModule(pid)
    code = 1
    try:
        outputs = tuple(map(os.dup, outputs))
        # Files and sockets of this process are none of the child's. Their numbers stay taken: what
        # is left of its objects may still close them.
        for file in Path("/proc/self/fd").iterdir():
            if int(file.name) not in (0, 1, 2, fd, *outputs):
                with contextlib.suppress(OSError):
                    os.dup2(_NOWHERE, int(file.name), inheritable=False)
        if own_session:
            os.setsid()
        sys.excepthook = sys.__excepthook__
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        code = exit_code(words, os.environ | dict(variables or {}), outputs)
    finally:
        os._exit(code)


def exit_code(words: Sequence[str], env: Mapping[str, str], outputs: Sequence[int]) -> int:
    """Be a child to its end; the code with which an interpreter would exit."""
    try:
        _be(words, env, outputs)
    except SystemExit as end:
        if isinstance(end.code, int | None):
            return end.code or 0
        sys.stderr.write(f"{end.code}\n")
        return 1
    except BaseException:  # noqa: BLE001  # as an interpreter does
        sys.excepthook(*sys.exc_info())
        return 1
    finally:
        threading._shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


def _run(
    words: Sequence[str], env: Mapping[str, str], cwd: str, out: str, err: str, new_session: bool
) -> None:
    """Be a fork of the forkserver."""
    if new_session:
        os.setsid()
    os.chdir(cwd)
    # As by default: the child inherits how it was made itself.
    multiprocessing.set_start_method(None, force=True)
    how = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    from roll_adapters.trl.launch import group

    group.start_module = fork_module
    _be(words, env, [os.open(path, how) for path in (out, err)])


def _be(words: Sequence[str], env: Mapping[str, str], outputs: Sequence[int]) -> None:
    """Set all in which an interpreter that has just begun differs from this process, and run."""
    os.environ.clear()
    os.environ.update(env)
    for file, number in zip(outputs, (1, 2), strict=True):
        os.dup2(file, number)
        os.close(file)
    # New ones: a stream knows from its beginning whether its file can seek.
    lines = 1 if env.get("PYTHONUNBUFFERED") else -1
    sys.stdout = open(1, "w", lines, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", 1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    signal.signal(signal.SIGINT, signal.default_int_handler)
    folders = env.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:0] = [folder for folder in folders if folder and folder not in sys.path]
    import numpy as np

    # Random numbers that nobody has seeded differ from fork to fork.
    np.random.seed()  # noqa: NPY002
    try:
        run_python(list(words))
    finally:
        # As an interpreter does that ends; a process of multiprocessing leaves it out.
        atexit._run_exitfuncs()


def run_python(words: list[str]) -> None:
    if words[0] == "-m":
        sys.argv = words[1:]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    elif words[0] == "-c":
        sys.argv = ["-c", *words[2:]]
        exec(compile(words[1], "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.argv = words
        sys.path.insert(0, str(Path(words[0]).parent))
        runpy.run_path(words[0], run_name="__main__")
