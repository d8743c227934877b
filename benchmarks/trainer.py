"""Does the training stage obey at no cost to the training?

The optimizer at gamma = 1 against torch's AdamW; a small language model, trained here from nothing
on the language reference that comes with Python, with gears that the default controller switches
between BF16 and FP8, against BF16 alone, and without gamma; the step after a switch; memory by
gradient accumulation. A CPU has no FP8 units: its rounding is simulated, so that losses are
emulated, and times of FP8 are those of the simulation. ``--long`` trains longer, with more seeds,
and all ablations with each.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict

from benchmarks.harness import Figure, run_benchmark
from benchmarks.studies.trainer import convergence
from benchmarks.studies.trainer.accumulation import accumulated_trainings, accumulation_figure
from benchmarks.studies.trainer.convergence_figures import MIN_SEEDS, convergence_figures
from benchmarks.studies.trainer.elastic import ray_here, width_change
from benchmarks.studies.trainer.language_model import corpus
from benchmarks.studies.trainer.lost_steps import lost_steps
from benchmarks.studies.trainer.optimizers import optimizer_figures
from benchmarks.studies.trainer.switching import switch_figure, switch_times
from benchmarks.studies.trainer.weight_casts import weight_casts

FLAGS = {"--long": "more seeds, longer trainings, all ablations"}
"""Options without a value, and what the help says of them."""

BOX_S = 75.0
"""Time of everything, s."""

STUDY_S, SWITCH_S, OPTIMIZER_S, CAST_S, WIDTH_S = 28.0, 5.0, 2.0, 1.0, 5.0
"""Time of the trainings, the switches, the optimizer's steps, the casts and the changes of width,
s."""

LONG_SEEDS = 5


def measure(options: argparse.Namespace) -> tuple[dict[str, object], list[Figure]]:
    """Measure; returns the settings that the figures depend on, and the figures."""
    part = 0.2 if options.quick else (options.box_s or BOX_S) / BOX_S
    recipe = convergence.TrainingRecipe()
    if options.quick or options.long:
        recipe = convergence.QUICK if options.quick else convergence.LONG
    if options.long:
        found = convergence.study(LONG_SEEDS, recipe, None, convergence.ABLATIONS, ablate_all=True)
    else:
        n_seeds, ablations = (1, ()) if options.quick else (MIN_SEEDS, convergence.FIRST_SEED)
        found = convergence.study(n_seeds, recipe, part * STUDY_S, ablations)
    figures = [
        *optimizer_figures(part * OPTIMIZER_S),
        *convergence_figures(found),
        switch_figure(switch_times(part * SWITCH_S)),
        weight_casts(part * CAST_S),
        accumulation_figure(accumulated_trainings()),
    ]
    with ray_here():
        n_steps = 12 if options.quick else 40
        figures += [width_change(part * WIDTH_S), lost_steps(n_steps)]
    settings = {"recipe": asdict(recipe), "text": corpus().digest, "long": options.long}
    return settings, figures


if __name__ == "__main__":
    sys.exit(run_benchmark("trainer", measure, flags=FLAGS))
