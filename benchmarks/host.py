"""Does XRT's host run the kernels rightly, and what do its transfers hide behind?

Rewards and log-probs of GRPO groups go through real XRT on its noop driver, with the C-simulation
behind it, and are compared bit by bit with the C-simulation called directly. Beside that, the share
of the transfers' time (inputs, results and the records of rows; the weights are left out) in which
a kernel was running from their beginning to their end. Kernels take longer in emulation than on a
card, so the share tells that transfers find a kernel to hide behind, not how long a card's take.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.engine import Workload, grpo_rows
from benchmarks.harness import Figure, FigureTable, run_benchmark
from benchmarks.studies.card_host import HostRun, logprob_run, reward_run
from benchmarks.studies.peers import ModelSize, make_lm_checkpoint, make_reward_checkpoint
from ecorl.bench.stats import median, spread_of
from ecorl.engines.fpga.card.opening import can_emulate

FIGURES = FigureTable("host")
NO_XRT = "XRT with its noop driver, or pybind11, is not on this machine"


@dataclass(frozen=True, slots=True)
class HostWorkload:
    """The batches that go through XRT, for each of reward and reference."""

    size: ModelSize
    n_rows: int
    length: int
    group: int = 8
    n_rounds: int = 5
    seed: int = 0


FULL = HostWorkload(ModelSize(128, 4, 384, 4, 2, 2048), 128, 160)
SMALL = HostWorkload(ModelSize(64, 2, 128, 2, 2, 256), 96, 160, n_rounds=3)


def measure(options: argparse.Namespace) -> tuple[dict[str, object], list[Figure]]:
    """Measure; returns the settings that the figures depend on, and the figures."""
    work = SMALL if options.quick else FULL
    config: dict[str, object] = asdict(work)
    if not can_emulate():
        names = ("host.xrt_noop_mismatches", "host.overlap_share")
        return config, FIGURES.all_missing(names, NO_XRT, judged=False)
    rows, counts = grpo_rows(
        Workload(work.size, work.n_rows, work.length, seed=work.seed), work.group, work.length // 2
    )
    with tempfile.TemporaryDirectory(prefix="ecorl-bench-host-") as name:
        folder = Path(name)
        reward, reference = folder / "reward", folder / "reference"
        make_reward_checkpoint(reward, work.size, max_positions=work.length, seed=work.seed)
        make_lm_checkpoint(reference, work.size, max_positions=work.length, seed=work.seed)
        runs = {
            "rewards": reward_run(reward, rows, counts, work.n_rounds),
            "log-probs": logprob_run(reference, rows, counts, work.n_rounds),
        }
    return config, _figures(runs)


def _figures(runs: dict[str, HostRun]) -> list[Figure]:
    n = sum(run.bits.n for run in runs.values())
    n_different = sum(run.bits.n_different for run in runs.values())
    shares = [share for run in runs.values() for share in run.hidden_share]
    spread = {
        **spread_of(shares),
        **{f"median of {name}": median(list(run.hidden_share)) for name, run in runs.items()},
        "groups": sum(run.n_groups for run in runs.values()),
    }
    return [
        FIGURES.figure("host.xrt_noop_mismatches", n_different, {"n": n}),
        FIGURES.figure("host.overlap_share", median(shares), spread),
        FIGURES.figure("host.faults", sum(run.n_faults for run in runs.values())),
    ]


if __name__ == "__main__":
    sys.exit(run_benchmark("host", measure))
