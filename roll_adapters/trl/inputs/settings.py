"""Checks the files that a config names beside its models and prompts, by those who will read them.

What the run would not read is not looked at.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ecorl import config as cfg
from ecorl.carbon.building import build_chains
from ecorl.carbon.pue import read_pue
from ecorl.controllers.planning.tables import read_table
from ecorl.controllers.rules.prices import read_prices
from ecorl.devices import load_profile, profile_names
from ecorl.engines.fpga.bitstream.manifest import missing_part
from ecorl.engines.registry import find_plugin
from ecorl.errors import ConfigError, DataError
from ecorl.records import DeviceKind
from ecorl.runtime.equipment.accelerator import accelerator_profile
from ecorl.runtime.equipment.role_places import named_profile
from ecorl.telemetry.sources.replay import read_tracks
from roll_adapters.trl.inputs.finding import Finding


def check_settings(config: cfg.Config) -> Iterator[Finding]:
    """Check the files and names of all tables but ``task``; what is good is told one by one.

    Args:
        config: the run's.

    Raises:
        ConfigError: naming the key, the value and what is allowed.
        MissingToolError: when a package of a carbon feed is missing.
    """
    yield from _devices(config)
    yield from _engine(config.engine.offload)
    yield from _policy(config.placement.policy)
    if isinstance(config.telemetry.gpu, cfg.ReplaySourceConfig):
        path = config.telemetry.gpu.path
        yield _read("telemetry.gpu.path", path, read_tracks, "a CSV of power readings")
    yield from _carbon(config)


def _devices(config: cfg.Config) -> Iterator[Finding]:
    key, name = "devices.gpu", config.devices.gpu
    if name != "auto":
        # Which of the two kinds the trainer computes on is known once torch is there.
        is_known = name in profile_names() or Path(name).expanduser().is_file()
        is_cpu = is_known and load_profile(name).kind == DeviceKind.CPU
        named_profile(key, name, DeviceKind.CPU if is_cpu else DeviceKind.GPU)
    profile = accelerator_profile(config)
    yield Finding("devices.accelerator", config.devices.accelerator, profile.title)


def _engine(offload: cfg.OffloadEngine) -> Iterator[Finding]:
    if isinstance(offload, cfg.PluginEngineConfig):
        find_plugin(offload.name)
        yield Finding("engine.offload.name", offload.name, "installed")
    if isinstance(offload, cfg.FpgaEngineConfig) and offload.bitstream is not None:
        text = missing_part(offload.bitstream.expanduser()) or "ok"
        yield Finding("engine.offload.bitstream", str(offload.bitstream), text)


def _policy(policy: cfg.Policy) -> Iterator[Finding]:
    if not isinstance(policy, cfg.LearnedPolicyConfig) or policy.path is None:
        return
    if policy.name == "ecorl":  # another package's reads it in its own way
        from ecorl.scheduler.policy_file import PolicyFile

        PolicyFile(policy.path)
        yield Finding("placement.policy.path", str(policy.path), "ok")


def _carbon(config: cfg.Config) -> Iterator[Finding]:
    if config.carbon.feeds:
        build_chains(config, time.time())
        names = ", ".join(feed.name for feed in config.carbon.feeds)
        yield Finding("carbon.feeds", "", f"{names}: can be built (not asked yet)")
    if config.accounting.pue_csv is not None:
        yield _read(
            "accounting.pue_csv", config.accounting.pue_csv, read_pue, "a CSV of time and PUE"
        )
    control = config.carbon.control
    if control.controller is None:
        return
    if control.spot_prices is not None:
        path = control.spot_prices
        yield _read("carbon.control.spot_prices", path, read_prices, "a CSV of time and price")
    if control.table is not None and config.gears.allowed:
        read_table(control.table)
        yield Finding("carbon.control.table", str(control.table), "ok")


def _read(key: str, path: Path, reader: Callable[[Path], Any], what: str) -> Finding:
    """Read a file by the function by which the run will."""
    try:
        reader(path.expanduser())
    except DataError as error:
        raise ConfigError(key, str(path), f"{what} ({error})") from error
    return Finding(key, str(path), "ok")
