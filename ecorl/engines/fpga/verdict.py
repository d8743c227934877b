"""The verdict of a validation: whether a model may be offloaded in INT8.

``ecorl fpga validate`` writes it beside the checkpoint, `FpgaEngine` enforces it: a refusal of the
same weights is an error; one of other weights or kernels is stale and only logged.

A study of held-out preference pairs stands behind it, the paper's Table 3 for any model: the share
of pairs that a precision (FP16, INT8, INT4 weights) orders other than float32 does, that share in
the tenth of the pairs with the smallest margin, where a flip is most likely, and the mean and 99th
percentile of the absolute score shift. A text without a finite score in a precision is named, and
its pairs are left out of that precision's shares.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from ecorl.engines.fpga.csim.build import kernels_digest
from ecorl.engines.models.checkpoint import DecoderCheckpoint
from ecorl.engines.protocol import Float32
from ecorl.errors import CheckpointError
from ecorl.files import write_whole
from ecorl.records import Provenance
from ecorl.statistics import wilson_interval

SIDES = ("chosen", "rejected")


@dataclass(frozen=True, slots=True)
class FlipShare:
    """Share of pairs that a precision orders differently.

    Attributes:
        n_pairs: pairs with both scores in both precisions.
        n_flips: those in another order; a tie in one precision only counts as a flip.
        share: of flips, or None without pairs.
        interval: Wilson's 95 % interval of the share, or None without pairs.
    """

    n_pairs: int
    n_flips: int
    share: float | None
    interval: tuple[float, float] | None

    def __str__(self) -> str:
        if self.share is None or self.interval is None:
            return "-"
        low, high = (100 * end for end in self.interval)
        return f"{100 * self.share:.3g} % ({low:.2g} to {high:.2g} %)"


@dataclass(frozen=True, slots=True)
class PrecisionFigures:
    """One precision against float32.

    Attributes:
        name: of the precision.
        flips: over all pairs.
        low_margin: over the tenth of the pairs whose float32 scores are nearest to each other.
        shift_mean: mean absolute score shift over all texts, in units of the score; None without.
        shift_p99: its 99th percentile; None without.
        unanswered: texts without a finite score, as (pair, side); side 0 is the chosen one.
    """

    name: str
    flips: FlipShare
    low_margin: FlipShare
    shift_mean: float | None
    shift_p99: float | None
    unanswered: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class PrecisionStudy:
    """All precisions on the same pairs.

    Attributes:
        n_pairs: held-out pairs.
        n_low_margin: size of the lowest-margin tenth.
        score_std: standard deviation of the exact scores, to compare the shifts with.
        precisions: one entry a precision.
    """

    n_pairs: int
    n_low_margin: int
    score_std: float
    precisions: tuple[PrecisionFigures, ...]

    def of(self, name: str) -> PrecisionFigures:
        """The figures of one precision.

        Raises:
            KeyError: when it was not studied.
        """
        return {found.name: found for found in self.precisions}[name]

    def lines(self) -> list[str]:
        """The study as a table in plain text."""
        heads = (
            "",
            "flips (95 % interval)",
            "lowest-margin tenth",
            "mean shift",
            "99th percentile",
        )
        cells = [heads, *(_cells(p) for p in self.precisions)]
        widths = [max(len(row[i]) for row in cells) for i in range(len(heads))]
        table = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in cells
        ]
        return [
            *table,
            f"{self.n_pairs:,} pairs, {self.n_low_margin:,} of them in the lowest-margin tenth; "
            f"shifts beside scores with a standard deviation of {self.score_std:.3g}",
        ]


def low_margin_tenth(exact: Float32) -> np.ndarray:
    """Indices of the tenth of the pairs with the smallest exact margin, at least one.

    Args:
        exact: ``[n, 2] float32``, chosen and rejected.
    """
    margins = np.abs(exact[:, 0] - exact[:, 1])
    return np.argsort(margins, kind="stable")[: math.ceil(len(exact) / 10)]


def study_of(exact: Float32, scores: Mapping[str, Float32]) -> PrecisionStudy:
    """Compare precisions with the exact scores.

    Args:
        exact: float32 scores ``[n, 2]``, chosen and rejected, all finite, at least one pair.
        scores: those of each precision by its name; NaN or infinity for a text without a score.

    Raises:
        ValueError: for exact scores that are not finite, or shapes that differ.
    """
    if not len(exact) or not np.isfinite(exact).all():
        raise ValueError("exact scores must be there and finite")
    low = low_margin_tenth(exact)
    return PrecisionStudy(
        n_pairs=len(exact),
        n_low_margin=len(low),
        score_std=float(np.std(exact.astype(np.float64))),
        precisions=tuple(_figures(name, exact, values, low) for name, values in scores.items()),
    )


def _figures(name: str, exact: Float32, scores: Float32, low: np.ndarray) -> PrecisionFigures:
    if scores.shape != exact.shape:
        raise ValueError(f"{name}: scores {scores.shape}, exact {exact.shape}")
    answered = np.isfinite(scores)
    shifts = np.abs(scores.astype(np.float64) - exact)[answered]
    return PrecisionFigures(
        name=name,
        flips=_flips(exact, scores),
        low_margin=_flips(exact[low], scores[low]),
        shift_mean=float(shifts.mean()) if shifts.size else None,
        shift_p99=float(np.percentile(shifts, 99)) if shifts.size else None,
        unanswered=tuple((int(pair), int(side)) for pair, side in np.argwhere(~answered)),
    )


def _flips(exact: Float32, scores: Float32) -> FlipShare:
    both = np.isfinite(scores).all(axis=1)
    n = int(both.sum())
    if not n:
        return FlipShare(0, 0, None, None)
    ours, theirs = scores[both], exact[both]
    differ = np.sign(ours[:, 0] - ours[:, 1]) != np.sign(theirs[:, 0] - theirs[:, 1])
    n_flips = int(differ.sum())
    return FlipShare(n, n_flips, n_flips / n, wilson_interval(n_flips, n))


def _cells(found: PrecisionFigures) -> Sequence[str]:
    shifts = [found.shift_mean, found.shift_p99]
    return (
        found.name,
        str(found.flips),
        str(found.low_margin),
        *("-" if value is None else f"{value:.3g}" for value in shifts),
    )


logger = logging.getLogger(__name__)

VERDICT_FILE = "ecorl_int8.json"
LAST_NO_PAD = "last_no_pad"
"""Where rewards are read; see `reward_position`. A verdict of another place is none."""

DEFAULT_BUDGET = 0.03
"""Largest share of flipped pairs: the paper's budget for training noise (section 3.3)."""


