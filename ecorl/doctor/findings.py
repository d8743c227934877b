"""What the doctor finds: host, GPUs, cards, tools, packages, and what they make possible."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class HostFindings:
    """The host: CPU, cores that this process may use, memory (bytes), vector extensions."""

    system: str
    python: str
    ecorl: str
    cpu: str
    n_cores: int
    memory_bytes: int
    vector: dict[str, bool]


@dataclass(frozen=True, slots=True)
class GpuFindings:
    """An NVIDIA GPU.

    Attributes:
        instrument: how its power is read, or None.
        has_counter: whether it counts energy.
        problem: why its power cannot be read, or None.
        limit_w: power limit that is enforced, W, or None.
    """

    index: int
    name: str
    uuid: str
    n_mig_instances: int
    instrument: str | None
    has_counter: bool
    limit_w: float | None
    problem: str | None


@dataclass(frozen=True, slots=True)
class CardFindings:
    """An Alveo card: shell name, PCIe address, and whether its power can be read or why not."""

    index: int
    name: str
    bdf: str
    has_power: bool
    problem: str | None


@dataclass(frozen=True, slots=True)
class Capability:
    """A use of ecorl, whether it is possible on this machine, and the reason."""

    name: str
    possible: bool
    why: str


@dataclass(frozen=True, slots=True)
class FeedFindings:
    """A type of feed of carbon intensities.

    Attributes:
        type: as a config names it.
        possible: whether it can be used as things are here.
        why: the reason.
        packages: version of each Python package that it takes, or None.
        keys: variables of the environment that hold its key, and whether each is set; what they
            hold is not looked at.
    """

    type: str
    possible: bool
    why: str
    packages: dict[str, str | None]
    keys: dict[str, bool]


@dataclass(frozen=True, slots=True)
class Findings:
    """The findings of `examine`.

    Attributes:
        gpus_reason: why there is no GPU, or None.
        cards_reason: why there is no card, or None.
        rapl: names of readable CPU energy counters.
        rapl_reason: why there is none, or None.
        tools: path of each tool, or None.
        packages: version of each Python package, or None.
        possible: the capabilities.
        feeds: the types of feeds of carbon intensities.
        configured_feeds: whether each feed of the config can be built; None without a config.
    """

    host: HostFindings
    gpus: tuple[GpuFindings, ...]
    gpus_reason: str | None
    cards: tuple[CardFindings, ...]
    cards_reason: str | None
    rapl: tuple[str, ...]
    rapl_reason: str | None
    tools: dict[str, str | None]
    packages: dict[str, str | None]
    possible: tuple[Capability, ...]
    feeds: tuple[FeedFindings, ...]
    configured_feeds: tuple[Capability, ...] | None


def to_json(findings: Findings) -> str:
    """Write the findings as indented JSON text."""
    return json.dumps(asdict(findings), indent=2)
