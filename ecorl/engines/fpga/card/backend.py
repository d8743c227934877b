"""The backend that runs the kernels: the C-simulation, XRT in emulation, or XRT on cards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from ecorl.engines.fpga.bitstream.xclbin import CSIM_SUFFIX
from ecorl.errors import ConfigError

Host = Literal["auto", "csim", "xrt"]
"""``csim`` calls the C-simulation directly; ``xrt`` runs the kernels through XRT, on cards where a
bitstream is named, else on XRT's noop driver; ``auto`` means XRT where it is installed and can run
the model, else the C-simulation."""

KEY = "engine.offload"


def is_emulated(bitstream: Path | None) -> bool:
    """Whether this machine computes what a card would.

    Args:
        bitstream: xclbin or C-simulation container; None: the C-simulation is called directly.
    """
    return bitstream is None or bitstream.name.endswith(CSIM_SUFFIX)


@dataclass(frozen=True, slots=True)
class KernelBackend:
    """The backend that runs the kernels; results do not depend on it.

    Attributes:
        host: see `Host`.
        bitstream: xclbin for cards, or a C-simulation container; None: the C-simulation.
        cards: XRT's numbers of the cards; a batch is spread over them.
        may_reset: whether a card may be reset. The driver then ends every process that has the card
            open, so it is allowed only where the engine runs in another process than the training.

    Raises:
        ConfigError: for an unknown host, no card or one that is named twice, or a bitstream for the
            C-simulation called directly.
    """

    host: Host = "csim"
    bitstream: Path | None = None
    cards: tuple[int, ...] = (0,)
    may_reset: bool = False

    @classmethod
    def of(
        cls, host: Host | None, bitstream: Path | None, cards: Sequence[int], *, may_reset: bool
    ) -> KernelBackend:
        """Make it from a configuration.

        Args:
            host: see `Host`; None: XRT where a bitstream is named, else the C-simulation.
            bitstream: xclbin, or None.
            cards: XRT's numbers of the cards.
            may_reset: whether a card may be reset.

        Raises:
            ConfigError: as the class.
        """
        chosen: Host = host or ("csim" if bitstream is None else "xrt")
        return cls(chosen, bitstream, tuple(cards), may_reset)

    def __post_init__(self) -> None:
        if self.host not in get_args(Host):
            raise ConfigError(f"{KEY}.host", self.host, f"one of {', '.join(get_args(Host))}")
        if not self.cards or len(set(self.cards)) < len(self.cards) or min(self.cards) < 0:
            raise ConfigError(f"{KEY}.cards", list(self.cards), "numbers of cards, each once")
        if self.bitstream is not None and self.host == "csim":
            raise ConfigError(f"{KEY}.host", self.host, "auto or xrt, since a bitstream is named")
