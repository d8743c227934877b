"""Messages between the supervisor and the training processes, one line of JSON each.

supervisor             process
Begin            ->    to each of a group, first
                 <-    FilesPrepared        rank 0: the files of the task are there
FilesPrepared         ->    to the other ranks, which waited for it
                 <-    Wanted          rank 0: another number of processes is wanted
                 <-    StandbyReady           rank 0 of the group that stands by
StandbyReady | Dropped  ->    to rank 0 of the group that trains
                 <-    Stayed          rank 0: it could not save for the group that stands by
                 <-    Left            rank 0: it has saved and stopped for the group that stands by
Go               ->    to rank 0 of that group
                 <-    Begun           rank 0: its first step is done
                 <-    Ended | Failed  how the process ends
(connection closed)    the process ends
"""

from __future__ import annotations

import json
import logging
import select
import socket
import types
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, TypeVar, get_args, get_type_hints

logger = logging.getLogger(__name__)

How = Literal["start", "resume", "by"]

_OUT_OF_MEMORY = ("OutOfMemoryError", "MemoryError")
"""Names of torch's error and of Python's own."""

_LONGEST = 1 << 20
"""Bytes of a line, at most. Invented: far above any message; what is longer is none."""


@dataclass(frozen=True, slots=True)
class Begin:
    """What a process is to do.

    Attributes:
        how: ``start`` a fresh run, ``resume`` one from its newest checkpoint, or stand ``by`` and
            go on with one when told to.
        run_dir: folder of the run.
        config: the resolved config as TOML.
        lost: why processes before it could not train on, for the record; empty where none were.
    """

    how: How
    run_dir: str
    config: str
    lost: str = ""


@dataclass(frozen=True, slots=True)
class FilesPrepared:
    """The files of the task are there."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Rank 0 would go on with another number of processes.

    Attributes:
        width: the number; that of the training itself takes an earlier wish back.
        serial: number of the wish; answers to an earlier one mean nothing any more.
    """

    width: int
    serial: int


@dataclass(frozen=True, slots=True)
class StandbyReady:
    """A group that stands by has loaded all that it can.

    Attributes:
        serial: number of the wish that it answers; 0 in the group's own message.
    """

    serial: int


@dataclass(frozen=True, slots=True)
class Dropped:
    """The wanted number of processes could not be begun with.

    Attributes:
        width: the number.
        reason: why, in words.
    """

    width: int
    reason: str


@dataclass(frozen=True, slots=True)
class Left:
    """Rank 0 has saved and stopped for the group that stands by; its record is closed.

    Attributes:
        width: number of processes that training goes on with.
        step: the last step, after which it was saved.
        ended_s: when that step ended, on the machine's steady clock, s.
        usual_step_s: median time of the newest steps, s; None where none was timed.
    """

    width: int
    step: int
    ended_s: float
    usual_step_s: float | None


@dataclass(frozen=True, slots=True)
class Stayed:
    """Rank 0 could not leave for the group that stands by.

    Attributes:
        width: number of processes of that group.
    """

    width: int


@dataclass(frozen=True, slots=True)
class Go:
    """A group goes on with a run that another one has left.

    Attributes:
        left: what that one told.
        dropped: why it is not the number of processes that was wanted; None where it is.
    """

    left: Left
    dropped: Dropped | None = None


@dataclass(frozen=True, slots=True)
class Begun:
    """A group has made its first step.

    Attributes:
        step: its number.
    """

    step: int


@dataclass(frozen=True, slots=True)
class Ended:
    """A process ends as it should.

    Attributes:
        how: the run is ``complete``, it was ``stopped`` after a step and saved, or the keyboard
            ``broke`` it off.
    """

    how: Literal["complete", "stopped", "broken"]


@dataclass(frozen=True, slots=True)
class Failed:
    """A process ends with an error.

    Attributes:
        kind: name of its class.
        text: what it says, one line.
        trace: where it came from, for an error that nobody raised on purpose; else empty.
    """

    kind: str
    text: str
    trace: str = ""

    @property
    def is_out_of_memory(self) -> bool:
        """Whether the memory of a GPU or of the machine did not suffice."""
        return self.kind in _OUT_OF_MEMORY or "out of memory" in self.text


