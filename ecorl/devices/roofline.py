"""The cost model: time, power and joules of one stage on one kind of device.

Each phase of a stage (see `ecorl.devices.work`) takes ``max(compute, memory)``; a stage adds the
transfers over the host link and the fixed time of starting a layer's kernels:

    compute = ops / (peak x efficiency)        memory = bytes / (bandwidth x efficiency)
    time    = sum over phases of max(compute, memory) + link + launch

GPU and CPU: peak is BF16 or FP32, with the profile's efficiencies; data are in place, so there is
no link. The load power counts over the phases and the idle power over launches, which is less
than they draw (a GPU's clocks stay up), so the GPU path looks cheaper than it is: the model errs
against offloading. Where the profile holds the parameters of a pass (`ecorl.devices.gpu_pass`),
decoding is priced by them, one pass a step.

Card: a lower bound of the cycle model in `ecorl.engines.fpga.cycles.model`, which is what a run
books and what the scheduler decides by. Peak is that of the whole arrays, INT8, at full efficiency
and full bandwidth, on the least work (`ecorl.devices.card`); load power counts all the time, link
and launches included. No placement rests on it where a model's shape is known.

A model that is too large for one device is sharded over several; copies beyond that share the
rows. The fullest copy decides the time; energy and operations are those of each copy's own rows.
What cannot be computed from what is known is None, with the reason in ``note``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from ecorl.devices import gpu_pass
from ecorl.devices.card import ARRAY_MACS, card_phase, n_arrays
from ecorl.devices.guard import check_throughput
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
from ecorl.records import INFERENCE_STAGES, DeviceKind, ModelShape, Provenance, Stage, StageWork

Calibration = Literal["roofline", "paper"]
Bound = Literal["compute", "memory", "link", "launch"]

_PARAMETER_BYTES = {DeviceKind.GPU: 2, DeviceKind.CPU: 4, DeviceKind.FPGA: 1}
_NEEDED = ("active_w", "idle_w", "memory_bytes", "memory_bytes_per_s", "launch_s")
_NEEDED_CARD = ("clock_hz", "n_dsp_used", "macs_per_dsp", "link_bytes_per_s", "link_latency_s")


@dataclass(frozen=True, slots=True)
class StageCost:
    """The cost of one stage on devices of one kind; a figure is None when it is not known.

    Attributes:
        device: profile name.
        n_devices: devices that hold the work's share; all of them are powered.
        compute_s: time of the arithmetic alone, s; this term and the next three are those of the
            fullest copy of the model.
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
    """Peak of one device in the precision that it computes in: BF16, FP32 or INT8.

    A card's is that of the whole arrays which its DSPs make up.

    Raises:
        ConfigError: when the profile does not hold it, or has no room for an array.
    """
    if profile.kind == DeviceKind.FPGA:
        return 2.0 * ARRAY_MACS * n_arrays(profile) * profile.value("clock_hz")
    return profile.value("peak_fp32_flops" if profile.kind == DeviceKind.CPU else "peak_bf16_flops")


def parameter_bytes(profile: DeviceProfile) -> int:
    """Bytes of a parameter in the precision that a device computes in: BF16, FP32 or INT8."""
    return _PARAMETER_BYTES[profile.kind]


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
    if profile.kind == DeviceKind.FPGA and work.stage not in INFERENCE_STAGES:
        return replace(empty, note=f"the card runs single forward passes only, not {work.stage}")
    missing = _missing_figures(work, profile)
    if missing:
        return replace(empty, note=f"profile {profile.name} holds no {', '.join(missing)}")
    if profile.kind == DeviceKind.FPGA:
        try:
            n_arrays(profile)
        except ConfigError as error:
            return replace(empty, note=str(error))
    return _roofline_cost(work, work.model, profile, empty)


def missing_gpu_figures(profile: DeviceProfile) -> list[str]:
    """Figures without which the stages of an iteration cannot be priced on a GPU or CPU."""
    peak = "peak_fp32_flops" if profile.kind == DeviceKind.CPU else "peak_bf16_flops"
    needed = (*_NEEDED, "mbu_decode", "mfu_prefill", "mfu_train", peak, *_pass_figures(profile))
    return [key for key in needed if profile.get(key) is None]


