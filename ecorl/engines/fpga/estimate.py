"""Estimates time and energy of a workload on a card, and places its models in the card's memory.

Every figure is modelled (`ecorl.engines.fpga.cycles.model`); a figure that needs one which the
profile lacks is None.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ecorl.devices import DeviceProfile
from ecorl.devices.card import ARRAY_MACS, missing_card_figures
from ecorl.engines.fpga.bitstream.csynth import standing, synthesis_of
from ecorl.engines.fpga.csim.build import kernel_root
from ecorl.engines.fpga.cycles.hbm import IDEAL, WEIGHT_CHANNELS
from ecorl.engines.fpga.cycles.hbm_layout import HbmLayout, Resident, place
from ecorl.engines.fpga.cycles.kernel_calls import TRANSFERS, BatchShape, forward_calls, link_bytes
from ecorl.engines.fpga.cycles.kernels import call_cost
from ecorl.engines.fpga.cycles.model import INTERVALS, KERNELS, CardTime, CycleModel
from ecorl.engines.fpga.int8_decoder import MAX_ROW
from ecorl.engines.models.decoder_config import DecoderConfig
from ecorl.errors import ConfigError, SynthesisReportError
from ecorl.records import DeviceKind, Stage


@dataclass(frozen=True, slots=True)
class ScoringWorkload:
    """A model and one batch of it.

    Attributes:
        name: of the model, in tables.
        config: of the decoder, with the head that the stage needs.
        stage: reward or reference.
        batch: its rows.
    """

    name: str
    config: DecoderConfig
    stage: Stage
    batch: BatchShape

    @property
    def n_tokens(self) -> int:
        """Tokens of all rows."""
        return sum(self.batch.lengths)


def workload(
    name: str, config: DecoderConfig, stage: Stage, n_tokens: int, n_rows: int = 1
) -> ScoringWorkload:
    """Make a batch of rows of even lengths; a reference needs all tokens after a row's first.

    Args:
        name: of the model.
        config: of the decoder; its head is replaced by that of the stage where they differ.
        stage: reward or reference.
        n_tokens: of all rows together.
        n_rows: rows.

    Raises:
        ConfigError: for an unknown stage, rows without tokens, or rows longer than the model's
            positions.
    """
    if stage not in (Stage.REWARD, Stage.REFERENCE):
        raise ConfigError("--stage", str(stage), "reward or reference")
    is_reward = stage is Stage.REWARD
    least = n_rows * (1 if is_reward else 2)
    most = n_rows * min(config.max_positions, MAX_ROW)
    if n_rows < 1:
        raise ConfigError("--rows", n_rows, "1 or more")
    if not least <= n_tokens <= most:
        rows = "1 row" if n_rows == 1 else f"{n_rows:,} rows"
        what = f"{least:,} to {most:,} for {rows} of {name} ({stage})"
        raise ConfigError("--tokens", n_tokens, what)
    if config.is_reward != is_reward:
        config = replace(config, is_reward=is_reward, tied=False)
    whole, longer = divmod(n_tokens, n_rows)
    lengths = (whole + 1,) * longer + (whole,) * (n_rows - longer)
    if is_reward:
        return ScoringWorkload(name, config, stage, BatchShape(lengths, (1,) * n_rows, 1))
    wanted = tuple(n - 1 for n in lengths)
    return ScoringWorkload(
        name, config, stage, BatchShape(lengths, wanted, config.shape.vocab_size)
    )


@dataclass(frozen=True, slots=True)
class Run:
    """A workload on a card at one initiation interval.

    Attributes:
        ii: factor on the initiation interval of every loop.
        card: time and energy.
        tokens_per_s: tokens of all rows over the time.
        tokens_per_j: the same over the energy.
        array_efficiency: useful products of gemm_int8 over those that its array could compute in
            its time.
        forward_efficiency: useful products of all kernels over those that gemm_int8's array could
            compute in the time of all kernels.
    """

    ii: int
    card: CardTime
    tokens_per_s: float
    tokens_per_j: float
    array_efficiency: float
    forward_efficiency: float


@dataclass(frozen=True, slots=True)
class CardEstimate:
    """Modelled time and energy of a workload on a card.

    Attributes:
        profile: of the card.
        workload: of which they are.
        missing: figures that the profile lacks; time and energy are then unknown.
        runs: one for each initiation interval; empty where figures are missing.
        one_channel: the first of them with the weights in one channel.
        port_bytes: bytes through each memory port of each kernel.
        ideal_cycles: cycles of each kernel on one set of arrays with a memory that never stalls
            them, which need no figure of the card.
        memory_s: memory traffic over the data sheet's bandwidth, s: a lower bound.
        link_s: transfers over the link, s.
    """

    profile: DeviceProfile
    workload: ScoringWorkload
    missing: tuple[str, ...]
    runs: tuple[Run, ...]
    one_channel: Run | None
    port_bytes: dict[str, dict[str, int]]
    ideal_cycles: dict[str, float]
    memory_s: float | None
    link_s: float | None


def estimate(
    work: ScoringWorkload, profile: DeviceProfile, intervals: Sequence[int] = INTERVALS
) -> CardEstimate:
    """Estimate a workload on a card at several initiation intervals.

    Args:
        work: the workload.
        profile: of the card.
        intervals: factors on the initiation interval of every loop.

    Raises:
        ConfigError: when the profile is no card's, or its DSPs hold no array.
    """
    if profile.kind != DeviceKind.FPGA:
        raise ConfigError("--device", profile.name, "the profile of a card (kind fpga)")
    missing = tuple(missing_card_figures(profile))
    runs: tuple[Run, ...] = ()
    one_channel = None
    if not missing:
        runs = tuple(_run(work, profile, ii, WEIGHT_CHANNELS) for ii in intervals)
        one_channel = _run(work, profile, intervals[0], 1)
    ideal = dict.fromkeys(KERNELS, 0.0)
    moved: dict[str, dict[str, int]] = {}
    for call, times in forward_calls(work.config.shape, work.batch):
        cost = call_cost(call, IDEAL, intervals[0], 1)
        ideal[call.kernel] += times * cost.cycles
        own = moved.setdefault(call.kernel, {})
        for port, n_bytes in call.ports().items():
            own[port] = own.get(port, 0) + times * n_bytes
    bandwidth, link = profile.get("memory_bytes_per_s"), profile.get("link_bytes_per_s")
    latency_s = profile.get("link_latency_s")
    link_s = None
    if link is not None and latency_s is not None:
        link_s = link_bytes(work.batch) / link + TRANSFERS * latency_s
    all_bytes = sum(n_bytes for own in moved.values() for n_bytes in own.values())
    memory_s = None if bandwidth is None else all_bytes / bandwidth
    return CardEstimate(profile, work, missing, runs, one_channel, moved, ideal, memory_s, link_s)


def placed(works: Sequence[ScoringWorkload], profile: DeviceProfile) -> HbmLayout | None:
    """Place all models together in the card's memory; None where its channels are not known.

    Args:
        works: the models with their batches.
        profile: of the card.

    Raises:
        CheckpointError: in one line with the bytes, when they do not fit.
    """
    return place([Resident(f"{w.name} ({w.stage})", w.config, w.batch) for w in works], profile)


def standing_of_kernels() -> str:
    """Say in words what the estimates rest on.

    Raises:
        SynthesisReportError: when a kernel's folder holds a damaged report.
    """
    root = kernel_root()
    found = [name for name in KERNELS if synthesis_of(root / name) is not None]
    if not found:
        return "modelled, pipeline depths from simulated RTL; no synthesis report stands behind it"
    told = "; ".join(f"{name} is {standing(root / name)}" for name in found)
    return f"modelled, and not from these reports: {told}"


def declared_dsps() -> dict[str, int | None]:
    """DSPs that each kernel's qor.json declares; None where it declares none yet.

    Raises:
        SynthesisReportError: when a qor.json cannot be read.
    """
    return _declared("dsp")


def declared_brams() -> dict[str, int | None]:
    """Block RAMs of 18 Kbit that each kernel's qor.json declares; None where it declares none yet.

    Raises:
        SynthesisReportError: when a qor.json cannot be read.
    """
    return _declared("bram_18k")


def _declared(resource: str) -> dict[str, int | None]:
    declared: dict[str, int | None] = {}
    root = kernel_root()
    for name in KERNELS:
        path = root / name / "qor.json"
        declared[name] = None
        try:
            found = json.loads(path.read_text("utf-8")) if path.is_file() else {}
            if resource in found:
                declared[name] = int(found[resource]["count"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise SynthesisReportError(f"{path} cannot be used: {error}") from error
    return declared


def _run(work: ScoringWorkload, profile: DeviceProfile, ii: int, weight_channels: int) -> Run:
    model = CycleModel(work.config.shape, profile, ii, weight_channels)
    card = model.batch(work.batch)
    gemm = card.of("gemm_int8")
    peak = ARRAY_MACS * model.card.n_arrays * model.card.clock_hz
    assert gemm is not None  # a workload has tokens, and every forward has products
    return Run(
        ii=ii,
        card=card,
        tokens_per_s=work.n_tokens / card.time_s,
        tokens_per_j=work.n_tokens / card.energy_j,
        array_efficiency=gemm.macs / (peak * gemm.time_s),
        forward_efficiency=card.macs / (peak * card.kernel_s),
    )


def as_data(
    found: Sequence[CardEstimate], placements: Sequence[HbmLayout | None], stand: str
) -> dict[str, object]:
    """Convert estimates to plain data for JSON; unknown figures are null.

    Args:
        found: estimates of all workloads and cards.
        placements: of the models on each card.
        stand: what the estimates rest on, in words.
    """
    return {
        "provenance": "modelled",
        "standing": stand,
        "estimates": [_estimate_data(one) for one in found],
        "placements": [
            None if one is None else _placement_data(one) for one in placements
        ],
    }  # fmt: skip


def _estimate_data(one: CardEstimate) -> dict[str, object]:
    work = one.workload
    return {
        "device": one.profile.name,
        "model": work.name,
        "stage": str(work.stage),
        "n_tokens": work.n_tokens,
        "n_rows": len(work.batch.lengths),
        "missing_figures": list(one.missing),
        "port_bytes": one.port_bytes,
        "ideal_cycles": one.ideal_cycles,
        "least_memory_s": one.memory_s,
        "link_s": one.link_s,
        "runs": [_run_data(run) for run in one.runs],
        "weights_in_one_channel": None if one.one_channel is None else _run_data(one.one_channel),
    }


def _run_data(run: Run) -> dict[str, object]:
    card = run.card
    return {
        "ii": run.ii,
        "time_s": card.time_s,
        "energy_j": card.energy_j,
        "tokens_per_s": run.tokens_per_s,
        "tokens_per_j": run.tokens_per_j,
        "array_efficiency": run.array_efficiency,
        "forward_efficiency": run.forward_efficiency,
        "launch_s": card.launch_s,
        "link_s": card.link_s,
        "link_bytes": card.link_bytes,
        "kernels": [
            {
                "kernel": k.kernel, "calls": k.calls, "cycles": k.cycles,
                "stall_cycles": k.stall_cycles, "time_s": k.time_s, "macs": k.macs,
                "memory_bytes": k.moved_bytes,
            }
            for k in card.kernels
        ],
    }  # fmt: skip


def _placement_data(one: HbmLayout) -> dict[str, object]:
    return {
        "n_channels": one.n_channels,
        "channel_bytes": one.channel_bytes,
        "used_bytes": list(one.used_bytes),
        "regions": [
            {"group": r.group, "bytes": r.n_bytes, "channels": list(r.channels)}
            for r in one.regions
        ],
    }
