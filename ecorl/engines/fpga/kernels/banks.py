"""The card's memory banks: which kernel argument is wired to which, and how much each holds.

A host allocates every buffer in one *bank*, and a kernel's argument is wired to one bank. A buffer
that two kernels use (gemm_int8's ``c`` is vector_ops' ``acc``) must therefore lie in a bank that
both arguments name. The map follows from that: the buffers of a forward are put into groups, each
group is a range of neighbouring channels, and every argument that is ever passed a buffer of the
group is wired to exactly that range. Ranges do not overlap. XRT shows a range as one bank that is
as large as its channels together, so a buffer may be larger than a channel, and any argument of the
group may be passed it.

Within that, what the cycle model assumes (`ecorl.engines.fpga.cycles.hbm`) is kept where it can be:
the two halves of the weights, the products and the codes, which gemm_int8 moves at the same time,
lie on separate channels, and so does vector_ops' residual stream. It cannot be kept where two
arguments of a kernel see one buffer or buffers made by one argument: vector_ops' ``x`` and ``y``
(one residual stream) and kv_cache_router's ``keys`` and ``values`` (both are codes of vector_ops)
share a channel. The lists of a batch, which are short, share one as well, and it holds the pages of
the cache too, which vector_ops does not read. The tables of tokens and positions lie behind the
weights of rows 0 to 7: no kernel reads both.

Products have four channels. That is capacity and no speed: gemm_int8 writes them through one port
and vector_ops reads them through one, and a port ends in one port of the memory's switch, which
passes the rate of one channel however many channels lie behind it. The space lets a group of rows
pass each product in one start, and attention's results no longer limit the longest row: for a model
of 7 B parameters that was 24,000 tokens, and is the 32,000 of the residual stream. A second port of
half words, as the weights have, would find channels of its own there. By the cycle model it would
buy little: results leave at a word in 1.18 cycles and not in one, but behind the array, which is
slower from k = 400 on; reading as fast would save vector_ops at most 0.03 s of a forward of 512
tokens of that model, and 0.23 s of 64 rows of 512 tokens of one of 135 M parameters.

The sizes follow `ecorl.engines.fpga.cycles.hbm_layout`: weights are nearly all of a model, so a
decoder of 13 B parameters fits, if its vocabulary has at most 61,000 entries, or 38,000 with a
language model's head; one of 8 B has space for the largest vocabulary that the kernels take. That
layout is for any card and finer than this map; the wiring here is fixed when the bitstream is
linked, and a host must keep a batch within the headroom of its banks: products in particular come
in blocks of token rows, as the C-simulation's card path makes them. XRT never allocates a buffer in
another bank when its own is full.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ecorl.devices import DeviceProfile, load_profile
from ecorl.engines.fpga.kernels.interfaces import KernelInterface
from ecorl.errors import BuildError, ConfigError

PORTS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "low": (("gemm_int8", "w_low"),),
    "high": (("gemm_int8", "w_high"),),
    "sides": (("vector_ops", "side"), ("score_aggregator", "side")),
    "tables": (("vector_ops", "table"),),
    "rows": (
        ("vector_ops", "rows"),
        ("vector_ops", "rows_out"),
        ("score_aggregator", "rows"),
        ("score_aggregator", "rows_out"),
    ),
    "tasks": (("vector_ops", "task"), ("score_aggregator", "task")),
    "x": (("vector_ops", "x"), ("vector_ops", "y")),
    "values": (("vector_ops", "y"),),
    "codes": (("vector_ops", "codes"), ("gemm_int8", "a")),
    "acc": (("gemm_int8", "c"), ("vector_ops", "acc"), ("score_aggregator", "acc")),
    "heads": (
        ("vector_ops", "codes"),
        ("kv_cache_router", "keys"),
        ("kv_cache_router", "values"),
        ("mha_int8", "queries"),
    ),
    "scales": (
        ("vector_ops", "scales"),
        ("kv_cache_router", "key_rows"),
        ("kv_cache_router", "value_rows"),
        ("mha_int8", "rows"),
    ),
    "jobs": (("kv_cache_router", "jobs"),),
    "pages": (("kv_cache_router", "sources"), ("kv_cache_router", "pages"), ("mha_int8", "pages")),
    "table": (("kv_cache_router", "table"), ("mha_int8", "table")),
    "blocks": (("mha_int8", "blocks"),),
    "context": (("mha_int8", "context"), ("vector_ops", "acc")),
    "results": (("mha_int8", "results"), ("vector_ops", "side")),
    "outputs": (("score_aggregator", "outputs"), ("score_aggregator", "outputs_out")),
    "partials": (("score_aggregator", "partials"), ("score_aggregator", "partials_out")),
}
"""By buffer of a forward: pairs of kernel and argument. All of them are wired to the same bank, or
there would be no place for the buffer."""

INPUTS = ("rows", "jobs", "blocks", "tasks", "outputs")
"""Buffers that the host writes for each group of rows; only kernels write the others."""

SLOTS = 2
SLOTTED = frozenset((*INPUTS, "values"))
"""Buffers with `SLOTS` copies: while the card computes one group, the host writes the next group's
inputs and reads the last one's results in the other copy."""