def _missing_figures(work: StageWork, profile: DeviceProfile) -> list[str]:
    if profile.kind == DeviceKind.FPGA:
        needed = [*_NEEDED, *_NEEDED_CARD]
    else:
        needed = [*_NEEDED, "mbu_decode"]
        needed.append("mfu_train" if work.stage in TRAINING_STAGES else "mfu_prefill")
        needed.append("peak_fp32_flops" if profile.kind == DeviceKind.CPU else "peak_bf16_flops")
        needed += _pass_figures(profile) if work.stage is Stage.GENERATION else ()
    return [key for key in needed if profile.get(key) is None]


def _pass_figures(profile: DeviceProfile) -> tuple[str, ...]:
    """What a pass of the profile's parameters is priced by; empty where it holds none."""
    return () if gpu_pass.pass_parameters(profile) is None else gpu_pass.LIMITS


@dataclass(frozen=True, slots=True)
class _Copy:
    """One copy of the model with its rows: terms and time in s, energy above idle in J."""

    terms: dict[Bound, float]
    time_s: float
    above_idle_j: float
    ops: float
    memory_bytes: float


def _roofline_cost(
    work: StageWork, model: ModelShape, profile: DeviceProfile, empty: StageCost
) -> StageCost:
    dtype_bytes = parameter_bytes(profile)
    resident = resident_bytes(work, model, dtype_bytes)
    n_shards = max(1, int(-(-resident // profile.value("memory_bytes"))))
    if n_shards > empty.n_devices:
        note = (
            f"{resident / 1e9:.3g} GB of model state need {n_shards} x {profile.name}, "
            f"there are {empty.n_devices}"
        )
        return replace(empty, note=note)
    n_copies = max(1, min(empty.n_devices // n_shards, work.n_sequences))
    copies = [(n, _copy(part, model, profile, n_shards)) for n, part in _parts(work, n_copies)]
    fullest, idle_w = copies[0][1], profile.value("idle_w")
    time_s = fullest.time_s
    energy_j = sum(n * copy.above_idle_j for n, copy in copies) + empty.n_devices * idle_w * time_s
    ops = sum(n * copy.ops for n, copy in copies)
    moved = sum(n * copy.memory_bytes for n, copy in copies)
    if time_s > 0:
        check_throughput(profile, ops, moved, time_s, Provenance.MODELLED, empty.n_devices)
    return replace(
        empty,
        compute_s=fullest.terms["compute"],
        memory_s=fullest.terms["memory"],
        link_s=fullest.terms["link"],
        launch_s=fullest.terms["launch"],
        time_s=time_s,
        energy_j=energy_j,
        power_w=energy_j / time_s if time_s > 0 else empty.n_devices * idle_w,
        idle_power_w=empty.n_devices * idle_w,
        ops=ops,
        memory_bytes=moved,
        bound=max(fullest.terms.items(), key=lambda term: term[1])[0],
    )


def _parts(work: StageWork, n_copies: int) -> list[tuple[int, StageWork]]:
    """Split the batch over copies of the model by whole rows, the fullest copy first."""
    if n_copies == 1 or work.n_sequences == 0:
        return [(n_copies, work)]
    rows, n_fuller = divmod(work.n_sequences, n_copies)
    parts = [(n_fuller, rows + 1), (n_copies - n_fuller, rows)]
    return [(n, _part(work, part)) for n, part in parts if n]


def _part(work: StageWork, rows: int) -> StageWork:
    share = rows / work.n_sequences
    return replace(
        work,
        n_sequences=rows,
        n_tokens=round(work.n_tokens * share),
        n_output_tokens=round(work.n_output_tokens * share),
    )


def _copy(work: StageWork, model: ModelShape, profile: DeviceProfile, n_shards: int) -> _Copy:
    phases = _phases(work, model, profile)
    fitted = gpu_pass.pass_parameters(profile) if profile.kind == DeviceKind.GPU else None
    costs = [
        _decoding_cost(phase, model, profile, fitted, n_shards)
        if phase.decodes and phase.n_passes > 0 and fitted is not None
        else _phase_cost(phase, work, model, profile, n_shards)
        for phase in phases
    ]
    terms: dict[Bound, float] = {
        "compute": sum(cost.compute_s for cost in costs),
        "memory": sum(cost.memory_s for cost in costs),
        "link": _link_time(work, profile),
        "launch": sum(cost.launch_s for cost in costs),
    }
    time_s = sum(cost.time_s for cost in costs) + terms["link"]
    above_idle_j = sum(cost.above_idle_j for cost in costs)
    if profile.kind == DeviceKind.FPGA:
        above_w = profile.value("active_w") - profile.value("idle_w")
        above_idle_j += n_shards * above_w * terms["link"]
    ops, moved = sum(p.ops for p in phases), sum(p.memory_bytes for p in phases)
    return _Copy(terms, time_s, above_idle_j, ops, moved)


def _phases(work: StageWork, model: ModelShape, profile: DeviceProfile) -> tuple[Phase, ...]:
    dtype_bytes = parameter_bytes(profile)
    if work.n_tokens == 0:
        return ()
    if profile.kind == DeviceKind.FPGA:
        return (card_phase(work, model),)
    if work.stage is Stage.GENERATION:
        return generation_phases(work, model, dtype_bytes)
    if work.stage in TRAINING_STAGES:
        return (training_phase(work, model, dtype_bytes),)
    return (forward_phase(work, model, dtype_bytes),)


@dataclass(frozen=True, slots=True)
class _PhaseCost:
    """One phase on one copy of the model: terms and time in s, energy above idle in J."""

    compute_s: float
    memory_s: float
    launch_s: float
    time_s: float
    above_idle_j: float


def _phase_cost(
    phase: Phase, work: StageWork, model: ModelShape, profile: DeviceProfile, n_shards: int
) -> _PhaseCost:
    """The longer of compute and memory, and the starts of the layers' kernels.

    The few starts of embedding and head are left out; a phase of which nothing is wanted has none.
    """
    ops_per_s = n_shards * peak_ops_per_s(profile)
    bytes_per_s = n_shards * profile.value("memory_bytes_per_s")
    if profile.kind != DeviceKind.FPGA:
        ops_per_s *= profile.value("mfu_train" if work.stage in TRAINING_STAGES else "mfu_prefill")
        bytes_per_s *= profile.value("mbu_decode")
    compute_s, memory_s = phase.ops / ops_per_s, phase.memory_bytes / bytes_per_s
    launch_s = phase.n_passes * model.n_layers * profile.value("launch_s") if phase.ops > 0 else 0.0
    busy_s = max(compute_s, memory_s)
    loaded_s = busy_s + launch_s if profile.kind == DeviceKind.FPGA else busy_s
    load_w = profile.value("active_w")
    if phase.decodes:
        load_w = profile.get("decode_w") or load_w
    above_w = load_w - profile.value("idle_w")
    return _PhaseCost(
        compute_s, memory_s, launch_s, busy_s + launch_s, n_shards * above_w * loaded_s
    )


def _decoding_cost(
    decode: Phase,
    model: ModelShape,
    profile: DeviceProfile,
    parameters: gpu_pass.PassParameters,
    n_shards: int,
) -> _PhaseCost:
    """All steps of decoding at the cost of the mean one: rows that have ended take no part."""
    steps = decode.n_passes
    n_rows = decode.n_tokens / steps
    work = gpu_pass.PassWork(
        model.n_layers,
        n_rows,
        decode.ops / steps,
        decode.memory_bytes / steps,
        gpu_pass.exchanged_bytes(model, n_rows),
    )
    step = gpu_pass.pass_cost(work, gpu_pass.gpu_limits(profile), parameters, n_shards)
    above_idle_j = step.energy_j - n_shards * profile.value("idle_w") * step.time_s
    parts = (step.compute_s, step.memory_s, step.fixed_s, step.time_s, above_idle_j)
    return _PhaseCost(*(steps * part for part in parts))


def _link_time(work: StageWork, profile: DeviceProfile) -> float:
    if profile.kind != DeviceKind.FPGA or work.n_tokens == 0:
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
