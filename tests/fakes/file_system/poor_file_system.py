"""Builds the library that makes a folder a poor file system; see poor_file_system.c."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_name("poor_file_system.c")


def build(folder: Path) -> Path:
    library = folder / "poor_file_system.so"
    flags = ["-O1", "-shared", "-fPIC", "-Wall", "-Werror"]
    command = ["cc", *flags, "-o", str(library), str(SOURCE), "-ldl"]
    subprocess.run(command, check=True, timeout=240)
    return library


def environment(library: Path, folder: Path, **refused: int) -> dict[str, str]:
    """Variables of a process for which a folder refuses what is named, with these errnos."""
    return {
        **os.environ,
        "LD_PRELOAD": str(library),
        "ECORL_FAKE_FS_FOLDER": str(folder),
        "ECORL_FAKE_FS": _words(refused),
    }


def later(switch: Path, **refused: int) -> dict[str, str]:
    """Further variables, of what is refused once a file is there."""
    return {"ECORL_FAKE_FS_SWITCH": str(switch), "ECORL_FAKE_FS_LATER": _words(refused)}


def _words(refused: dict[str, int]) -> str:
    return ",".join(f"{what}={number}" for what, number in refused.items())
