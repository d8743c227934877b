"""One training process: ``python -m roll_adapters.trl.launch.worker FD PARENT_PID``.

The supervisor starts it in the environment of torchrun, with a connection to itself.
"""

from __future__ import annotations

import os
import socket
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console

from ecorl.child_process import die_with_parent, hear_keyboard
from ecorl.cli.exits import FAULT, STOPPED, USER_ERROR
from ecorl.cli.output import LastingOutput, log_plainly, make_console
from ecorl.config import parse_config
from ecorl.engines.lanes.threaded import fault_of
from ecorl.errors import EcorlError, UserError
from roll_adapters.trl.launch.crew import AttemptOutcome, Crew
from roll_adapters.trl.launch.messages import Begin, Channel, Ended, Failed

Hook = Callable[[type[BaseException], BaseException, TracebackType | None], Any]


def main() -> None:
    """Train as the supervisor says, and exit with the code of `ecorl run`."""
    fd, parent_pid = (int(word) for word in sys.argv[1:3])
    die_with_parent(parent_pid)
    channel = Channel(socket.socket(fileno=fd))
    sys.excepthook = _telling(channel)
    log_plainly()
    try:
        hear_keyboard()
        begin = channel.wait()
        if not isinstance(begin, Begin):
            sys.exit("the supervisor says nothing of what to do")
        sys.exit(_work(begin, channel))
    except EcorlError as error:
        channel.send(Failed(fault_of(error).kind, str(error)))
        sys.exit(USER_ERROR if isinstance(error, UserError) else FAULT)
    except KeyboardInterrupt:
        channel.send(Ended("broken"))
        sys.exit(STOPPED)


def _work(begin: Begin, channel: Channel) -> int:
    """Train, and tell how it ended; the exit code.

    Only rank 0's code tells how the run ended: for the supervisor any other rank that ends with
    another code than 0 has failed, and rank 0 may still be closing the record then.
    """
    # Imported here: the parent's end has to be noticed from the first moment.
    from roll_adapters.trl import attempt

    rank, width = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    config = parse_config(begin.config, f"the config of {begin.run_dir}")
    crew = Crew(channel, rank, width, config.trainer.widths, begin.lost)
    console = Console(quiet=True) if rank else make_console(file=LastingOutput(sys.stdout))
    works = {"start": attempt.start, "resume": attempt.resume, "by": attempt.stand_by}
    outcome = works[begin.how](config, Path(begin.run_dir), console, crew)
    if crew.left is not None:
        crew.tell(crew.left)
    elif outcome is not AttemptOutcome.LEFT:
        # By each rank: PyTorch's threads may abort a process that exits.
        channel.send(Ended("complete" if outcome is AttemptOutcome.COMPLETE else "stopped"))
    _part()
    return STOPPED if outcome is AttemptOutcome.STOPPED and not rank else 0


def _part() -> None:
    """Leave the other processes, so that none of them waits for this one."""
    import torch.distributed as dist

    if dist.is_initialized():
        dist.destroy_process_group()


def _telling(channel: Channel) -> Hook:
    """Make a hook that tells the supervisor of an error that nobody raised on purpose."""

    def tell(kind: type[BaseException], error: BaseException, where: TracebackType | None) -> None:
        text = next(iter(str(error).strip().splitlines()), "")
        trace = "".join(traceback.format_exception(kind, error, where))
        channel.send(Failed(kind.__name__, text, trace))

    return tell


if __name__ == "__main__":
    main()