Message = (
    Begin
    | FilesPrepared
    | Wanted
    | StandbyReady
    | Dropped
    | Stayed
    | Left
    | Go
    | Begun
    | Ended
    | Failed
)
_KINDS: dict[str, type[Any]] = {kind.__name__: kind for kind in get_args(Message)}
_M = TypeVar("_M")


def line_of(message: Message) -> bytes:
    """A message as a line.

    Args:
        message: it.
    """
    return json.dumps({"message": type(message).__name__, **asdict(message)}).encode() + b"\n"


def message_of(line: bytes) -> Message | None:
    """The message of a line; None where it is none.

    Args:
        line: with or without its end.
    """
    try:
        data = json.loads(line)
        found: Message = _read(_KINDS[data.pop("message")], data)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        logger.warning("a line of a training process is no message (%s): %.80r", error, line)
        return None
    return found


def _read(kind: type[_M], data: Any) -> _M:
    """Read a dataclass; raises one of the errors that `message_of` names for anything else."""
    hints = get_type_hints(kind)
    names = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    if not isinstance(data, dict) or set(data) - set(names):
        raise TypeError(f"{kind.__name__} holds {names}")
    return kind(**{name: _value(hints[name], value) for name, value in data.items()})


def _value(hint: Any, value: Any) -> Any:
    """A value as its field has it."""
    if isinstance(hint, types.UnionType):
        inner, none = get_args(hint)
        if none is not types.NoneType:
            raise TypeError(f"{hint} is no optional type")
        return None if value is None else _value(inner, value)
    choices = get_args(hint)
    if choices:
        if value not in choices:
            raise ValueError(f"{value!r} is none of {choices}")
        return value
    if hint in _KINDS.values():
        return _read(hint, value)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, hint) or (hint is int and isinstance(value, bool)):
        raise TypeError(f"{value!r} is no {hint.__name__}")
    return value


class Channel:
    """One end of a connection; nothing that the other end sends or omits raises an error here.

    Args:
        connection: a connected stream socket.

    Attributes:
        is_open: False once the other end has closed it.
    """

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        connection.set_inheritable(False)  # a child of this process must not hold it open
        self._connection, self._held = connection, b""
        self._early: list[Message] = []
        self.is_open = True

    def fileno(self) -> int:
        """File descriptor to wait on; -1 when closed."""
        return self._connection.fileno()

    def send(self, message: Message) -> bool:
        """Send a message.

        Args:
            message: it.

        Returns:
            Whether it was sent; not when the other end is gone.
        """
        try:
            self._connection.setblocking(True)
            self._connection.sendall(line_of(message))
        except OSError:
            return False
        finally:
            if self.fileno() >= 0:
                self._connection.setblocking(False)
        return True

    def receive(self) -> list[Message]:
        """What has come in, in order, without waiting."""
        while self.is_open:
            try:
                data = self._connection.recv(65536)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            self.is_open = bool(data)
            self._held += data
        *lines, self._held = self._held.split(b"\n")
        if len(self._held) > _LONGEST:
            self._held = b""
        told = (message_of(line) for line in lines)
        found = [*self._early, *(message for message in told if message is not None)]
        self._early = []
        return found

    def wait(self) -> Message | None:
        """Wait for the next message; None when the other end closes the connection."""
        while not (found := self.receive()):
            if not self.is_open:
                return None
            wait_for([self], None)
        self._early = found[1:]
        return found[0]

    def close(self) -> None:
        """Close this end; safe to call twice."""
        self.is_open = False
        self._connection.close()


def wait_for(channels: Sequence[Channel], timeout_s: float | None) -> None:
    """Wait until something comes in, or a connection is closed.

    Args:
        channels: those that are closed already count for nothing.
        timeout_s: how long at most, s; None waits without a limit.
    """
    poller = select.poll()
    for channel in channels:
        if channel.is_open:
            poller.register(channel.fileno(), select.POLLIN)
    poller.poll(None if timeout_s is None else 1000.0 * timeout_s)
