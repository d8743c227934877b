"""The arms of the benchmark: placements, each as it is and with what else changes the energy.

An arm that does not act on this machine, or that ecorl cannot run yet, keeps its place in all
tables, without figures and with the reason.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ecorl.config import Config, validate_config
from ecorl.config.trainer import GearsConfig
from ecorl.control import Gear
from ecorl.errors import ConfigError

BASELINE = "gpu_only"
"""The placement that all others are held against."""

PLACEMENTS: Mapping[str, Mapping[str, object]] = {
    BASELINE: {"type": "static"},
    "fpga_sequential": {"type": "static", "reward": "fpga", "reference": "fpga"},
    "concurrent": {"type": "static", "reward": "concurrent", "reference": "concurrent"},
    "lookahead": {"type": "lookahead"},
    "learned": {"type": "learned"},
}
"""The table ``[placement.policy]`` of each placement."""

_CHOOSING = ("lookahead", "learned")
"""Placements that choose for each batch; the others are the same throughout."""

GEARS, ADAPTIVE, CLOCKS = "gears", "adaptive_batch", "clocks"
"""What an arm may do beside its placement."""

SUPERVISED = "supervised"
"""Name of supervised training of the same policy, which is no placement."""

NOT_YET = "not there yet"


@dataclass(frozen=True, slots=True)
class BenchArm:
    """One way to train.

    Attributes:
        name: e.g. ``gpu_only`` or ``learned+gears``.
        placement: a key of `PLACEMENTS`.
        extra: what it does beside, or empty.
        config: of its runs, but for seed and folder; None where it is not run.
        why: the reason why it is not run; empty where it is.
    """

    name: str
    placement: str
    extra: str = ""
    config: Config | None = None
    why: str = ""


@dataclass(frozen=True, slots=True)
class GearChoices:
    """Numeric formats in which the training stage can compute here, other than the trainer's own.

    Attributes:
        gears: the first is the one to train in, the others those to fall back on; empty: none.
        why: why there are none.
    """

    gears: tuple[Gear, ...] = ()
    why: str = ""


def arms_of(
    base: Config, placements: Sequence[str], gears: GearChoices | None, extras: Collection[str]
) -> list[BenchArm]:
    """List the arms.

    Args:
        base: the config that all of them share.
        placements: keys of `PLACEMENTS`.
        gears: formats that act here; None: not looked for yet, so that their arms have no config.
        extras: of `GEARS`, `ADAPTIVE` and `CLOCKS`, those that are asked for.

    Raises:
        ConfigError: for a placement that there is not.
    """
    if not placements:
        raise ConfigError("--placements", "", f"any of {', '.join(PLACEMENTS)}")
    for name in placements:
        if name not in PLACEMENTS:
            raise ConfigError("--placements", name, f"any of {', '.join(PLACEMENTS)}")
    arms = [BenchArm(name, name, config=_placed(base, name)) for name in placements]
    if GEARS in extras:
        arms += [_geared(base, name, gears) for name in placements]
    first = BASELINE if BASELINE in placements else placements[0]
    if ADAPTIVE in extras:
        arms.append(_adaptive(base, first))
    if CLOCKS in extras:
        why = f"clocks of the stages: {NOT_YET}"
        arms.append(BenchArm(f"{first}+{CLOCKS}", first, CLOCKS, why=why))
    return arms


def _changed(base: Config, **tables: Mapping[str, Any]) -> Config:
    """Copy a config with other values of some keys, by table."""
    data = base.model_dump()
    for table, values in tables.items():
        data[table] |= values
    return validate_config(_without_none(data))


def _without_none(value: Any) -> Any:
    # A table of another type knows other keys, and none of them is None in TOML.
    if isinstance(value, Mapping):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    return value


def _placed(base: Config, placement: str) -> Config:
    """The base without gears, under a placement.

    A fixed placement is that from the first batch to the last: neither a profiling phase nor the
    energy margin changes it. One that chooses keeps what the config says of both, and the policy
    of the config where that is of its type.
    """
    policy = dict(PLACEMENTS[placement])
    changes: dict[str, Any] = {}
    if placement not in _CHOOSING:
        changes = {"policy": policy, "profile_both_paths": False, "energy_margin": None}
    elif base.placement.policy.type != policy["type"]:
        changes = {"policy": policy}
    plain = base.model_copy(update={"gears": GearsConfig()})
    return _changed(plain, placement=changes)


def _geared(base: Config, placement: str, gears: GearChoices | None) -> BenchArm:
    """Training in other numeric formats: those of the config, else those that act here."""
    name, plain = f"{placement}+{GEARS}", _placed(base, placement)
    if base.gears.is_on:
        return BenchArm(name, placement, GEARS, plain.model_copy(update={"gears": base.gears}))
    if gears is None or not gears.gears:
        return BenchArm(name, placement, GEARS, why="" if gears is None else gears.why)
    allowed = [str(gear) for gear in gears.gears]
    return BenchArm(name, placement, GEARS, _changed(plain, gears={"allowed": allowed}))


def _adaptive(base: Config, placement: str) -> BenchArm:
    """Micro-batches whose rows follow their lengths, where the adapter can form them."""
    name = f"{placement}+{ADAPTIVE}"
    try:
        changed = _changed(_placed(base, placement), trainer={"adaptive_micro_batch": True})
    except ConfigError as error:
        return BenchArm(name, placement, ADAPTIVE, why=str(error))
    return BenchArm(name, placement, ADAPTIVE, changed)
