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
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from itertools import combinations

import numpy as np
from rich.console import Console

from benchmarks.harness.command import run_benchmark
from benchmarks.harness.figures import Figure, Target, missing
from benchmarks.studies.precision import Variant, variants
from ecorl.engines.fpga.csim.cache import cache_folder
from ecorl.engines.fpga.validation import scoring
from ecorl.engines.fpga.validation.scoring import TokenPair, different, read_pairs
from ecorl.engines.fpga.verdict import DEFAULT_BUDGET, FlipShare, PrecisionFigures, PrecisionStudy
from ecorl.engines.models.decoder_config import read_shape
from ecorl.engines.protocol import Int64
from ecorl.records import Provenance
from roll_adapters.demo.prepare import prepare
from roll_adapters.trl.inputs.rows import read_rows

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
        target = BUDGET if name == "int8" else None
        said = f"; the paper prints {PUBLISHED[name]}, another model" if name in PUBLISHED else ""
        note = f"pairs ordered differently from float32; demo's reward model, seed {SEED}{said}"
        for suffix, flips, goal in (
            ("", found.flips, target),
            ("_low_margin", found.low_margin, None),
        ):
            id = f"engine.{name}_rank_flip_share{suffix}"
            if not enough:
                yield missing(id, "1", f"{study.n_pairs} pairs, {MIN_PAIRS} are needed", goal)
            else:
                yield _share(id, flips, goal, note)
        for suffix, value in (("mean", found.shift_mean), ("p99", found.shift_p99)):
            id = f"engine.{name}_score_shift_{suffix}"
            note = f"|shift| of a reward; rewards' standard deviation is {study.score_std:.3g}"
            yield _figure(id, value, note)


def variant_figures(study: PrecisionStudy, planted: Iterable[Variant]) -> Iterable[Figure]:
    """Flips of each variant, and its mean shift over that of the plain model in INT8."""
    plain = study.of(scoring.INT8)
    largest = 0.0
    for variant in planted:
        largest = max(largest, variant.function_shift)
        for suffix, found, goal in (
            ("", variant.equalised, BUDGET),
            ("_raw", variant.raw, None),
        ):
            how = "without equalisation" if suffix else "equalised, as the engine runs it"
            id = f"engine.int8_outliers_{variant.place}"
            note = f"50x outlier channels: {variant.place}; {how}"
            yield _share(f"{id}_flips{suffix}", found.flips, goal, note)
            yield _figure(f"{id}_shift{suffix}", _ratio(found, plain),
                          f"mean shift over the plain model's; {how}")  # fmt: skip
    yield Figure("engine.outliers_function_shift", largest / study.score_std, "1",
                 Provenance.MEASURED, target=Target(high=1e-4),
                 note="largest float32 difference of a variant to the model, over the rewards' "
                 "standard deviation: the variants compute the same function")  # fmt: skip


def _ratio(found: PrecisionFigures, plain: PrecisionFigures) -> float | None:
    if found.shift_mean is None or not plain.shift_mean:
        return None
    return found.shift_mean / plain.shift_mean


def _share(id: str, flips: FlipShare, target: Target | None, note: str) -> Figure:
    if flips.share is None or flips.interval is None:
        return missing(id, "1", "no pair was answered", target)
    spread = {"n": flips.n_pairs, "n_flips": flips.n_flips, "interval_95": list(flips.interval)}
    return Figure(id, flips.share, "1", Provenance.EMULATED, spread, target, note)


def _figure(id: str, value: float | None, note: str) -> Figure:
    if value is None:
        return missing(id, "1", "no text was answered")
    return Figure(id, value, "1", Provenance.EMULATED, note=note)


if __name__ == "__main__":
    sys.exit(run_benchmark("precision", measure))