CARD = "u55c"
"""Profile of the card that the map is for."""

PLATFORM = "xilinx_u55c_gen3x16_xdma_3_202210_1"
"""AMD's development platform for it."""

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Bank:
    """A range of neighbouring channels that holds one group of buffers.

    Attributes:
        group: what lies there.
        first: first channel.
        last: last channel, included.
    """

    group: str
    first: int
    last: int

    @property
    def channels(self) -> range:
        """Its channels."""
        return range(self.first, self.last + 1)

    @property
    def notation(self) -> str:
        """As Vitis writes it after ``sp=``: ``HBM[0:12]``, or ``HBM[29]`` for one channel."""
        return f"HBM[{_span(self.first, self.last)}]"

    @property
    def tag(self) -> str:
        """Name of the bank in XRT's memory topology: that of the channel, or of the group."""
        return self.notation if self.first == self.last else f"MBG[{_span(self.first, self.last)}]"


WEIGHTS_LOW = Bank("weights, rows 0 to 7; embedding and angles", 0, 12)
WEIGHTS_HIGH = Bank("weights, rows 8 to 15", 13, 24)
PRODUCTS = Bank("products, attention's results", 25, 28)
CODES = Bank("codes", 29, 29)
RESIDUAL = Bank("residual stream, rewards", 30, 30)
LISTS = Bank("pages of a layer, tasks, rows, constants, scales, page tables, results", 31, 31)

BUFFERS: Mapping[Bank, tuple[str, ...]] = {
    CODES: ("codes", "heads"),
    WEIGHTS_LOW: ("low", "tables"),
    WEIGHTS_HIGH: ("high",),
    PRODUCTS: ("acc", "context"),
    LISTS: (
        *("rows", "tasks", "sides", "scales", "results"),
        *("jobs", "pages", "table", "blocks", "outputs", "partials"),
    ),
    RESIDUAL: ("x", "values"),
}
"""Buffers of each bank. A new buffer needs an entry here."""

BANKS = tuple(BUFFERS)


def _wiring() -> dict[str, dict[str, Bank]]:
    """Each argument is wired to the bank of the buffers that it is passed."""
    # No forward on a card passes this argument a buffer.
    wiring = {"score_aggregator": {"rewards": RESIDUAL}}
    for bank, buffers in BUFFERS.items():
        for kernel, argument in (port for buffer in buffers for port in PORTS[buffer]):
            wiring.setdefault(kernel, {})[argument] = bank
    return wiring


WIRING = _wiring()
"""Bank of each memory argument, by kernel and argument."""

REGIONS = {
    "gemm_int8": "SLR0",
    "kv_cache_router": "SLR0",
    "mha_int8": "SLR1",
    "vector_ops": "SLR1",
    "score_aggregator": "SLR2",
}
"""Dies of the card. Assumed, no tool has placed it: the HBM is on SLR0, so the weights' ports are
there; by the counts that qor.json declares no die has space for more than this beside them."""