@dataclass(frozen=True, slots=True)
class OffloadVerdict:
    """Result of a validation.

    Attributes:
        checkpoint_digest: of the weights and config.json; see `checkpoint_digest`.
        kernels_digest: of the kernels' sources, which computed the scores.
        n_pairs: held-out pairs.
        rank_flip_share: of INT8, or None when it scored no pair.
        budget: largest share that was allowed.
        accepted: whether there is a share, and it is within the budget.
        figures: the whole study as plain data.
        provenance: of the figures.
        read_at: where rewards were read.
    """

    checkpoint_digest: str
    kernels_digest: str
    n_pairs: int
    rank_flip_share: float | None
    budget: float
    accepted: bool
    figures: Mapping[str, object]
    provenance: str = str(Provenance.EMULATED)
    read_at: str = LAST_NO_PAD


def judge(study: PrecisionStudy, precision: str, budget: float, digest: str) -> OffloadVerdict:
    """Compare the share of flips of a precision with the budget.

    Args:
        study: of the model.
        precision: the one that would be offloaded with.
        budget: largest share of flipped pairs, 0 to 1.
        digest: of the checkpoint.
    """
    share = study.of(precision).flips.share
    return OffloadVerdict(
        checkpoint_digest=digest,
        kernels_digest=kernels_digest(),
        n_pairs=study.n_pairs,
        rank_flip_share=share,
        budget=budget,
        accepted=share is not None and share <= budget,
        figures=asdict(study),
    )


def checkpoint_digest(checkpoint: DecoderCheckpoint) -> str:
    """SHA-256 over config.json and the files with the weights, as ``sha256:...``.

    Raises:
        CheckpointError: when one cannot be read.
    """
    files = {stored.path for stored in checkpoint.tensors.values()}
    whole = hashlib.sha256()
    for path in (checkpoint.path / "config.json", *sorted(files)):
        try:
            with path.open("rb") as file:
                part = hashlib.file_digest(file, "sha256")
        except OSError as error:
            raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from error
        whole.update(path.name.encode() + b"\0" + part.digest())
    return f"sha256:{whole.hexdigest()}"


def write_verdict(verdict: OffloadVerdict, path: Path) -> None:
    """Write a verdict as JSON; the file is complete or absent.

    Args:
        verdict: what to write.
        path: where; its folder is made if need be.

    Raises:
        OSError: when the folder cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(asdict(verdict), indent=1, allow_nan=False) + "\n")


def obey(checkpoint: DecoderCheckpoint) -> None:
    """Raise for a model that a validation of the same weights refused.

    Raises:
        CheckpointError: naming the file and the share of flips.
    """
    path = checkpoint.path / VERDICT_FILE
    try:
        found = json.loads(path.read_text("utf-8"))
        digest, accepted = found["checkpoint_digest"], found["accepted"]
        kernels = found["kernels_digest"]
        if found["read_at"] != LAST_NO_PAD:
            raise ValueError(f"read_at = {found['read_at']!r}, this ecorl reads {LAST_NO_PAD!r}")
        share, budget = found["rank_flip_share"], float(found["budget"])
        what = "INT8 answered no held-out pair"
        if share is not None:
            what = f"INT8 flips {100 * float(share):.3g} % of the held-out pairs"
    except FileNotFoundError:
        logger.info("%s: INT8 was not validated (ecorl fpga validate)", checkpoint.path)
        return
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        logger.warning("%s is no verdict and is passed over (%s)", path, error)
        return
    if digest != checkpoint_digest(checkpoint):
        logger.warning("%s is stale: it is of other weights; run ecorl fpga validate again", path)
    elif kernels != kernels_digest():
        logger.warning("%s is stale: it is of other kernels; run ecorl fpga validate again", path)
    elif accepted is not True:
        raise CheckpointError(
            f"{path}: {what}, allowed is at most {100 * budget:g} %: offload refused; "
            "ecorl fpga validate judges anew, also by another --budget"
        )
