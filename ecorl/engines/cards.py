"""Facts about FPGA cards that a run needs and that do not depend on which engine computes on them.

The run asks here, so that it need not know the engines' internals: bitstreams and memory banks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from ecorl import config as cfg
from ecorl.engines.fpga.bitstream.check import missing_part
from ecorl.engines.fpga.card.backend import KEY, is_emulated
from ecorl.engines.fpga.kernels.banks import overfull_bank
from ecorl.engines.lanes.threaded import AsyncEngine


def real_cards(config: cfg.EngineConfig) -> tuple[int, ...]:
    """Numbers of the real cards that the configured engine computes on.

    Returns:
        XRT's numbers; empty for an engine without cards, and for one whose kernels are emulated.
    """
    offload = config.offload
    if not isinstance(offload, cfg.FpgaEngineConfig) or is_emulated(offload.bitstream):
        return ()
    return tuple(offload.cards)


def missing_bitstream(config: cfg.EngineConfig) -> str | None:
    """Tell that the configured bitstream is not on this machine, in words.

    Args:
        config: the ``engine`` table.

    Returns:
        Key, path as it is configured, and what is not there; None where nothing is missing.
    """
    named = config.offload.bitstream if isinstance(config.offload, cfg.FpgaEngineConfig) else None
    if named is None:
        return None
    try:
        missing = missing_part(Path(named).expanduser())
    except RuntimeError as error:  # a user's folder, of a user that does not exist
        missing = str(error)
    return None if missing is None else f"{KEY}.bitstream = '{named}': {missing}"


def memory_conflict(engines: Iterable[AsyncEngine]) -> str | None:
    """Check that the weights of engines fit the memory banks of the card that they share.

    Returns:
        What they need of the first bank that does not hold them, in words; None when all banks do.
    """
    banks = Counter[str]()
    for engine in engines:
        banks.update(engine.card_banks or {})
    return overfull_bank(banks, {})
