"""Time and energy of passes over a decoder's layers on a GPU, with eight parameters a GPU.

A pass is what one decoding step does for all rows of a batch. On each of the GPUs that share the
model by tensor parallelism::

    memory   = bytes / (bandwidth x mbu_decode)
    compute  = operations / (peak x mfu_decode)
    exchange = 2 all-reduces a layer
    time     = pass_s + layers x layer_s + rows x row_s + memory + compute + exchange
    energy   = busy_w x time + bytes x j_per_byte + operations x j_per_op

The terms add: a GPU's kernels run one after another, each bound by memory or by arithmetic, and
what the host does for a row (sampling, bookkeeping of a sequence) hides behind none of them. Each
term is at least what the data sheet allows, so that nothing lies above a physical bound. Where the
power of memory and arithmetic would exceed the board's limit, the pass takes longer by as much:
the board lowers its clocks.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from ecorl.devices.profile import DeviceProfile
from ecorl.devices.work import forward_ops, kv_bytes_per_token
from ecorl.records import ModelShape

ALL_REDUCES_PER_LAYER = 2
"""Sums over the shards in a decoder layer: after attention and after the feed-forward."""

LIMITS = ("peak_bf16_flops", "memory_bytes_per_s", "tdp_w", "peer_bytes_per_s", "peer_latency_s")
"""Figures of a profile that limit a pass, in the order of `GpuLimits`."""

_VALUE_BYTES = 2  # BF16 weights, cache and activations


@dataclass(frozen=True, slots=True)
class PassWork:
    """The work of one pass over all shards.

    Attributes:
        n_layers: layers of the decoder.
        n_rows: rows of the batch, a mean over passes.
        ops: operations (a multiply-accumulate is two).
        memory_bytes: bytes through the memories.
        exchanged_bytes: bytes of activations that one all-reduce sums.
    """

    n_layers: int
    n_rows: float
    ops: float
    memory_bytes: float
    exchanged_bytes: float = 0.0


@dataclass(frozen=True, slots=True)
class GpuLimits:
    """What a GPU's data sheet allows, of one GPU.

    Attributes:
        ops_per_s: peak of dense BF16 operations, 1/s.
        bytes_per_s: bandwidth of the memory, B/s.
        power_w: limit of the board, W.
        peer_bytes_per_s: bandwidth to the other GPUs of a node in one direction, B/s.
        peer_latency_s: time of an all-reduce of few bytes, s.
    """

    ops_per_s: float
    bytes_per_s: float
    power_w: float
    peer_bytes_per_s: float
    peer_latency_s: float


@dataclass(frozen=True, slots=True)
class PassParameters:
    """The eight parameters of a GPU, by the names of their figures in its profile.

    Attributes:
        pass_s: fixed time of a pass, s.
        layer_s: fixed time of a layer, s.
        row_s: time of a row in a pass beyond its operations and bytes, s.
        mbu_decode: share of the bandwidth that kernels reach.
        mfu_decode: share of the peak that kernels reach.
        busy_w: power of a GPU that works, without that of memory traffic and arithmetic, W.
        j_per_byte: energy of a byte through the memory, J.
        j_per_op: energy of an operation, J.
    """

    pass_s: float
    layer_s: float
    row_s: float
    mbu_decode: float
    mfu_decode: float
    busy_w: float
    j_per_byte: float
    j_per_op: float


def gpu_limits(profile: DeviceProfile) -> GpuLimits:
    """What a GPU's profile says of its limits.

    Args:
        profile: of the GPU.

    Raises:
        MissingFigure: for a figure that the profile does not hold (a `ConfigError`).
    """
    return GpuLimits(*map(profile.value, LIMITS))


def pass_parameters(profile: DeviceProfile) -> PassParameters | None:
    """The parameters that a profile holds, or None where one of them is missing.

    Args:
        profile: of the GPU.
    """
    values = [profile.get(f.name) for f in fields(PassParameters)]
    known = [value for value in values if value is not None]
    return PassParameters(*known) if len(known) == len(values) else None


def streaming_w(profile: DeviceProfile) -> float:
    """Power of one GPU whose kernels do nothing but read memory, W.

    Args:
        profile: of a GPU.

    Returns:
        By the parameters of a pass; the profile's ``decode_w`` where it holds none, or else its
        ``active_w``.

    Raises:
        MissingFigure: when none of these is known (a `ConfigError`).
    """
    parameters = pass_parameters(profile)
    if parameters is None:
        return profile.get("decode_w") or profile.value("active_w")
    moved = profile.value("memory_bytes_per_s") * parameters.mbu_decode
    return parameters.busy_w + moved * parameters.j_per_byte


@dataclass(frozen=True, slots=True)
class PassCost:
    """Time and energy of one pass.

    Attributes:
        time_s: s.
        energy_j: of all shards, J.
        fixed_s: part of the time that neither memory nor arithmetic takes, all-reduces included, s.
        memory_s: part that the memory traffic takes, s.
        compute_s: part that arithmetic takes, and the board's limit on power, s.
    """

    time_s: float
    energy_j: float
    fixed_s: float
    memory_s: float
    compute_s: float

    @property
    def power_w(self) -> float:
        """Mean power of all shards, W."""
        return self.energy_j / self.time_s


def decoding_pass(
    model: ModelShape, n_rows: float, mean_context: float, prompt_tokens_per_output: float = 0.0
) -> PassWork:
    """Count the work of one decoding step.

    Args:
        model: shape of the decoder; weights and cache are BF16.
        n_rows: rows of the batch.
        mean_context: tokens in a row's cache, a mean.
        prompt_tokens_per_output: prompt tokens that are read for each token that is decoded, where
            new rows take the places of finished ones.
    """
    decoded = forward_ops(model, n_rows, mean_context)
    read = 2.0 * model.n_params_active * n_rows * prompt_tokens_per_output
    cache = kv_bytes_per_token(model, _VALUE_BYTES) * n_rows * mean_context
    return PassWork(
        n_layers=model.n_layers,
        n_rows=n_rows,
        ops=decoded + read,
        memory_bytes=float(model.n_params_active * _VALUE_BYTES) + cache,
        exchanged_bytes=exchanged_bytes(model, n_rows),
    )


def exchanged_bytes(model: ModelShape, n_rows: float) -> float:
    """Bytes of activations that one all-reduce of a decoding step sums.

    Args:
        model: shape of the decoder.
        n_rows: rows of the batch.
    """
    return float(_VALUE_BYTES * model.hidden_size) * n_rows


def pass_cost(
    work: PassWork, limits: GpuLimits, parameters: PassParameters, n_shards: int = 1
) -> PassCost:
    """Compute time and energy of one pass.

    Args:
        work: of all shards.
        limits: of one GPU.
        parameters: of one GPU.
        n_shards: GPUs that share the model by tensor parallelism.
    """
    p = parameters
    ops, moved = work.ops / n_shards, work.memory_bytes / n_shards
    memory_s = moved / (limits.bytes_per_s * p.mbu_decode)
    compute_s = ops / (limits.ops_per_s * p.mfu_decode)
    fixed_s = p.pass_s + work.n_layers * p.layer_s + work.n_rows * p.row_s
    fixed_s += _exchange_s(work, limits, n_shards)
    moving_j = moved * p.j_per_byte + ops * p.j_per_op
    least_s = moving_j / (limits.power_w - p.busy_w)
    compute_s = max(compute_s, least_s - fixed_s - memory_s)
    time_s = fixed_s + memory_s + compute_s
    return PassCost(time_s, n_shards * (p.busy_w * time_s + moving_j), fixed_s, memory_s, compute_s)


def _exchange_s(work: PassWork, limits: GpuLimits, n_shards: int) -> float:
    """All-reduces of a pass: each GPU sends and receives ``2 (n - 1) / n`` of the bytes."""
    if n_shards == 1:
        return 0.0
    sent = 2.0 * (n_shards - 1) / n_shards * work.exchanged_bytes
    one_s = limits.peer_latency_s + sent / limits.peer_bytes_per_s
    return ALL_REDUCES_PER_LAYER * work.n_layers * one_s
