"""Recorded years of grids, which the carbon benchmarks share; none of them lies in the project."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from pathlib import Path

from ecorl.carbon.traces.reading import read_trace
from ecorl.carbon.traces.trace import GridTrace
from ecorl.errors import ConfigError

VARIABLE = "ECORL_TRACES"
"""Names the folder in the environment, where ``--traces`` does not."""

KNOWN_GRIDS = ("BPAT", "CISO", "NYIS", "PJM")
"""Grids whose figures are reported as missing where no folder is named: those of the EIA-930
recordings of 2022 that this project's figures are made with."""

WHY_MISSING = f"no recorded grid data: --traces and {VARIABLE} name no folder"


def add_traces_option(parser: argparse.ArgumentParser) -> None:
    """Add the option ``--traces``."""
    parser.add_argument(
        "--traces",
        type=Path,
        metavar="FOLDER",
        help=f"recordings of grids, <grid>_*.csv each; else {VARIABLE} names the folder",
    )


def recorded_grids(options: argparse.Namespace) -> Mapping[str, GridTrace]:
    """Read all recordings of the folder that the options or the environment name.

    Args:
        options: those of a benchmark, with ``traces``.

    Returns:
        Recordings by grid, in the order of names; none where no folder is named.

    Raises:
        ConfigError: when the named folder is not there, holds no ``.csv``, or two of one grid.
        DataError: when a recording cannot be read.
    """
    folder = named_folder(options)
    if folder is None:
        return {}
    key = "--traces" if options.traces is not None else VARIABLE
    paths = sorted(folder.glob("*.csv"))
    if not paths:
        raise ConfigError(key, str(folder), "a folder with recordings of grids (.csv)")
    found: dict[str, GridTrace] = {}
    for path in paths:
        trace = read_trace(path)
        if trace.name in found:
            allowed = f"a folder with one recording a grid, and {trace.name} has two"
            raise ConfigError(key, str(folder), allowed)
        found[trace.name] = trace
    return found


def named_folder(options: argparse.Namespace) -> Path | None:
    """The folder with recordings, or None where neither option nor environment names one.

    Args:
        options: those of a benchmark, with ``traces``.
    """
    if options.traces is not None:
        return Path(options.traces)
    named = os.environ.get(VARIABLE)
    return Path(named) if named else None
