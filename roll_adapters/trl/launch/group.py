"""One group of training processes, as the supervisor starts, watches and ends it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO

from ecorl.child_process import start_module
from roll_adapters.trl.launch.messages import Begin, Channel, Ended, Failed, Go, Message

_TAIL_BYTES = 4096
"""Bytes at the end of what a process printed in which its last line is looked for; invented."""

_REAP_S = 5.0
"""How long the kernel may take to remove the processes of a group after SIGKILL, s: one within a
driver's call can take for ever, and nobody waits for that. Invented."""

_WORDS = 300
"""Characters of that line in an error's one line; invented."""


@dataclass(slots=True)
class TrainingProcess:
    """One process of a group.

    Attributes:
        printed: file of all that it prints; None for rank 0, which prints to the terminal.
        failed: what it told of its end, if it failed.
        has_ended: whether it told that its work is done: however it exits, that is no fault.
    """

    process: subprocess.Popen[bytes]
    channel: Channel
    printed: IO[bytes] | None
    failed: Failed | None = None
    has_ended: bool = False

    @property
    def has_died(self) -> bool:
        """Whether it exited with another code than 0 before its work was done."""
        return not self.has_ended and self.process.poll() not in (None, 0)

    def keep_end(self, heard: Sequence[Message]) -> None:
        """Note what it told of its end.

        Args:
            heard: all that it told.
        """
        for message in heard:
            if isinstance(message, Failed):
                self.failed = message
            elif isinstance(message, Ended) and message.how != "broken":
                self.has_ended = True


@dataclass(frozen=True, slots=True)
class ProcessFault:
    """Why a group cannot train on.

    Attributes:
        text: what happened, one line.
        failed: the error of the process that it goes back to; None when it told of none.
    """

    text: str
    failed: Failed | None = None


@dataclass(slots=True)
class TrainingGroup:
    """Processes that train together.

    Attributes:
        width: their number.
        members: the processes by rank.
        started_s: when they were started, on the machine's steady clock, s.
        serial: number of the wish that it answers; 0 where it stands by for none.
        is_ready: whether it has loaded all that it can and waits to go on.
        go: what it goes on with as soon as it is ready; None while it stands by, and once it has
            made its first step.
        unheard: what rank 0 told while the group's fault was looked for.
    """

    width: int
    members: list[TrainingProcess]
    started_s: float
    port: socket.socket | None
    serial: int = 0
    is_ready: bool = False
    go: Go | None = None
    unheard: list[Message] = field(default_factory=list)

    @property
    def channels(self) -> list[Channel]:
        """Connections to its processes."""
        return [member.channel for member in self.members]

    def send(self, message: Message) -> None:
        """Tell rank 0 something.

        Args:
            message: what.
        """
        self.members[0].channel.send(message)

    def tell_others(self, message: Message) -> None:
        """Tell all ranks but 0 something.

        Args:
            message: what.
        """
        for member in self.members[1:]:
            member.channel.send(message)

    def receive(self) -> list[Message]:
        """What rank 0 has told; errors of all are kept for `fault`."""
        for member in self.members[1:]:
            member.keep_end(member.channel.receive())
        told = self.members[0].channel.receive()
        self.members[0].keep_end(told)
        heard, self.unheard = [*self.unheard, *told], []
        return heard

    def signal(self, number: int) -> None:
        """Send rank 0 a signal.

        Args:
            number: of the signal.
        """
        self.members[0].process.send_signal(number)

    def has_fault(self) -> bool:
        """Whether a process failed or died, or rank 0 ended."""
        if self.members[0].process.poll() is not None:
            return True
        return any(m.failed is not None or m.has_died for m in self.members)

    def fault(self, patience_s: float) -> ProcessFault:
        """Find out why the group cannot train on.

        Where one process dies the others fail as well: what a process says on purpose, or of too
        little memory, goes before a signal that killed one, and that before errors of a connection.
        Whatever rank 0 tells meanwhile, such as that the run has ended as it should, is heard by
        the next `receive`.

        Args:
            patience_s: how long the processes have to tell, s.
        """
        end_s = time.monotonic() + patience_s
        while (cause := self._cause()) is None and time.monotonic() < end_s:
            if self.is_over() or any(isinstance(told, Ended) for told in self.unheard):
                break
            time.sleep(0.01)
        cause = cause or self._cause()
        if cause is not None:
            return cause
        for rank, member in enumerate(self.members):
            if member.failed is not None:
                return ProcessFault(member.failed.text, member.failed)
            if member.has_died:
                return ProcessFault(self._death(rank))
        return ProcessFault("the training processes ended before their work was done")

    def _cause(self) -> ProcessFault | None:
        """What alone explains the end of a group; None as long as no process has told it."""
        self.unheard = self.receive()
        for member in self.members:
            failed = member.failed
            if failed is not None and (not failed.trace or failed.is_out_of_memory):
                return ProcessFault(failed.text, failed)
        for rank, member in enumerate(self.members):
            if member.has_died and member.process.returncode < 0:
                return ProcessFault(self._death(rank))
        return None

    def is_over(self) -> bool:
        """Whether all processes have ended."""
        return all(member.process.poll() is not None for member in self.members)

    def kill(self) -> None:
        """End all processes at once, and all that they have started in their sessions.

        None of them runs on after this call, but one that the kernel cannot end within `_REAP_S`.
        """
        for member in self.members:
            # The session outlives the process that leads it where a child of that one lives on.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(member.process.pid, signal.SIGKILL)
        self._wait(_REAP_S)
        for member in self.members:
            member.channel.close()
            if member.printed is not None:
                member.printed.close()
        if self.port is not None:
            self.port.close()

    def close(self, patience_s: float) -> None:
        """Wait until the processes have ended by themselves; kill those that do not.

        What they have started in their sessions ends with them.

        Args:
            patience_s: how long all of them may take, s.
        """
        self._wait(patience_s)
        self.kill()

    def _wait(self, patience_s: float) -> None:
        end_s = time.monotonic() + patience_s
        for member in self.members:
            with contextlib.suppress(subprocess.TimeoutExpired):
                member.process.wait(max(0.0, end_s - time.monotonic()))

    def _death(self, rank: int) -> str:
        member = self.members[rank]
        who = f"training process {rank} of {self.width} (process id {member.process.pid})"
        code = member.process.returncode
        # A process that another one's signal killed had no time for words about it.
        has_told = code > 0 or code == -signal.SIGABRT
        return f"{who} {_ending(code)}{_last_words(member) if has_told else ''}"


