"""The cost model: time, power and joules of one stage on one kind of device.

Each phase of a stage (see `ecorl.devices.work`) takes ``max(compute, memory)``; a stage adds the
transfers over the host link and the fixed time of starting a layer's kernels:

    compute = ops / (peak x efficiency)        memory = bytes / (bandwidth x efficiency)
    time    = sum over phases of max(compute, memory) + link + launch

Peak is BF16 on a GPU, FP32 on a CPU, and ``2 x macs_per_dsp x n_dsp_used x clock`` INT8
operations a second on a card. Link costs are a card's alone: on the GPU path data are in place.
Energy counts the load power over the phases and the idle power over link and launch, which on a
GPU is a lower bound (its clocks stay up), so the model errs against offloading.

A model that is too large for one device is sharded over several; copies beyond that share the
rows. What cannot be computed from what is known is None, with the reason in ``note``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from ecorl.devices.guard import card_peak_ops, check_throughput
from ecorl.devices.paper import paper_figures
from ecorl.devices.profile import DeviceProfile
from ecorl.devices.work import (
    TRAINING_STAGES,
    Phase,
    forward_phase,
    generation_phases,
    link_bytes,
    resident_bytes,
    training_phase,
)
from ecorl.errors import ConfigError
from ecorl.records import ModelShape, Provenance, Stage, StageWork

Calibration = Literal["roofline", "paper"]
Bound = Literal["compute", "memory", "link", "launch"]

_DTYPE_BYTES = {"gpu": 2, "cpu": 4, "fpga": 1}
_NEEDED = ("active_w", "idle_w", "memory_bytes", "memory_bytes_per_s", "launch_s")
_NEEDED_CARD = ("clock_hz", "n_dsp_used", "macs_per_dsp", "tile_tokens")
_NEEDED_LINK = ("link_bytes_per_s", "link_latency_s")


@dataclass(frozen=True, slots=True)
class StageCost:
    """What one stage costs on devices of one kind; every figure None when it is not known.

    Attributes:
        device: profile name.
        n_devices: devices that hold the work's share; all of them are powered.
        compute_s: time of the arithmetic alone, s.
        memory_s: time of the memory traffic alone, s.
        link_s: time of transfers over the host link, s.
        launch_s: fixed time of starting kernels, s.
        time_s: time of the stage, s.
        energy_j: energy of all ``n_devices`` over that time, J.
        power_w: mean power of all ``n_devices`` over that time, W; in the paper's calibration the
            printed one, which is not ``energy_j / time_s``.
        idle_power_w: power of all ``n_devices`` while they wait, W.
        ops: operations (a multiply-accumulate is two).
        memory_bytes: bytes through device memory.
        bound: the largest of the four terms.
        provenance: modelled for the roofline, published for the paper's calibration.
        exceeds_physical_peak: whether the figures lie above the device's physical bound; only
            published ones may.
        note: why figures are missing, or what to know about them; empty otherwise.
    """

    device: str
    n_devices: int
    compute_s: float | None = None
    memory_s: float | None = None
    link_s: float | None = None
    launch_s: float | None = None
    time_s: float | None = None
    energy_j: float | None = None
    power_w: float | None = None
    idle_power_w: float | None = None
    ops: float | None = None
    memory_bytes: float | None = None
    bound: Bound | None = None
    provenance: Provenance = Provenance.MODELLED
    exceeds_physical_peak: bool = False
    note: str = ""

    @property
    def known(self) -> bool:
        """Whether time and energy are both known."""
        return self.time_s is not None and self.energy_j is not None


def peak_ops_per_s(profile: DeviceProfile) -> float:
    """Peak of one device in the precision that it computes in: BF16, FP32 or INT8 (card).

    Raises:
        MissingFigure: when the profile does not hold it (a `ConfigError`).
    """
    if profile.kind == "fpga":
        return card_peak_ops(
            profile.value("n_dsp_used"), profile.value("clock_hz"), profile.value("macs_per_dsp")
        )
    return profile.value("peak_fp32_flops" if profile.kind == "cpu" else "peak_bf16_flops")


def single_pass(
    n_params: float, peak_ops_per_s: float, efficiency: float, power_w: float
) -> tuple[float, float]:
    """Tokens per second and tokens per joule of a bare forward pass (``2 N`` operations a token).

    Args:
        n_params: parameters that one token multiplies with.
        peak_ops_per_s: peak operations per second.
        efficiency: share of the peak that is reached.
        power_w: power while doing so, W.
    """
    tokens_per_s = peak_ops_per_s * efficiency / (2.0 * n_params)
    return tokens_per_s, tokens_per_s / power_w


def stage_cost(
    work: StageWork,
    profile: DeviceProfile,
    n_devices: int = 1,
    calibration: Calibration = "roofline",
) -> StageCost:
    """Time and energy of one stage on `n_devices` devices of one kind.

    Args:
        work: the stage's work; without a model shape every figure is None.
        profile: the device.
        n_devices: devices that share the work.
        calibration: ``roofline`` (bounded by physics, provenance modelled) or ``paper`` (as
            printed, provenance published, flagged where it exceeds the physical peak).

    Raises:
        ConfigError: when `n_devices` or `calibration` is not acceptable.
        PhysicalBoundError: when the profile's own figures contradict its bounds.
    """
    if n_devices < 1:
        raise ConfigError("n_devices", n_devices, "1 or more")
    if calibration not in ("roofline", "paper"):
        raise ConfigError("devices.calibration", calibration, "roofline or paper")
    empty = StageCost(profile.name, n_devices)
    if calibration == "paper":
        return _paper_cost(work, profile, replace(empty, provenance=Provenance.PUBLISHED))
    if work.model is None:
        return replace(empty, note=f"the shape of the model behind {work.stage} is not known")
    if profile.kind == "fpga" and work.stage not in (Stage.REWARD, Stage.REFERENCE, Stage.CRITIC):
        return replace(empty, note=f"the card runs single forward passes only, not {work.stage}")
    missing = _missing_figures(work, profile)
    if missing:
        return replace(empty, note=f"profile {profile.name} holds no {', '.join(missing)}")
    return _roofline_cost(work, work.model, profile, empty)


def _missing_figures(work: StageWork, profile: DeviceProfile) -> list[str]:
    needed = [*_NEEDED, "mbu_decode"]
    needed.append("mfu_train" if work.stage in TRAINING_STAGES else "mfu_prefill")
    if profile.kind == "fpga":
        needed += [*_NEEDED_CARD, *_NEEDED_LINK]
    else:
        needed.append("peak_fp32_flops" if profile.kind == "cpu" else "peak_bf16_flops")
    return [key for key in needed if profile.get(key) is None]


def _roofline_cost(
    work: StageWork, model: ModelShape, profile: DeviceProfile, empty: StageCost
) -> StageCost:
    dtype_bytes = _DTYPE_BYTES[profile.kind]
    resident = resident_bytes(work, model, dtype_bytes)
    n_shards = max(1, int(-(-resident // profile.value("memory_bytes"))))
    if n_shards > empty.n_devices:
        note = (
            f"{resident / 1e9:.3g} GB of model state need {n_shards} x {profile.name}, "
            f"there are {empty.n_devices}"
        )
        return replace(empty, note=note)
    n_copies = max(1, min(empty.n_devices // n_shards, work.n_sequences))
    share = _share_of_rows(work, n_copies)
    times = _phase_times(share, model, profile, n_shards)
    phases = _phases(share, model, profile)
    link_s = _link_time(share, profile)
    launch_s = sum(p.n_passes for p in phases) * model.n_layers * profile.value("launch_s")
    busy_s = [max(compute, memory) for compute, memory in times]
    time_s = sum(busy_s) + link_s + launch_s
    n_busy, idle_w = n_copies * n_shards, profile.value("idle_w")
    above_idle_j = sum(
        (power_w - idle_w) * seconds
        for power_w, seconds in zip(_load_powers(work, profile), busy_s, strict=True)
    )
    energy_j = n_busy * above_idle_j + empty.n_devices * idle_w * time_s
    terms: dict[Bound, float] = {
        "compute": sum(compute for compute, _ in times),
        "memory": sum(memory for _, memory in times),
        "link": link_s,
        "launch": launch_s,
    }
    ops = n_copies * sum(p.ops for p in phases)
    moved = n_copies * sum(p.memory_bytes for p in phases)
    if time_s > 0:
        check_throughput(profile, ops, moved, time_s, Provenance.MODELLED, empty.n_devices)
    return replace(
        empty,
        compute_s=terms["compute"],
        memory_s=terms["memory"],
        link_s=link_s,
        launch_s=launch_s,
        time_s=time_s,
        energy_j=energy_j,
        power_w=energy_j / time_s if time_s > 0 else empty.n_devices * idle_w,
        idle_power_w=empty.n_devices * idle_w,
        ops=ops,
        memory_bytes=moved,
        bound=max(terms.items(), key=lambda term: term[1])[0],
    )


def _share_of_rows(work: StageWork, n_copies: int) -> StageWork:
    """The fullest copy's part of the batch: rows are whole, so it is rounded up."""
    if n_copies == 1 or work.n_sequences == 0:
        return work
    rows = -(-work.n_sequences // n_copies)
    share = rows / work.n_sequences
    return replace(
        work,
        n_sequences=rows,
        n_tokens=round(work.n_tokens * share),
        n_output_tokens=round(work.n_output_tokens * share),
    )


def _phases(work: StageWork, model: ModelShape, profile: DeviceProfile) -> tuple[Phase, ...]:
    dtype_bytes = _DTYPE_BYTES[profile.kind]
    if work.n_tokens == 0:
        return ()
    if work.stage is Stage.GENERATION:
        return generation_phases(work, model, dtype_bytes)
    if work.stage in TRAINING_STAGES:
        return (training_phase(work, model, dtype_bytes),)
    return (forward_phase(work, model, dtype_bytes, profile.get("tile_tokens")),)


def _phase_times(
    work: StageWork, model: ModelShape, profile: DeviceProfile, n_shards: int
) -> list[tuple[float, float]]:
    """Compute and memory time of each phase, s."""
    efficiency = profile.value("mfu_train" if work.stage in TRAINING_STAGES else "mfu_prefill")
    ops_per_s = n_shards * peak_ops_per_s(profile) * efficiency
    bytes_per_s = n_shards * profile.value("memory_bytes_per_s") * profile.value("mbu_decode")
    return [
        (phase.ops / ops_per_s, phase.memory_bytes / bytes_per_s)
        for phase in _phases(work, model, profile)
    ]


def _load_powers(work: StageWork, profile: DeviceProfile) -> list[float]:
    """Power under load of each phase, W: decoding draws less than dense passes."""
    active_w = profile.value("active_w")
    if work.n_tokens == 0:
        return []
    if work.stage is Stage.GENERATION:
        return [active_w, profile.get("decode_w") or active_w]
    return [active_w]


def _link_time(work: StageWork, profile: DeviceProfile) -> float:
    if profile.kind != "fpga" or work.n_tokens == 0:
        return 0.0
    transfer_s = link_bytes(work) / profile.value("link_bytes_per_s")
    return transfer_s + 2.0 * profile.value("link_latency_s")


def _paper_cost(work: StageWork, profile: DeviceProfile, empty: StageCost) -> StageCost:
    if work.model is None:
        return replace(empty, note=f"the shape of the model behind {work.stage} is not known")
    figures = paper_figures(work.stage, profile.name, work.model.n_params_active)
    if figures is None:
        return replace(empty, note=f"the paper prints no figure for {work.stage} on {profile.name}")
    time_s = work.n_tokens / figures.tokens_per_s / empty.n_devices
    energy_j = work.n_tokens / figures.tokens_per_j
    ops = 2.0 * work.model.n_params_active * work.n_tokens
    exceeds, idle_w = False, profile.get("idle_w")
    if time_s > 0:
        published = Provenance.PUBLISHED
        check = check_throughput(profile, ops, None, time_s, published, empty.n_devices)
        exceeds = check.exceeds
    return replace(
        empty,
        time_s=time_s,
        energy_j=energy_j,
        power_w=None if figures.power_w is None else empty.n_devices * figures.power_w,
        idle_power_w=None if idle_w is None else empty.n_devices * idle_w,
        ops=ops,
        exceeds_physical_peak=exceeds,
        note=figures.note,
    )
