"""Which feeds of carbon intensities can be used here; looks at packages and keys, asks no feed."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass

from ecorl.carbon.building import build_chains
from ecorl.carbon.feeds import electricity_maps, watttime
from ecorl.config import Config
from ecorl.doctor.findings import Capability, FeedFindings
from ecorl.errors import ConfigError, MissingToolError

_FIRST_KEY = "carbon.feeds.0"


@dataclass(frozen=True, slots=True)
class _Needs:
    """What a type of feed takes: packages, and variables of the environment."""

    packages: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()


_NEEDS = {
    "constant": _Needs(),
    "synthetic": _Needs(),
    "replay": _Needs(),
    "uk": _Needs(("requests",)),
    "electricity_maps": _Needs(("requests",), (electricity_maps.KEY_VARIABLE,)),
    "watttime": _Needs(
        ("requests", "watttime"), (watttime.USER_VARIABLE, watttime.KEY_VARIABLE)
    ),
}  # fmt: skip
"""By the ``type`` of a feed in a config."""

_IN_CONFIG = {
    electricity_maps.KEY_VARIABLE: "key_file",
    watttime.USER_VARIABLE: "user",
    watttime.KEY_VARIABLE: "key_file",
}
"""Keys of a feed's config that do in the place of a variable."""


def examine_feeds(version: Callable[[str], str | None]) -> tuple[FeedFindings, ...]:
    """Look at what each type of feed takes.

    Args:
        version: gives the version of an installed package, or None.
    """
    found = []
    for kind, needs in _NEEDS.items():
        packages = {name: version(name) for name in needs.packages}
        keys = {name: bool(os.environ.get(name, "").strip()) for name in needs.variables}
        absent = [name for name, there in packages.items() if there is None]
        unset = [name for name, is_set in keys.items() if not is_set]
        possible = not absent and not unset
        why = _present(packages, keys) if possible else _missing(absent, unset)
        found.append(FeedFindings(kind, possible, why, packages, keys))
    return tuple(found)


def examine_configured(config: Config) -> tuple[Capability, ...]:
    """Try to build each feed of a config by itself; nothing is asked of it.

    Args:
        config: of a run.
    """
    found = []
    for number, feed in enumerate(config.carbon.feeds):
        name = f"carbon.feeds.{number}, {feed.name} ({feed.type})"
        carbon = config.carbon.model_copy(update={"feeds": (feed,)})
        problem = _problem(config.model_copy(update={"carbon": carbon}), number)
        found.append(Capability(name, problem is None, problem or "can be built"))
    return tuple(found)


def _problem(with_one_feed: Config, number: int) -> str | None:
    """Why the only feed of a config cannot be built, under its number in the whole one."""
    try:
        build_chains(with_one_feed, time.time())
    except ConfigError as error:
        key = error.key
        if key.startswith(_FIRST_KEY):
            key = f"carbon.feeds.{number}{key.removeprefix(_FIRST_KEY)}"
        return str(ConfigError(key, error.value, error.allowed))
    except MissingToolError as error:
        return str(error)
    return None


def _present(packages: dict[str, str | None], keys: dict[str, bool]) -> str:
    parts = [f"{name} {there}" for name, there in packages.items()]
    parts += [f"{name} is set" for name in keys]
    if not keys:
        parts.append("no key needed")
    return ", ".join(parts)


def _missing(absent: list[str], unset: list[str]) -> str:
    parts = []
    if absent:
        parts.append(f'without {", ".join(absent)}: pip install "ecorl[carbon]"')
    if unset:
        instead = " and ".join(_IN_CONFIG[name] for name in unset)
        is_not, serve = ("is not", "serves") if len(unset) == 1 else ("are not", "serve")
        parts.append(f"{' and '.join(unset)} {is_not} set ({instead} in the config {serve} too)")
    return "; ".join(parts)