def start_group(
    module: str, width: int, begin: Begin, variables: Mapping[str, str] | None = None
) -> TrainingGroup:
    """Start the processes of a training.

    Args:
        module: that each of them runs, see `roll_adapters.trl.launch.worker`.
        width: their number.
        begin: what they are to do.
        variables: of their environment, beside those of this process.

    Raises:
        OSError: the system refuses another process.
    """
    group = TrainingGroup(width, [], time.monotonic(), _free_port() if width > 1 else None)
    try:
        for rank in range(width):
            own = {**(variables or {}), **_variables(rank, width, group.port)}
            group.members.append(_start(module, own, rank))
    except BaseException:
        group.kill()
        raise
    for channel in group.channels:
        channel.send(begin)
    return group


def _start(module: str, variables: dict[str, str], rank: int) -> TrainingProcess:
    own, theirs = socket.socketpair()
    # Of several processes that say the same, one is read.
    printed = tempfile.TemporaryFile() if rank else None  # noqa: SIM115  # the member closes it
    with theirs:
        process = start_module(module, theirs.fileno(), variables, output=printed, own_session=True)
    return TrainingProcess(process, Channel(own), printed)


def _variables(rank: int, width: int, port: socket.socket | None) -> dict[str, str]:
    """The environment in which torchrun would start a process."""
    if port is None:
        # With several GPUs in sight the framework would split each batch between them by itself.
        in_sight = os.environ.get("CUDA_VISIBLE_DEVICES", "0")
        return {"CUDA_VISIBLE_DEVICES": in_sight.partition(",")[0]}
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(width),
        "LOCAL_WORLD_SIZE": str(width),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port.getsockname()[1]),
        # All of them are on this machine.
        "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "lo"),
        # Each process would warn of what the framework's own settings cost.
        "TORCH_CPP_LOG_LEVEL": os.environ.get("TORCH_CPP_LOG_LEVEL", "ERROR"),
    }


def _free_port() -> socket.socket:
    """Hold a free port until rank 0 listens on it, seconds later: nobody else gets it meanwhile."""
    port = socket.socket()
    port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    port.bind(("", 0))
    return port


def _ending(code: int) -> str:
    if code < 0:
        try:
            return f"was ended by {signal.Signals(-code).name}"
        except ValueError:
            return f"was ended by signal {-code}"
    return f"ended with exit code {code}"


def _last_words(member: TrainingProcess) -> str:
    """The last line that a process printed, for one line of ours."""
    if member.printed is None:
        return ""
    size = member.printed.seek(0, os.SEEK_END)
    member.printed.seek(max(0, size - _TAIL_BYTES))
    lines = member.printed.read().decode("utf-8", "replace").split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return f" ({last[-_WORDS:]})" if last else ""