@dataclass(frozen=True, slots=True)
class BankMap:
    """Channels of a card's memory, and the banks that kernels' arguments are wired to.

    Attributes:
        n_channels: of equal size.
        channel_bytes: size of each, a multiple of 1,024.
        wiring: bank by kernel and argument.
    """

    n_channels: int
    channel_bytes: int
    wiring: dict[str, dict[str, Bank]]

    def bank(self, kernel: KernelInterface, argument: str) -> Bank:
        """The bank of a memory argument.

        Args:
            kernel: with the argument.
            argument: its name.

        Raises:
            BuildError: the map lacks the argument, or the bank lies beyond the card's channels.
        """
        bank = self.wiring.get(kernel.kernel, {}).get(argument)
        if bank is None:
            raise BuildError(
                f"{kernel.kernel}: argument {argument} has no bank in the card's memory: "
                "ecorl/engines/fpga/kernels/banks.py lists them"
            )
        if not 0 <= bank.first <= bank.last < self.n_channels:
            raise BuildError(
                f"{kernel.kernel}: argument {argument} is in {bank.notation}, and the card has "
                f"{self.n_channels} channels"
            )
        return bank


def card_memory(profile: DeviceProfile | None = None) -> BankMap:
    """The memory of a card with the wiring of this project's kernels.

    Args:
        profile: of the card; by default that of the U55C.

    Raises:
        ConfigError: the profile does not say its channels, or has fewer than the map needs.
    """
    profile = profile or load_profile(CARD)
    n_channels, size = profile.get("memory_channels"), profile.get("memory_channel_bytes")
    needed = 1 + max(bank.last for bank in BANKS)
    if n_channels is None or size is None or n_channels < needed:
        allowed = f"the profile of a card with at least {needed} memory channels, such as {CARD}"
        raise ConfigError("device", profile.name, allowed)
    return BankMap(int(n_channels), int(size), WIRING)


def bank_of(buffer: str) -> str:
    """Name of the bank that holds a buffer."""
    return next(bank.group for bank, buffers in BUFFERS.items() if buffer in buffers)


def bank_capacities() -> dict[str, int]:
    """Bytes of each bank of the U55C, by its name."""
    channel_bytes = card_memory().channel_bytes
    return {bank.group: len(bank.channels) * channel_bytes for bank in BANKS}


def bytes_by_bank(sizes: Mapping[str, int]) -> dict[str, int]:
    """Bytes that buffers occupy in each bank.

    Args:
        sizes: bytes of each buffer; one with two slots counts twice.
    """
    occupied: dict[str, int] = {}
    for buffer, n_bytes in sizes.items():
        name = bank_of(buffer)
        n_slots = SLOTS if buffer in SLOTTED else 1
        occupied[name] = occupied.get(name, 0) + n_slots * n_bytes
    return occupied


def overfull_bank(needed: Mapping[str, int], occupied: Mapping[str, int]) -> str | None:
    """Name the first bank without headroom.

    Args:
        needed: bytes to be placed in each bank.
        occupied: bytes that lie there already.

    Returns:
        What is needed of that bank and what it has, in words; None when each bank holds both.
    """
    for name, capacity in bank_capacities().items():
        total = needed.get(name, 0) + occupied.get(name, 0)
        if total > capacity:
            return f"{total / MIB:,.0f} MiB of the bank for {name}, which has {capacity / MIB:,.0f}"
    return None


def connectivity_config(kernels: Sequence[KernelInterface], memory: BankMap) -> str:
    """The file that ``v++ --link --config`` reads: compute units, banks, dies.

    Args:
        kernels: one compute unit each.
        memory: banks of their arguments.

    Raises:
        BuildError: an argument has no bank.
    """
    lines = ["[connectivity]"]
    lines += [f"nk={k.top}:1:{k.instance}" for k in kernels]
    lines += [
        f"sp={k.instance}.{a.name}:{memory.bank(k, a.name).notation}"
        for k in kernels
        for a in k.buffers
    ]
    lines += [f"slr={k.instance}:{REGIONS[k.kernel]}" for k in kernels if k.kernel in REGIONS]
    return "\n".join(lines) + "\n"


def _span(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}:{last}"
