"""Virtual handles of cards in ROLL's ``device_mapping``: ``fpga:0``, ``fpga:0-3``.

ROLL evaluates a role's ``device_mapping`` as a list of GPU ranks. Handles of cards may stand beside
the ranks, behind a comma, or alone:

    reference:
      device_mapping: "list(range(0, 8)), fpga:0"     # eight GPUs for the exact path, and a card

ROLL is given the ranks alone. A role without ranks becomes a CPU role.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ecorl.errors import ConfigError

_HANDLE = re.compile(r"(?:^|(?<=[\[,]))\s*fpga:([0-9]{1,4})(?:-([0-9]{1,4}))?\s*(?=[\],]|$)")
"""A handle, alone between commas or brackets."""
_ALLOWED = "GPU ranks as ROLL takes them, and cards behind a comma as in 'fpga:0' or 'fpga:0-3'"


@dataclass(frozen=True, slots=True)
class Devices:
    """What a ``device_mapping`` names.

    Attributes:
        ranks: the expression that ROLL evaluates; None without GPUs.
        cards: numbers of the cluster's cards, each once.
    """

    ranks: str | None
    cards: tuple[int, ...]


def parse(mapping: str, key: str) -> Devices:
    """Read a ``device_mapping``.

    Args:
        mapping: as the config has it.
        key: its dotted key, for errors.

    Raises:
        ConfigError: for a handle that is none.
    """
    cards: list[int] = []
    for first, last in _HANDLE.findall(mapping):
        start, end = int(first), int(last or first)
        if end < start:
            raise ConfigError(key, mapping, _ALLOWED)
        cards += range(start, end + 1)
    rest = _HANDLE.sub("", mapping)
    if "fpga" in rest or len(set(cards)) < len(cards):
        raise ConfigError(key, mapping, _ALLOWED)
    if cards:
        # What stood between the handles and the ranks.
        rest = re.sub(r"(\s*,\s*)+$|^(\s*,\s*)+", "", re.sub(r",(\s*,)+", ",", rest)).strip()
        if not rest.strip("[], "):
            rest = ""
    return Devices(rest or None, tuple(cards))
