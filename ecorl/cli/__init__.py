"""The command line: ``ecorl run``, ``report``, ``policy``, ``fpga``, ``carbon``, and others.

This module imports no library: the commands and their libraries are imported under the handler of
`main`, so that Ctrl-C ends with one line from the first moment.
"""

from __future__ import annotations

import sys

from ecorl.cli.exits import STOPPED, end_stopped, stopped_text
from ecorl.interrupt import remember_interrupts

__all__ = ["STOPPED", "main"]


def main() -> None:
    """Run the ``ecorl`` command and exit."""
    remember_interrupts()
    try:
        from ecorl.cli import commands

        commands.main()
    except KeyboardInterrupt:
        sys.stderr.write(f"ecorl: {stopped_text(sys.argv[1:])}\n")
        end_stopped()
