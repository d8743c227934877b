"""``ecorl fpga``: whether a model can be offloaded to a card, bitstreams, and the service."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ecorl.cli.exits import help_without_command
from ecorl.cli.fpga.estimate import estimate
from ecorl.cli.fpga.serve import serve
from ecorl.cli.output import check_text, make_console, say, writable, writing
from ecorl.errors import BuildError, ConfigError

if TYPE_CHECKING:
    from ecorl.engines.fpga.bitstream.build import BuildRequest
    from ecorl.engines.fpga.bitstream.manifest import Manifest
    from ecorl.engines.fpga.validation.scoring import HeldOutPairs, TokenPair
    from ecorl.engines.fpga.verdict import OffloadVerdict, PrecisionFigures, PrecisionStudy


def bitstream(
    target: Annotated[
        str,
        typer.Option(help="csim, sw_emu, hw_emu or hw; all but csim need Vitis 2024.1 or later."),
    ] = "csim",
    platform: Annotated[
        str | None,
        typer.Option(
            help="AMD's development platform, or its .xpfm file.", show_default="the U55C's"
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder of the products.")] = Path("bitstreams"),
    work: Annotated[Path, typer.Option(help="Folder for build_dir.<target>.")] = Path(),
    check: Annotated[
        list[str] | None,
        typer.Option(help="csim or cosim: simulate each kernel's test bench; hw_emu and hw only."),
    ] = None,
) -> None:
    """Build a bitstream with its manifest.

    One for emulation can be built anywhere, one for a card takes AMD's Vitis. Exit code 2 when
    Vitis or the platform is absent, 1 when a step fails or the design misses its clock (what was
    built is kept then, and its manifest says so).
    """
    from ecorl.engines.fpga.bitstream.build import build_bitstream

    request = _build_request(target, platform, out, work, check or ())
    manifest = build_bitstream(request, say)
    for line in _facts(manifest):
        say(line)
    say(f"bitstream: {request.product}")
    if manifest.timing_met is False:
        raise BuildError(
            f"{request.product} misses its clock of {manifest.target_clock_mhz:g} MHz: it is kept, "
            "its manifest says timing_met = false, and no host loads it"
        )


def _build_request(
    target: str, platform: str | None, out: Path, work: Path, checks: Sequence[str]
) -> BuildRequest:
    """Turn the options into a request for the build.

    Raises:
        ConfigError: one of them is not what its option takes.
    """
    from ecorl.engines.fpga.bitstream.build import CHECKS, BuildRequest
    from ecorl.engines.fpga.bitstream.manifest import BitstreamTarget
    from ecorl.engines.fpga.kernels.banks import PLATFORM

    if target not in set(BitstreamTarget):
        raise ConfigError("--target", target, f"one of {', '.join(BitstreamTarget)}")
    for each in checks:
        if each not in CHECKS:
            raise ConfigError("--check", each, f"one of {', '.join(CHECKS)}")
    if platform is not None and not platform.strip():
        raise ConfigError("--platform", platform, "the name of a platform")
    out, work = _folder("--out", out), _folder("--work", work)
    return BuildRequest(BitstreamTarget(target), platform or PLATFORM, out, work, tuple(checks))


def _folder(key: str, path: Path) -> Path:
    """Check a folder that exists or can be made."""
    try:
        folder = path.expanduser()
        str(folder).encode()  # it is printed
        if not folder.exists() or folder.is_dir():
            return folder
    except (OSError, RuntimeError, ValueError) as error:
        raise ConfigError(key, str(path), f"a folder ({error})") from error
    raise ConfigError(key, str(path), "a folder")


def _facts(manifest: Manifest) -> list[str]:
    """The facts of the manifest as lines."""
    known = {True: "met", False: "not met", None: "not known"}
    clock = "not known" if manifest.clock_mhz is None else f"{manifest.clock_mhz:g} MHz"
    lines = [
        f"target {manifest.target} for {manifest.platform} ({manifest.part}), by {manifest.tool}",
        f"provenance: {manifest.provenance or 'not known: reports of the synthesis are missing'}",
    ]
    if manifest.target == "hw":
        lines.append(
            f"clock: {clock}, {manifest.target_clock_mhz:g} MHz asked for; timing "
            f"{known[manifest.timing_met]}"
        )
    for kernel, shortfalls in (manifest.synthesis or {}).items():
        lines += [f"{kernel} falls short of its qor.json: {what}" for what in shortfalls]
    for kind, use in (manifest.utilisation or {}).items():
        used, percent = use.get("used"), use.get("percent")
        if used is not None and percent is not None:
            lines.append(f"{kind}: {used:,.10g} used, {percent:.3g} %")
    return lines


REFUSED = 1
"""Exit code when the model should not be offloaded."""

_NAMED = 5
"""Texts without a score that are named one by one, at most."""


def validate(
    model: Annotated[Path, typer.Option(help="Folder of the reward model (Hugging Face).")],
    pairs: Annotated[
        Path,
        typer.Option(help="Held-out pairs, JSON lines: chosen_ids and rejected_ids, or texts."),
    ],
    budget: Annotated[
        float, typer.Option(min=0, max=1, help="Largest share of pairs that INT8 may flip.")
    ] = 0.03,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Verdict file; by default ecorl_int8.json in the model's folder, which the engine "
            "obeys."
        ),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Only the first so many different pairs.")
    ] = None,
    card: Annotated[str, typer.Option(help="Profile of the card.")] = "u55c",
    threads: Annotated[
        int | None, typer.Option(min=1, max=256, help="Host threads; by default all cores.")
    ] = None,
) -> None:
    """Compare INT8 and other weights with float32 on preference pairs.

    FP16, INT8 and INT4 are compared on pairs that training did not see; a model whose INT8 weights
    differ by more than the budget is refused. A refusal is kept beside the model: no run offloads
    it then. Exit code 0 accepted, 1 refused.
    """
    from ecorl.engines.fpga import verdict
    from ecorl.engines.fpga.kernels.interfaces import check_widths
    from ecorl.engines.fpga.validation import scoring
    from ecorl.engines.fpga.validation.scoring import read_pairs
    from ecorl.engines.models.checkpoint import load_decoder

    if not math.isfinite(budget):
        raise ConfigError("--budget", budget, "a share from 0 to 1")
    folder = model.expanduser()
    check_text(folder, "--model")
    checkpoint = load_decoder(folder)
    check_widths(checkpoint.config, folder / "config.json")
    path = _target(out, folder / verdict.VERDICT_FILE)
    found = read_pairs(pairs.expanduser(), folder, checkpoint.config.shape.vocab_size, limit)
    study = _study(folder, found.pairs, card, threads or len(os.sched_getaffinity(0)))
    digest = verdict.checkpoint_digest(checkpoint)
    judged = verdict.judge(study, scoring.INT8, budget, digest)
    with writing(path, "--out"):
        verdict.write_verdict(judged, path)
    for line in _lines(study, found, judged, path):
        say(line)
    if not judged.accepted:
        raise typer.Exit(REFUSED)


def _target(out: Path | None, default: Path) -> Path:
    """Check the verdict's path first, so that no work is lost to an unwritable folder."""
    path = writable(out or default, "--out")
    assert path is not None
    parent = next(p for p in path.parents if p.exists())
    if not os.access(parent, os.W_OK):
        raise ConfigError("--out", str(path), "a file that can be written")
    return path


