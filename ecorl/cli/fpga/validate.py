"""``ecorl fpga validate``: compare INT8 with float on held-out pairs, and keep the verdict."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ecorl.cli.output import check_text, make_console, say, writable, writing
from ecorl.errors import ConfigError

if TYPE_CHECKING:
    from ecorl.engines.fpga.validation.scoring import HeldOutPairs, TokenPair
    from ecorl.engines.fpga.verdict import OffloadVerdict, PrecisionFigures, PrecisionStudy

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
