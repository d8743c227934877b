"""The rate at which the card's memory serves the ports of a kernel; assumed, not measured.

The memory is cut into pseudo-channels; a port of 512 bits moves a word of 64 bytes a cycle, which
at 245 MHz is 15.7 GB/s: more than the 14.4 GB/s of one channel of a U55C. A port therefore waits
unless its data are striped over channels. Assumed throughout:

- `BURST_EFFICIENCY` of a channel's data-sheet rate is reached. Bursts are cut at 4 KiB, which is 64
  words; with 16 of them outstanding the gaps between them do not show, refresh and turns do;
- a port whose data are striped over s channels gets s times the rate of one, at most a word a
  cycle. One m_axi port ends in one port of the memory's switch, which passes no more than one
  channel's rate, so data in several channels need a port for each;
- only the weights have more than one, `WEIGHT_CHANNELS`. Every other port has the rate of a
  channel to itself, and no two kernels run at once. Ports that share one
  (`ecorl.engines.fpga.kernels.banks`) are those of short lists, and of a residual stream that is
  read and written;
- a loop that reads or writes waits `LATENCY_CYCLES` each time that it is entered: within it
  accesses follow one another, across two of them they do not.
"""

from __future__ import annotations

from dataclasses import dataclass

from ecorl.devices import DeviceProfile

WORD_BYTES = 64
"""Width of a port: 512 bits."""

BURST_EFFICIENCY = 425 / 460
"""Share of the data-sheet rate: 425 of 460 GB/s, read by Wang et al. (FCCM 2020) on a U280, whose
stacks and controller are of the U55C's kind; assumed to hold for this card and these bursts."""

LATENCY_CYCLES = 64
"""From a request to its first word: what Vitis HLS schedules for a memory port by default."""

WEIGHT_CHANNELS = 2
"""Channels that hold a product's weights: gemm_int8 has two ports for them, each a half of every
word."""


@dataclass(frozen=True, slots=True)
class Memory:
    """The card's memory as ports see it.

    Attributes:
        channel_words: words of 64 bytes a cycle that one channel delivers; inf without a limit.
        all_words: the same, all channels together.
        latency_cycles: wait of a loop each time that it is entered.
        weight_channels: channels that weights are striped over.
    """

    channel_words: float
    all_words: float
    latency_cycles: int = LATENCY_CYCLES
    weight_channels: int = WEIGHT_CHANNELS

    def word_cycles(self, n_bytes: int = WORD_BYTES, channels: int = 1) -> float:
        """Cycles between two neighbouring elements on one port, at least 1.

        Args:
            n_bytes: size of an element.
            channels: over which the data are striped.
        """
        return max(1.0, n_bytes / WORD_BYTES / (channels * self.channel_words))

    def loop(
        self,
        trips: int,
        entries: int = 1,
        ii: int = 1,
        n_bytes: int = WORD_BYTES,
        channels: int = 1,
    ) -> float:
        """Cycles of loops that read or write one element of a port a trip.

        Args:
            trips: of all entries together.
            entries: how often such a loop is entered.
            ii: initiation interval of the loop.
            n_bytes: size of the element.
            channels: over which the data are striped.
        """
        if trips == 0:
            return 0.0
        return trips * max(float(ii), self.word_cycles(n_bytes, channels)) + (
            entries * self.latency_cycles
        )


IDEAL = Memory(float("inf"), float("inf"), 0)
"""A memory without latency and limit, a word a cycle and port. Cycles that a kernel needs beyond
those with this one are stalls."""


def memory_of(profile: DeviceProfile, weight_channels: int = WEIGHT_CHANNELS) -> Memory:
    """Model the memory of a card.

    Where the profile does not tell its channels only their sum is a limit.

    Args:
        profile: with ``memory_bytes_per_s``, ``clock_hz`` and perhaps ``memory_channels``.
        weight_channels: channels that weights are striped over.
    """
    bytes_per_cycle = profile.value("memory_bytes_per_s") / profile.value("clock_hz")
    words = BURST_EFFICIENCY * bytes_per_cycle / WORD_BYTES
    channels = profile.get("memory_channels")
    return Memory(words / channels if channels else words, words, weight_channels=weight_channels)
