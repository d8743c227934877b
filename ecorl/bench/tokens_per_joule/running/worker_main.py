"""The process that runs jobs: ``python -m ...worker_main FD PARENT_PID``.

It imports what they need once, and forks a process for each of them: no handler of signals, no
thread, no engine and no cache goes from one job to the next, and a crash ends one job alone. It
starts no thread of its own (one allocator does, which knows of forks) and touches no GPU, which
would not survive a fork; where there is a GPU it is not asked to import anything either, so that
each job begins as a fresh process does.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
import traceback
from pathlib import Path
from typing import Any

from ecorl.bench.tokens_per_joule.arms import GearChoices
from ecorl.bench.tokens_per_joule.running.workers import (
    STOP,
    JobAnswer,
    WorkerJob,
    decoded_answer,
    decoded_job,
    encoded,
)
from ecorl.child_process import die_with_parent, hear_keyboard
from ecorl.config import Config
from ecorl.control import Gear
from ecorl.errors import ConfigError, EcorlError, UserError

_CANDIDATES = (Gear.FP8, Gear.BF16)
"""Formats that may save energy, the lowest first. FP16 is as wide as BF16 and needs more care."""


def processors_here(config: Config) -> dict[str, Any]:
    """Tell where PyTorch computes and which formats act there; brings torch.

    Args:
        config: of the runs.

    Returns:
        Plain data: ``device`` (cuda or cpu), ``gpu_uuids``, and for gears ``gears`` and ``why``.
    """
    import torch

    on_gpu = torch.cuda.is_available()
    uuids = []
    if on_gpu:
        for gpu in range(min(config.devices.n_gpus, torch.cuda.device_count())):
            uuid = str(getattr(torch.cuda.get_device_properties(gpu), "uuid", ""))
            uuids.append(uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}")
    found = gear_choices("cuda" if on_gpu else "cpu")
    return {
        "device": "cuda" if on_gpu else "cpu",
        "gpu_uuids": [uuid for uuid in uuids if uuid != "GPU-"],
        "gears": [str(gear) for gear in found.gears],
        "why": found.why,
    }


def gear_choices(device: str) -> GearChoices:
    """Find the lowest format that a device computes in and that is not the trainer's own.

    Args:
        device: ``cuda`` or ``cpu``; a trainer computes in BF16 on the first, in FP32 on the other.
    """
    import torch

    from ecorl.trainer.gears.formats import supported

    own = Gear.BF16 if device == "cuda" else Gear.FP32
    reasons = []
    for gear in _CANDIDATES:
        if gear is own:
            reasons.append(f"{gear} is what training computes in anyway")
            continue
        try:
            supported([gear], torch.device(device), may_simulate_fp8=False)
        except ConfigError:
            reasons.append(f"the device has no units for {gear}")
            continue
        return GearChoices((gear, own))
    return GearChoices(why=f"gears: none acts here: {', '.join(reasons)}")


class _Inbox:
    """Lines that the benchmark sends."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection, self._held = connection, b""

    def fileno(self) -> int:
        """For `select`: readable when something new has come."""
        return self._connection.fileno()

    def next_line(self) -> bytes | None:
        """Wait for a line; None when the benchmark has gone."""
        while b"\n" not in self._held:
            if not self.receive():
                return None
        line, _, self._held = self._held.partition(b"\n")
        return line

    def receive(self) -> bool:
        """Take in what has come; False when the benchmark has gone."""
        chunk = self._connection.recv(65536)
        self._held += chunk
        return bool(chunk)

    def asks_to_stop(self) -> bool:
        """Whether it has sent `STOP`, which is then forgotten."""
        asked, self._held = encoded(STOP) in self._held, self._held.replace(encoded(STOP), b"")
        return asked


def main(argv: list[str]) -> int:
    """Do jobs until the benchmark goes; returns the exit code."""
    connection = socket.socket(fileno=int(argv[1]))
    # The benchmark's main thread has started this process, and lives as long as it does.
    die_with_parent(int(argv[2]))
    inbox = _Inbox(connection)
    while (line := inbox.next_line()) is not None:
        job = decoded_job(line)
        if isinstance(job, str):
            continue  # the job that was to stop has ended already
        answer = _preloaded(job) if job.kind == "preload" else _in_own_process(job, inbox)
        if answer is None:
            break
        connection.sendall(encoded(answer))
    return 0


