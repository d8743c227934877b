"""The command line: ``ecorl run``, ``report``, ``policy``, ``fpga``, ``plan``, ``doctor``.

This module imports next to nothing: the commands and their libraries come in under the handler of
`main`, so that Ctrl-C ends with one line from the first moment.
"""

from __future__ import annotations

import sys

STOPPED = 130
"""Exit code of a run that a signal stopped; it can be resumed."""

STOPPED_TEXT = "stopped from the keyboard"


def main() -> None:
    """Entry point of the ``ecorl`` command."""
    try:
        from ecorl.cli import commands

        commands.main()
    except KeyboardInterrupt:
        sys.stderr.write(f"ecorl: {STOPPED_TEXT}\n")
        sys.exit(STOPPED)