def _study(folder: Path, pairs: Sequence[TokenPair], card: str, threads: int) -> PrecisionStudy:
    from ecorl.engines.fpga.validation.scoring import n_scores, study
    from ecorl.runtime.progress import progress

    with progress("scoring", n_scores(pairs), make_console(stderr=True)) as bar:
        return study(
            folder, pairs, device=card, threads=threads, tell=lambda n, what: bar.advance(n, what)
        )


def _lines(
    study: PrecisionStudy, held_out: HeldOutPairs, judged: OffloadVerdict, path: Path
) -> list[str]:
    from ecorl.engines.fpga.validation.scoring import INT8

    by = f"{judged.provenance} by the C-simulation"
    told = [*study.lines(), f"against float32 by transformers; {by}"]
    if held_out.n_repeated:
        told.append(f"left out as repetitions of a pair: {held_out.n_repeated:,}")
    told += [_unanswered(found, held_out.pairs) for found in study.precisions if found.unanswered]
    int8 = study.of(INT8).flips
    if int8.share is None or int8.interval is None:
        told.append("offload refused: INT8 answers no pair")
    else:
        allowed = f"at most {_percent(judged.budget)} is allowed"
        flips = f"INT8 flips {int8.n_flips:,} of {int8.n_pairs:,} pairs, {_percent(int8.share)}"
        word = "accepted" if judged.accepted else "refused"
        told.append(f"offload {word}: {flips}; {allowed}")
        low, high = int8.interval
        if low <= judged.budget < high:
            told.append("the budget lies within the interval: more pairs would make it certain")
    if not judged.accepted:
        told.append(
            "what could help: pairs like the texts of the run; another checkpoint of the model "
            "(what makes outliers in its activations alone cannot be equalised); a larger --budget "
            "where order matters less. Until then a run leaves the model where your framework "
            "computes, and says so once"
        )
    return [*told, f"verdict: {path}"]


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def _unanswered(found: PrecisionFigures, pairs: Sequence[TokenPair]) -> str:
    from ecorl.engines.fpga.verdict import SIDES

    named = [f"line {pairs[pair].line} {SIDES[side]}" for pair, side in found.unanswered[:_NAMED]]
    more = len(found.unanswered) - len(named)
    rest = f" and {more:,} more" if more > 0 else ""
    return (
        f"{found.name} has no answer to {', '.join(named)}{rest}; their pairs count nowhere, and "
        "in a run the trainer itself computes such texts"
    )


fpga_app = typer.Typer(help="Check whether a model fits a card; build bitstreams; serve scores.")


@fpga_app.callback(invoke_without_command=True)
def _top(context: typer.Context) -> None:
    """Say whether a model can be offloaded to a card, what it would take there, or serve it."""
    # Read when the libraries are loaded, which the commands do.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    help_without_command(context)


fpga_app.command()(validate)
fpga_app.command()(estimate)
fpga_app.command()(bitstream)
fpga_app.command()(serve)
