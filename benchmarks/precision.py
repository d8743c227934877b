"""What do FP16, INT8 and INT4 weights do to a reward model's order? The paper's Table 3, redone.

The demo's reward model, trained on preference pairs by the demo's own preparation, on the demo's
held-out pairs and further pairs of answers to the same held-out prompts: the share that a precision
orders differently from float32 (apart: in the tenth of the pairs with the smallest margin), and by
how much scores move. Then variants of the model that compute the same function with channels 50
times as large in each place where that is possible, in INT8 with equalisation and without. FP16 is
torch's on the CPU; INT4 is a study of the weights alone, which run on the INT8 kernels.
`ecorl fpga validate` does the first part for any model.

Wilson's intervals take pairs for independent; pairs share answers, so these are a little too small.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path

import numpy as np
from rich.console import Console

from benchmarks.harness import Figure, FigureTable, Target, run_benchmark
from benchmarks.harness.outliers import PLACES, plant, write_checkpoint
from ecorl.engines.fpga.csim.cache import cache_folder
from ecorl.engines.fpga.csim.decoder import Int8Decoder
from ecorl.engines.fpga.csim.library import CsimLibrary
from ecorl.engines.fpga.validation import scoring
from ecorl.engines.fpga.validation.scoring import (
    PairTexts,
    TokenPair,
    decoder_scores,
    different,
    exact_scores,
    read_pairs,
)
from ecorl.engines.fpga.verdict import (
    DEFAULT_BUDGET,
    FlipShare,
    PrecisionFigures,
    PrecisionStudy,
    study_of,
)
from ecorl.engines.models.checkpoint import DecoderCheckpoint, load_decoder
from ecorl.engines.models.decoder_config import read_shape
from ecorl.engines.models.equalise import equalised
from ecorl.engines.protocol import Float32, Int64
from roll_adapters.demo.prepare import prepare
from roll_adapters.trl.inputs.rows import read_rows

FIGURES = FigureTable("precision")
SEED = 42
SIZE = 50.0
"""By how much an outlier channel is larger than it was."""

MIN_PAIRS = 2_000
"""Fewer say too little: at this many, no flip at all still leaves up to 0.2 %."""

N_PAIRS, QUICK_PAIRS = 4_096, 256
NAMES = {scoring.FP16: "fp16", scoring.INT8: "int8", scoring.INT4: "int4"}
PUBLISHED = {"int8": "0.38 %", "int4": "3.80 %"}
BUDGET = Target(high=DEFAULT_BUDGET)


def measure(options: argparse.Namespace) -> tuple[dict[str, object], list[Figure]]:
    """Measure; returns the settings that the figures depend on, and the figures."""
    made = prepare(cache_folder().parent / "tasks", SEED, 256, Console(file=sys.stderr))
    held_out = read_pairs(made.pairs, made.reward, read_shape(made.reward).vocab_size)
    rows = read_rows(made.pairs, ("prompt",))
    pairs = more_pairs(held_out.pairs, [rows[pair.line - 1]["prompt"] for pair in held_out.pairs],
                       QUICK_PAIRS if options.quick else N_PAIRS)  # fmt: skip
    study = scoring.study(made.reward, pairs)
    planted = variants(made.reward, pairs, SIZE)
    config: dict[str, object] = {
        "model": "the demo's reward model", "seed": SEED, "outlier_size": SIZE,
        "n_pairs": study.n_pairs, "n_demo_pairs": len(held_out.pairs),
        "n_low_margin": study.n_low_margin, "score_std": study.score_std,
        "study": [asdict(found) for found in study.precisions],
        "variants": [asdict(variant) for variant in planted],
    }  # fmt: skip
    enough = options.quick or study.n_pairs >= MIN_PAIRS
    return config, [*study_figures(study, enough=enough), *variant_figures(study, planted)]


def more_pairs(
    pairs: Sequence[TokenPair], prompts: Sequence[str], n_pairs: int, seed: int = 0
) -> tuple[TokenPair, ...]:
    """Pairs, followed by others of two answers to one prompt, up to `n_pairs` different ones.

    Which of two answers was liked better does not matter here: a flip is of the model's own order.

    Args:
        pairs: different pairs.
        prompts: the prompt of each.
        n_pairs: how many are wanted; fewer where the answers do not give so many.
        seed: of the order in which further pairs are taken.
    """
    answers: dict[str, dict[bytes, Int64]] = {}
    for pair, prompt in zip(pairs, prompts, strict=True):
        for row in (pair.chosen, pair.rejected):
            answers.setdefault(prompt, {})[row.tobytes()] = row
    crossed = [
        TokenPair(one, other, line=0)
        for rows in answers.values()
        for one, other in combinations(rows.values(), 2)
    ]
    order = np.random.default_rng(seed).permutation(len(crossed))
    return different([*pairs, *(crossed[i] for i in order)], n_pairs).pairs


def study_figures(study: PrecisionStudy, *, enough: bool = True) -> Iterable[Figure]:
    """Flips and shifts of each precision; no shares where the pairs are not enough."""
    for found in study.precisions:
        name = NAMES[found.name]
        said = f"; the paper prints {PUBLISHED[name]}, another model" if name in PUBLISHED else ""
        for pairs, flips in (("", found.flips), ("_low_margin", found.low_margin)):
            key, words = "engine.{name}_rank_flip_share{pairs}", {"name": name, "pairs": pairs}
            target = BUDGET if name == "int8" and not pairs else None
            why = None if enough else f"{study.n_pairs} pairs, {MIN_PAIRS} are needed"
            yield _share(key, flips, target, why, seed=SEED, printed=said, **words)
        for statistic, value in (("mean", found.shift_mean), ("p99", found.shift_p99)):
            words = {"name": name, "statistic": statistic}
            key = "engine.{name}_score_shift_{statistic}"
            yield FIGURES.figure(key, value, std=study.score_std, words=words)


def variant_figures(study: PrecisionStudy, planted: Sequence[Variant]) -> Iterable[Figure]:
    """Flips of each variant, and its mean shift over that of the plain model in INT8."""
    plain = study.of(scoring.INT8).shift_mean
    for variant in planted:
        for raw, found, goal, how in (
            ("", variant.equalised, BUDGET, "equalised, as the engine runs it"),
            ("_raw", variant.raw, None, "without equalisation"),
        ):
            key, words = "engine.int8_outliers_{place}", {"place": variant.place, "raw": raw}
            yield _share(f"{key}_flips{{raw}}", found.flips, goal, how=how, **words)
            shift = found.shift_mean
            ratio = None if shift is None or not plain else shift / plain
            yield FIGURES.figure(f"{key}_shift{{raw}}", ratio, how=how, words=words)
    largest = max((variant.function_shift for variant in planted), default=0.0)
    yield FIGURES.figure("engine.outliers_function_shift", largest / study.score_std)


def _share(
    key: str, flips: FlipShare, target: Target | None, why: str | None = None, **words: object
) -> Figure:
    if why or flips.share is None or flips.interval is None:
        return FIGURES.figure(key, None, why=why, target=target, words=words)
    spread = {"n": flips.n_pairs, "n_flips": flips.n_flips, "interval_95": list(flips.interval)}
    return FIGURES.figure(key, flips.share, spread, target=target, words=words)


# ---------------------------------------------------------------- variants


@dataclass(frozen=True, slots=True)
class Variant:
    """A model with outlier channels in one place, or in all.

    Attributes:
        place: one of `benchmarks.harness.outliers.PLACES`, or ``all``.
        function_shift: largest difference of its float32 score to the model's own.
        equalised: INT8 as the engine runs it.
        raw: INT8 without equalisation.
    """

    place: str
    function_shift: float
    equalised: PrecisionFigures
    raw: PrecisionFigures


def variants(checkpoint: Path, pairs: Sequence[TokenPair], size: float = SIZE) -> list[Variant]:
    """Run INT8 on a variant for each place and one for all, against each variant's own float32.

    Args:
        checkpoint: folder of a reward model.
        pairs: held-out pairs, which the engine can run.
        size: by how much an outlier is larger than the channel was.

    Raises:
        CheckpointError: when the model cannot be loaded.
    """
    texts, model = PairTexts.of(pairs), load_decoder(checkpoint)
    plain = exact_scores(checkpoint, texts, 1, _silent)
    return [
        _variant(plant(model, places, size), name, texts, plain)
        for name, places in [*((place, (place,)) for place in PLACES), ("all", PLACES)]
    ]


def _variant(planted: DecoderCheckpoint, name: str, texts: PairTexts, plain: Float32) -> Variant:
    with tempfile.TemporaryDirectory(prefix="ecorl-outliers-") as folder:
        write_checkpoint(planted, Path(folder))
        exact = exact_scores(Path(folder), texts, 1, _silent)
        stored = load_decoder(folder)
        scores = [_int8(model, texts) for model in (equalised(stored), stored)]
    study = study_of(exact[texts.index], {str(i): v[texts.index] for i, v in enumerate(scores)})
    shift = float(np.abs(exact - plain).max())
    return Variant(name, shift, study.of("0"), study.of("1"))


def _int8(checkpoint: DecoderCheckpoint, texts: PairTexts) -> Float32:
    decoder = Int8Decoder(checkpoint, CsimLibrary.load("fast"))
    return decoder_scores(decoder, texts, np.ones(len(texts.rows), bool), _silent, "")


def _silent(_n: int, _what: str) -> None:
    """Show no progress."""


if __name__ == "__main__":
    sys.exit(run_benchmark("precision", measure))