def _preloaded(job: WorkerJob) -> JobAnswer:
    try:
        from ecorl.runtime.adapters import load_adapter

        adapter = load_adapter(job.adapter)
        if hasattr(adapter, "preload"):
            adapter.preload()
    except (EcorlError, ImportError, OSError) as error:
        return _failed(error)
    return JobAnswer()


def _failed(error: BaseException) -> JobAnswer:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    is_users = isinstance(error, UserError)
    return JobAnswer(None, type(error).__name__, " ".join(lines[:3]), is_users)


# ---------------------------------------------------------------- a process for each job


def _in_own_process(job: WorkerJob, inbox: _Inbox) -> JobAnswer | None:
    """Fork, wait and hand the answer on; None where the benchmark has gone meanwhile."""
    outlet, inlet = os.pipe()
    parent_pid = os.getpid()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        os.close(outlet)
        os.close(inbox.fileno())
        _do_and_exit(job, inlet, parent_pid)
    os.close(inlet)
    told = _heard(outlet, inbox, pid)
    os.close(outlet)
    _, status = os.waitpid(pid, 0)
    if told is None:
        return None
    if told:
        return decoded_answer(told)
    code = os.waitstatus_to_exitcode(status)
    how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
    return JobAnswer(None, "JobDied", f"its process {how}{_last_line(job.log)}")


def _heard(outlet: int, inbox: _Inbox, pid: int) -> bytes | None:
    """All that a job's process tells; None where the benchmark has gone, and the job with it."""
    told = b""
    while True:
        readable, _, _ = select.select([outlet, inbox.fileno()], [], [])
        if inbox.fileno() in readable:
            if not inbox.receive():
                os.kill(pid, signal.SIGKILL)
                return None
            if inbox.asks_to_stop():
                os.kill(pid, signal.SIGINT)
        if outlet in readable:
            chunk = os.read(outlet, 65536)
            if not chunk:
                return told
            told += chunk


def _last_line(log: str) -> str:
    if not log or not Path(log).is_file():
        return ""
    lines = [x.strip() for x in Path(log).read_text("utf-8", "replace").splitlines() if x.strip()]
    return f" ({lines[-1][-200:]})" if lines else ""


def _do_and_exit(job: WorkerJob, inlet: int, parent_pid: int) -> None:
    """Do a job, tell what came of it, and end without what the forked interpreter would do."""
    answer = JobAnswer()
    try:
        die_with_parent(parent_pid)
        _print_into(job.log)
        hear_keyboard()
        answer = JobAnswer(_done(job))
    except EcorlError as error:
        answer = _failed(error)
    except BaseException as error:  # not contained: the benchmark is told, and this process ends
        answer = _failed(error)
        with contextlib.suppress(OSError):
            traceback.print_exc()
        raise
    finally:
        # On a full disk what was printed is lost, and the answer is not.
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError):
                stream.flush()
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        os.write(inlet, encoded(answer))
        # Not `sys.exit`: handlers that the process it was forked from has set are not its own.
        os._exit(0)


def _print_into(log: str) -> None:
    """Send all that is printed from here on to a file, that of started processes too."""
    target = os.open(log or os.devnull, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for own in (1, 2):
        os.dup2(target, own)
    os.close(target)


def _done(job: WorkerJob) -> Any:
    from rich.console import Console

    from ecorl.config import FilesTask, parse_config
    from ecorl.runtime.adapters import adapter_function, load_adapter

    config, folder = parse_config(job.config, "the benchmark's config"), Path(job.folder)
    console = Console(file=sys.stdout, width=100)
    if job.kind == "processors":
        return processors_here(config)
    if job.kind == "check":
        return adapter_function(job.adapter, "check")(config, folder, console)
    if job.kind == "task":
        task = config.task
        is_made = not isinstance(task, FilesTask)
        if is_made or hasattr(load_adapter(job.adapter), "benchmark_task"):
            task = adapter_function(job.adapter, "benchmark_task")(config, folder, console)
        return task.model_dump(mode="json", exclude_none=True)
    if job.kind == "supervised":
        return adapter_function(job.adapter, "train_supervised")(config, folder, console)
    return bool(adapter_function(job.adapter, "run")(config, folder, console))


if __name__ == "__main__":
    sys.exit(main(sys.argv))
