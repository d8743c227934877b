"""``ecorl fpga estimate``: modelled time and energy of a forward on a card."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ecorl.cli.output import say, writable, writing
from ecorl.errors import ConfigError
from ecorl.records import Stage

if TYPE_CHECKING:
    from ecorl.engines.fpga.cycles.hbm_layout import HbmLayout
    from ecorl.engines.fpga.estimate import CardEstimate, Run, ScoringWorkload
    from ecorl.engines.models.decoder_config import DecoderConfig

_NOT_PUBLISHED = "not published"


_FrozenStage = Literal["reward", "reference"]
"""Stages that a card can serve."""


def estimate(
    model: Annotated[Path, typer.Option(help="Folder of a checkpoint, or its config.json.")],
    tokens: Annotated[int, typer.Option(min=1, help="Tokens of all rows together.")],
    rows: Annotated[int, typer.Option(min=1, help="Rows that share them evenly.")] = 1,
    stage: Annotated[
        _FrozenStage | None, typer.Option(help="By default what the model's head is for.")
    ] = None,
    reference: Annotated[
        Path | None,
        typer.Option(help="A reference model that shares the card with this reward model."),
    ] = None,
    device: Annotated[
        list[str] | None,
        typer.Option(help="Profile of a card; more than once.", show_default="u55c v80"),
    ] = None,
    ii: Annotated[
        Literal["1", "2", "4", "all"], typer.Option(help="Initiation interval of the loops.")
    ] = "all",
    json_path: Annotated[
        Path | None, typer.Option("--json", help="Write all figures to this file.")
    ] = None,
) -> None:
    """Model time and energy of a model's forward pass on a card.

    Also its tokens per joule, and where in the card's memory the model lies. Nothing is run or
    measured. Models that do not fit the card's memory end with exit code 2.
    """
    from ecorl.devices import load_profile
    from ecorl.engines.fpga import estimate as estimates
    from ecorl.engines.fpga.cycles.model import INTERVALS
    from ecorl.files import write_whole

    path = writable(json_path, "--json")
    works = _workloads(model, reference, stage, tokens, rows)
    profiles = [load_profile(name) for name in device or ("u55c", "v80")]
    intervals = INTERVALS if ii == "all" else (int(ii),)
    found = [[estimates.estimate(w, p, intervals) for w in works] for p in profiles]
    places = [estimates.placed(works, p) for p in profiles]
    stand = estimates.standing_of_kernels()
    if path is not None:
        data = estimates.as_data([one for own in found for one in own], places, stand)
        with writing(path, "--json"):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, json.dumps(data, indent=1, allow_nan=False) + "\n")
    for line in _report(found, places, stand):
        say(line)


def _workloads(
    model: Path, reference: Path | None, stage: _FrozenStage | None, tokens: int, rows: int
) -> list[ScoringWorkload]:
    """Make the workloads of the model and of the reference beside it."""
    from ecorl.engines.fpga.estimate import workload

    name, config = _config(model)
    own = Stage.REWARD if config.is_reward else Stage.REFERENCE
    if stage is not None:
        own = Stage(stage)
    if reference is None:
        return [workload(name, config, own, tokens, rows)]
    if own is not Stage.REWARD:
        raise ConfigError("--reference", str(reference), "given beside a reward model only")
    other, other_config = _config(reference)
    return [
        workload(name, config, own, tokens, rows),
        workload(other, other_config, Stage.REFERENCE, tokens, rows),
    ]


def _config(path: Path) -> tuple[str, DecoderConfig]:
    from ecorl.engines.fpga.kernels.interfaces import check_widths
    from ecorl.engines.models.decoder_config import read_config, read_config_file

    path = path.expanduser()
    if path.is_file():
        file, config = path, read_config_file(path)
        name = path.resolve().parent.name if path.name == "config.json" else path.stem
    else:
        file, config, name = path / "config.json", read_config(path), path.resolve().name
    check_widths(config, file)
    return name, config


def _report(
    found: Sequence[Sequence[CardEstimate]], places: Sequence[HbmLayout | None], stand: str
) -> list[str]:
    works = [one.workload for one in found[0]]
    lines = [
        f"{w.name} as {w.stage} model: {len(w.batch.lengths):,} row"
        f"{'s' if len(w.batch.lengths) > 1 else ''}, {w.n_tokens:,} tokens"
        for w in works
    ]
    lines.append(stand)
    for own, placement in zip(found, places, strict=True):
        for one in own:
            title = f"{one.profile.title} ({one.profile.name})"
            lines += ["", f"{title}: {one.workload.name}, {one.workload.stage}"]
            lines += _known(one) if one.runs else _unknown(one)
        lines += ["", *_placement_lines(placement, own[0].profile.name)]
    return lines


def _known(one: CardEstimate) -> list[str]:
    from ecorl.engines.fpga.cycles.hbm import BURST_EFFICIENCY, LATENCY_CYCLES, WEIGHT_CHANNELS
    from ecorl.report.render.numbers import share

    first = one.runs[0]
    lines = [f"II = {first.ii}", *_kernel_table(first), _summary(first)]
    assert one.one_channel is not None
    lines.append(
        f"gemm_int8 uses {share(first.array_efficiency)} of its array; with its weights in one "
        f"channel instead of {WEIGHT_CHANNELS} {share(one.one_channel.array_efficiency)}; all "
        f"kernels together {share(first.forward_efficiency)}"
    )
    lines.append(
        f"assumed: pipeline depths; {share(BURST_EFFICIENCY, 0)} of a channel's data-sheet rate; "
        f"{LATENCY_CYCLES} cycles to a first word"
    )
    if len(one.runs) > 1:
        lines += ["", *_sweep(one.runs)]
    return lines


def _kernel_table(run: Run) -> list[str]:
    from ecorl.report.render.lines import aligned
    from ecorl.report.render.numbers import duration, share

    card = run.card
    heads = ("kernel", "cycles", "HBM stalls", "time", "share")
    cells = [
        (k.kernel, f"{k.cycles:,.0f}", share(k.stall_cycles / k.cycles),
         duration(k.time_s), share(k.time_s / card.time_s))
        for k in card.kernels
    ]  # fmt: skip
    for name, time_s in (("kernel starts", card.launch_s),
                         (f"link, {card.link_bytes:,} bytes", card.link_s)):  # fmt: skip
        cells.append((name, "", "", duration(time_s), share(time_s / card.time_s)))
    return aligned([heads, *cells])


def _summary(run: Run) -> str:
    from ecorl.report.render.numbers import duration, figure, joules

    return (
        f"modelled: {duration(run.card.time_s)}, {joules(run.card.energy_j)}, "
        f"{figure(run.tokens_per_s)} tokens/s, {figure(run.tokens_per_j)} tokens/J"
    )


def _sweep(runs: Sequence[Run]) -> list[str]:
    from ecorl.report.render.lines import aligned
    from ecorl.report.render.numbers import duration, figure, joules, share

    heads = ("II", "time", "energy", "tokens/s", "tokens/J", "HBM stalls", "array efficiency")
    cells = [
        (str(run.ii), duration(run.card.time_s), joules(run.card.energy_j),
         figure(run.tokens_per_s), figure(run.tokens_per_j),
         share(run.card.stall_s / run.card.kernel_s), share(run.array_efficiency))
        for run in runs
    ]  # fmt: skip
    return aligned([heads, *cells])


def _unknown(one: CardEstimate) -> list[str]:
    """Report on a card whose profile lacks its clock, its DSPs in use or its power."""
    from ecorl.report.render.lines import aligned
    from ecorl.report.render.numbers import duration

    lines = [f"the profile holds no {', '.join(one.missing)}: nothing stands in for them"]
    heads = ("kernel", "cycles without stalls, one array", "time")
    cells = [
        (name, f"{cycles:,.0f}", _NOT_PUBLISHED)
        for name, cycles in one.ideal_cycles.items()
        if cycles
    ]
    lines += aligned([heads, *cells])
    unknown = ("time", "energy", "tokens/s", "tokens/J")
    lines.append(", ".join(f"{what}: {_NOT_PUBLISHED}" for what in unknown))
    if one.memory_s is not None:
        lines.append(f"memory traffic alone takes at least {duration(one.memory_s)}")
    if one.link_s is not None:
        lines.append(f"the link takes {duration(one.link_s)}")
    return lines


def _placement_lines(placement: HbmLayout | None, device: str) -> list[str]:
    from ecorl.report.render.lines import aligned

    if placement is None:
        return [f"HBM placement: the profile {device} holds no memory_channels"]
    size = placement.channel_bytes >> 20
    lines = [
        f"HBM placement on {device}: {placement.n_channels} channels of {size:,} MiB, modelled"
    ]
    cells = [
        (r.group, f"{r.n_bytes:,}", _spans(r.channels)) for r in placement.regions if r.n_bytes
    ]
    all_bytes = placement.n_channels * placement.channel_bytes
    cells.append(("all", f"{placement.n_bytes:,}", f"of {all_bytes:,}"))
    return lines + aligned([("what", "bytes", "channels"), *cells])


def _spans(channels: Sequence[int]) -> str:
    """Write channel numbers, consecutive ones as a range: ``0-3, 7``."""
    runs: list[list[int]] = []
    for channel in channels:
        if runs and channel == runs[-1][1] + 1:
            runs[-1][1] = channel
        else:
            runs.append([channel, channel])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
