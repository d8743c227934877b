"""Messages between a benchmark and the process that runs its jobs, one line of JSON each."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Literal

JobKind = Literal["preload", "check", "task", "processors", "run", "supervised"]


@dataclass(frozen=True, slots=True)
class WorkerJob:
    """Something to do with a config.

    Attributes:
        kind: ``preload``: import what all others need, in the process itself, so that those that
            are forked from it need not. The others are done in a process of their own:
            ``check`` a config, make the files of its ``task``, tell on which ``processors``
            training computes and in which formats, ``run`` it, or train ``supervised``.
        adapter: name of the framework's adapter.
        config: the config as TOML; not used to preload.
        folder: of the run or of the files.
        log: file that takes all that is printed; empty: nothing is kept.
    """

    kind: JobKind
    adapter: str
    config: str = ""
    folder: str = ""
    log: str = ""


@dataclass(frozen=True, slots=True)
class JobAnswer:
    """What came of a job.

    Attributes:
        value: what it gave, plain data.
        error: the class of the error that ended it; empty where none did.
        text: what the error says, one line; of a process that died, how.
        is_users: whether the error is a mistake of the user's.
    """

    value: Any = None
    error: str = ""
    text: str = ""
    is_users: bool = False


STOP = "stop"
"""What a benchmark sends in place of a job: the job under way is to end in good order."""


def encoded(message: WorkerJob | JobAnswer | str) -> bytes:
    """Write a message as a line."""
    plain = message if isinstance(message, str) else asdict(message)
    return json.dumps(plain).encode() + b"\n"


def decoded_job(line: bytes) -> WorkerJob | str:
    """Read what a benchmark sent.

    Args:
        line: of JSON.
    """
    plain = json.loads(line)
    return plain if isinstance(plain, str) else WorkerJob(**plain)


def decoded_answer(line: bytes) -> JobAnswer:
    """Read what a job's process sent.

    Args:
        line: of JSON.
    """
    return JobAnswer(**json.loads(line))
