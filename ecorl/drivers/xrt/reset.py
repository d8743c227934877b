"""Resetting a card by XRT's command line tool; its libraries have no call for it."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

from ecorl.errors import DriverError, DriverTimeout, LibraryNotFound

TOOLS = ("xrt-smi", "xbutil")
"""The tool's names: the newer one first; the older went away with 2025.1."""

_SUCCESS = "Successfully reset"

RESET_S = 120.0
"""Limit of a reset, s. Assumed: the tool waits for the card to come back, which takes some 10 s."""


def reset_card(address: str) -> None:
    """Reset a card.

    The driver ends every process that has the card open, by SIGBUS: the sampler of its power and
    the engine of another stage, both of which are started anew. The caller must have closed it.

    Args:
        address: PCIe address of the card's user function, as XRT tells it.

    Raises:
        LibraryNotFound: XRT's tool is not on this machine.
        DriverTimeout: it did not end in time.
        DriverError: it failed, or the address is not known.
    """
    if not address:
        raise DriverError("the card has not told its PCIe address: it cannot be reset")
    tool = _tool()
    command = [str(tool), "reset", "--device", address, "--force"]
    try:
        code, said = _run(command)
    except subprocess.TimeoutExpired as error:
        raise DriverTimeout(f"{tool.name} reset did not end in {RESET_S:g} s") from error
    except OSError as error:
        raise DriverError(f"{tool} cannot be run: {error}") from error
    # The tool reports some failures by its words alone, and ends with 0.
    if code != 0 or _SUCCESS not in said:
        lines = said.strip().splitlines()
        raise DriverError(
            f"{tool.name} reset of {address} failed: {lines[-1] if lines else 'no reason given'}"
        )


def _run(command: Sequence[str]) -> tuple[int, str]:
    """Exit status, and what it said; the tool is a script, so its children end with it."""
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        errors="replace",
        start_new_session=True,
    ) as process:
        try:
            out, err = process.communicate(timeout=RESET_S)
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise
    return process.returncode, f"{out}\n{err}"


def _tool() -> Path:
    home = os.environ.get("XILINX_XRT")
    folders = os.environ.get("PATH", "")
    search = os.pathsep.join([str(Path(home) / "bin"), folders]) if home else folders
    for name in TOOLS:
        found = shutil.which(name, path=search)
        if found:
            return Path(found)
    raise LibraryNotFound(f"none of {', '.join(TOOLS)} is on this machine: no reset of a card")
