"""Resetting a card by XRT's command line tool; its libraries have no call for it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from ecorl.errors import DriverError, DriverTimeout, LibraryNotFound

TOOLS = ("xrt-smi", "xbutil")
"""The tool's names: the newer one first; the older went away with 2025.1."""

RESET_S = 120.0
"""Limit of a reset, s. Assumed: the tool waits for the card to come back, which takes some 10 s."""


def reset_card(address: str) -> None:
    """Reset a card. All processes that use it lose it, and come back by their own reset.

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
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=RESET_S,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise DriverTimeout(f"{tool.name} reset did not end in {RESET_S:.0f} s") from error
    except OSError as error:
        raise DriverError(f"{tool} cannot be run: {error}") from error
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise DriverError(
            f"{tool.name} reset of {address} failed: {said[-1] if said else 'no reason given'}"
        )


def _tool() -> Path:
    home = os.environ.get("XILINX_XRT")
    folders = os.environ.get("PATH", "")
    search = os.pathsep.join([str(Path(home) / "bin"), folders]) if home else folders
    for name in TOOLS:
        found = shutil.which(name, path=search)
        if found:
            return Path(found)
    raise LibraryNotFound(f"none of {', '.join(TOOLS)} is on this machine: no reset of a card")
