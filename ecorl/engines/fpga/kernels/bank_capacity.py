"""Room on a card: how much each memory bank holds, and what goes into it.

A buffer lies in one bank (`ecorl.engines.fpga.kernels.banks`), and XRT takes no other when that is
full.
"""

from __future__ import annotations

from collections.abc import Mapping

from ecorl.engines.fpga.card.memory import SLOTS, SLOTTED
from ecorl.engines.fpga.kernels.banks import WIRING, BankMap, card_memory
from ecorl.engines.fpga.kernels.buffers import PORTS

MIB = 1 << 20


def bank_of(buffer: str) -> str:
    """Name of the bank that holds a buffer."""
    kernel, argument = PORTS[buffer][0]
    return WIRING[kernel][argument].group


def capacities(memory: BankMap | None = None) -> dict[str, int]:
    """Bytes of each bank."""
    found = memory or card_memory()
    banks = {bank.group: bank for arguments in WIRING.values() for bank in arguments.values()}
    return {name: len(bank.channels) * found.channel_bytes for name, bank in banks.items()}


def by_bank(sizes: Mapping[str, int]) -> dict[str, int]:
    """Bytes that buffers of these sizes take in each bank, both slots where they have two."""
    taken: dict[str, int] = {}
    for buffer, n_bytes in sizes.items():
        times = SLOTS if buffer in SLOTTED else 1
        name = bank_of(buffer)
        taken[name] = taken.get(name, 0) + times * n_bytes
    return taken


def overfull(taken: Mapping[str, int], beside: Mapping[str, int]) -> str | None:
    """The first bank that does not hold both, in words; None when all do."""
    for name, has in capacities().items():
        needed = taken.get(name, 0) + beside.get(name, 0)
        if needed > has:
            return f"{needed / MIB:,.0f} MiB of the bank for {name}, which has {has / MIB:,.0f}"
    return None
