"""What the command line says of a run that was stopped: which command goes on with it."""

from __future__ import annotations

import shlex
from pathlib import Path

from ecorl.cli.exits import NOTHING_RECORDED


def what_next(run_dir: Path, *, is_own: bool = True) -> str:
    """Say what to do after a run was stopped, as the end of a line.

    Args:
        run_dir: folder of the run.
        is_own: whether a record in there is that of the run that was stopped.
    """
    from ecorl.ledger import LEDGER_FILE
    from ecorl.runtime.runs.record import is_complete, resume_command

    if not is_own or not (run_dir / LEDGER_FILE).is_file():
        return NOTHING_RECORDED
    if is_complete(run_dir):
        return f"the run is complete: {shlex.join(['ecorl', 'report', str(run_dir)])} shows it"
    return f"go on with: {resume_command(run_dir)}"
