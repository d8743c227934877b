"""Layout of models in the card's memory: buffers on pseudo-channels, or an error.

Each matrix of a product is cut into as many stripes as the cycle model assumes, on different
channels. What one batch needs beside the models (products, codes, pages of the cache, residual
stream) gets separate channels as long as there are any left, so that a kernel's ports do not share
one; models that share a card share this space, since they run one after the other. Pages are
those of one layer: nothing is generated, so no layer's keys are needed again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ecorl.devices import DeviceProfile
from ecorl.engines.fpga.csim.library import TILE_K, TILE_N
from ecorl.engines.fpga.cycles.attention import PAGE, page_beats
from ecorl.engines.fpga.cycles.hbm import WEIGHT_CHANNELS, WORD_BYTES
from ecorl.engines.fpga.cycles.kernel_calls import BatchShape
from ecorl.engines.fpga.kernels import sequence
from ecorl.engines.models.decoder_config import DecoderConfig
from ecorl.errors import CheckpointError

_LANES, _TABLE_LANES = 16, 32
_CHANNEL_WORDS, _ROPE_WORDS = 3, 4
_PIECE_BYTES = 1 << 26
"""Tables are cut into pieces of at most 64 MiB, so that no channel is left half empty."""

WEIGHTS, TABLES, WORK = "weights", "tables", "work"


@dataclass(frozen=True, slots=True)
class Buffer:
    """A piece of memory that must lie in one channel.

    Attributes:
        group: row of the table that it belongs to.
        matrix: pieces with one name are stripes of one matrix and lie apart; empty otherwise.
        n_bytes: its size.
    """

    group: str
    matrix: str
    n_bytes: int


@dataclass(frozen=True, slots=True)
class Region:
    """Where all buffers of a group were placed.

    Attributes:
        group: what they hold.
        n_bytes: all of them together.
        channels: where they lie, ascending.
    """

    group: str
    n_bytes: int
    channels: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class HbmLayout:
    """The layout of models and a batch's buffers on a card.

    Attributes:
        n_channels: pseudo-channels.
        channel_bytes: size of each.
        regions: by group, in the order of the models, the batch's last.
        used_bytes: of each channel.
    """

    n_channels: int
    channel_bytes: int
    regions: tuple[Region, ...]
    used_bytes: tuple[int, ...]

    @property
    def n_bytes(self) -> int:
        """All buffers together."""
        return sum(self.used_bytes)


@dataclass(frozen=True, slots=True)
class Resident:
    """A model on the card, and its largest batch.

    Attributes:
        name: in tables and messages.
        config: of the decoder.
        batch: the largest.
    """

    name: str
    config: DecoderConfig
    batch: BatchShape


def place(
    residents: Sequence[Resident], profile: DeviceProfile, weight_channels: int = WEIGHT_CHANNELS
) -> HbmLayout | None:
    """Place models and the buffers of their batches on a card's channels.

    Args:
        residents: models that share the card.
        profile: of the card.
        weight_channels: stripes of each matrix.

    Returns:
        The placement; None where the profile does not tell ``memory_channels`` and
        ``memory_channel_bytes``.

    Raises:
        CheckpointError: in one line with the bytes, when they do not fit.
    """
    n_channels, size = profile.get("memory_channels"), profile.get("memory_channel_bytes")
    if n_channels is None or size is None:
        return None
    work = _largest(_work_buffers(r) for r in residents)
    fixed = [b for r in residents for b in _model_buffers(r, weight_channels)]
    channels = _Channels([0] * int(n_channels), int(size), {}, {})
    needed = sum(b.n_bytes for b in (*work, *fixed))
    fits = needed <= channels.n_bytes
    # The batch's buffers come first, each group in separate channels as long as one is empty.
    fits = fits and all(
        channels.put(b, (*channels.of(b.group), *channels.empty(), *channels.by_use()))
        for b in work
    )
    busy = {c for c, n_bytes in enumerate(channels.used) if n_bytes}
    # Large pieces first, so that small ones fill the gaps; beside a batch's buffers only when no
    # other channel has headroom.
    for buffer in sorted(fixed, key=lambda b: -b.n_bytes):
        free = [c for c in channels.by_use() if c not in busy]
        fits = fits and channels.put(buffer, (*free, *channels.by_use()))
    if not fits:
        raise _refusal(residents, profile, needed, channels)
    groups: dict[str, int] = {}
    for buffer in (*fixed, *work):
        groups[buffer.group] = groups.get(buffer.group, 0) + buffer.n_bytes
    regions = tuple(Region(g, n, channels.of(g)) for g, n in groups.items())
    return HbmLayout(int(n_channels), int(size), regions, tuple(channels.used))


@dataclass(frozen=True, slots=True)
class _Channels:
    """Bytes used of each channel, and which groups and matrices lie where."""

    used: list[int]
    channel_bytes: int
    groups: dict[str, set[int]]
    matrices: dict[str, set[int]]

    @property
    def n_bytes(self) -> int:
        return len(self.used) * self.channel_bytes

    def of(self, group: str) -> tuple[int, ...]:
        """Channels that hold some of a group."""
        return tuple(sorted(self.groups.get(group, ())))

    def empty(self) -> list[int]:
        """Channels that hold nothing, the last first."""
        return [c for c in range(len(self.used) - 1, -1, -1) if not self.used[c]]

    def by_use(self) -> list[int]:
        """Channels, the emptiest first."""
        return sorted(range(len(self.used)), key=lambda c: (self.used[c], c))

    def put(self, buffer: Buffer, order: Iterable[int]) -> bool:
        """Place a buffer in the first channel with headroom and no other stripe of its matrix.

        Args:
            buffer: what to place.
            order: channels to try.

        Returns:
            Whether there was such a channel.
        """
        taken = self.matrices.setdefault(buffer.matrix, set()) if buffer.matrix else set()
        for channel in order:
            fits = self.used[channel] + buffer.n_bytes <= self.channel_bytes
            if channel not in taken and fits:
                self.used[channel] += buffer.n_bytes
                self.groups.setdefault(buffer.group, set()).add(channel)
                taken.add(channel)
                return True
        return False


def _refusal(
    residents: Sequence[Resident], profile: DeviceProfile, needed: int, channels: _Channels
) -> CheckpointError:
    models = " and ".join(r.name for r in residents)
    together = " together" if len(residents) > 1 else ""
    pieces = (
        "" if needed > channels.n_bytes else ", in pieces that find no channel with room for them"
    )
    return CheckpointError(
        f"{models}{together} need {needed:,} bytes with the buffers of their batch{pieces}; "
        f"{profile.name} has {channels.n_bytes:,}, {len(channels.used)} channels of "
        f"{channels.channel_bytes:,}"
    )


# ---- the buffers to place -----------------------------------------------------------------------


def _words(n: int, lanes: int = _LANES) -> int:
    return -(-n // lanes) * WORD_BYTES


def _model_buffers(resident: Resident, weight_channels: int) -> list[Buffer]:
    """Buffers of a model: weights in stripes, its tables and constants in pieces."""
    s, config, name = resident.config.shape, resident.config, resident.name
    heads = s.n_heads + 2 * s.n_kv_heads
    n_head = 1 if config.is_reward else s.vocab_size
    shapes = sequence.linear_shapes(s, n_head)
    found: list[Buffer] = []
    for i in range(s.n_layers):
        for matrix in sequence.LAYER_LINEARS:
            found += _stripes(name, f"{name} {i} {matrix}", *shapes[matrix], weight_channels)
    found += _stripes(name, f"{name} head", *shapes["head"], weight_channels)
    outputs = heads * sequence.card_head(s.head_dim) + 2 * s.hidden_size + 2 * s.intermediate_size
    constants = s.n_layers * (_CHANNEL_WORDS * _words(outputs) + 2 * _words(s.hidden_size))
    constants += _CHANNEL_WORDS * _words(n_head) + _words(s.hidden_size)
    tables = s.vocab_size * (WORD_BYTES + _words(s.hidden_size, _TABLE_LANES))
    tables += config.max_positions * _ROPE_WORDS * WORD_BYTES + constants
    return found + _pieces(f"{name}: {TABLES}", tables)


def _stripes(name: str, matrix: str, n: int, k: int, channels: int) -> list[Buffer]:
    """Cut a matrix in gemm_int8's tile order by tiles into one stripe a channel."""
    tiles = -(-n // TILE_N)
    steps = sum(-(-(last - first) // TILE_K) for first, last in sequence.input_slices(k))
    cuts = [tiles * i // channels for i in range(channels + 1)]
    return [
        Buffer(f"{name}: {WEIGHTS}", matrix, (b - a) * steps * WORD_BYTES)
        for a, b in pairwise(cuts)
        if b > a
    ]


def _pieces(group: str, n_bytes: int) -> list[Buffer]:
    whole, last = divmod(n_bytes, _PIECE_BYTES)
    return [Buffer(group, "", _PIECE_BYTES)] * whole + [Buffer(group, "", last)] * bool(last)


def _work_buffers(resident: Resident) -> dict[str, int]:
    """Bytes of each buffer that a batch needs beside the model."""
    s, batch = resident.config.shape, resident.batch
    d, tokens, wanted = sequence.card_head(s.head_dim), sum(batch.lengths), sum(batch.wanted)
    qkv = (s.n_heads + 2 * s.n_kv_heads) * d
    pages = sum(-(-n // PAGE) for n in batch.lengths)
    head = min(batch.head_rows, sequence.HEAD_BLOCK)
    widest = tokens * max(qkv, 2 * s.intermediate_size, s.hidden_size)
    codes = max(s.hidden_size, s.intermediate_size, qkv)
    return {
        f"{WORK}: products": 4 * max(widest, wanted * head),
        f"{WORK}: codes": tokens * codes,
        f"{WORK}: attention's results": 4 * tokens * s.n_heads * d,
        f"{WORK}: residual stream": tokens * (_words(s.hidden_size) + WORD_BYTES),
        f"{WORK}: pages of a layer": pages * s.n_kv_heads * page_beats(d) * WORD_BYTES,
    }


def _largest(found: Iterable[dict[str, int]]) -> list[Buffer]:
    """Buffers large enough for each of several models in turn, in pieces."""
    sizes: dict[str, int] = {}
    for own in found:
        for group, n_bytes in own.items():
            sizes[group] = max(sizes.get(group, 0), n_bytes)
    return [b for group, n_bytes in sizes.items() for b in _pieces(group, n_bytes)]
