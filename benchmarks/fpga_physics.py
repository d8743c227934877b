"""What can a U55C do at all, and where does it take fewer joules a token than an H100?

The EcoRL-Sched paper's card figures stand beside their limits and our cycle model. Then comes the
break-even map over model sizes, batches, row lengths, the GPU's precision and MFU, and who pays for
idle power, for the card at three levels: our cycle model, an ideal HLS design, and the bound of the
silicon. Nothing is measured: the paper's figures are published, all others modelled, and nothing
depends on the machine that runs this. What rests on assumed figures of the H100 has the interval
that the ends of those figures give. Beside the JSON lie the whole map (``..._map.json``) and its
picture (``....png``).
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rich.console import Console

from benchmarks.harness import Figure, run_benchmark
from benchmarks.harness.command import default_path
from benchmarks.studies.physics.audit import checks, violations
from benchmarks.studies.physics.figures import figures
from benchmarks.studies.physics.map import QUICK, SIDES, Axes
from benchmarks.studies.physics.map_files import draw, write_map
from benchmarks.studies.physics.paper import rows
from benchmarks.studies.physics.passes import (
    ACCOUNTINGS,
    BUSY_ENOUGH,
    HUNDREDTH,
    IDLE_HIGH_W,
    TENTH,
)
from benchmarks.studies.physics.ranges import Maps, RangedMap, ends_of, ranged_maps
from benchmarks.studies.physics.tables import WIDTH, WORDS, how, short_range, tables
from ecorl.bench.machine import describe_machine
from ecorl.devices import DeviceProfile, load_profile
from ecorl.engines.fpga.estimate import declared_dsps, standing_of_kernels
from ecorl.errors import ConfigError

NAME = "fpga_physics"
N_COLOURS = 128


def measure(options: argparse.Namespace) -> tuple[dict[str, object], list[Figure]]:
    """Measure; returns the settings that the figures depend on, and the figures."""
    card, gpu = load_profile("u55c"), load_profile("h100_sxm")
    axes = QUICK if options.quick else Axes()
    maps = ranged_maps(card, gpu, axes)
    declared = [n for n in declared_dsps().values() if n is not None]
    printed = rows(card, gpu, sum(declared) if declared else None)
    checked = checks(card, gpu)
    broken = violations(printed, checked)
    console = Console(width=WIDTH)
    for line in how(card, gpu):
        console.print(line, highlight=False)
    for table in tables(maps.ranged, printed, checked, broken):
        console.print(table)
    _print_full_power(console, gpu.value("active_w"), maps)
    _print_idle(console, gpu.value("idle_w"), maps)
    _write(options, maps.ranged, gpu)
    settings: dict[str, object] = {
        **axes._asdict(),
        "accountings": [one.key for one in ACCOUNTINGS],
        "standing": standing_of_kernels(),
        "how": list(how(card, gpu)),
    }
    return settings, figures(maps, printed, checked, broken, card, gpu)


def _print_full_power(console: Console, full_w: float, maps: Maps) -> None:
    """Print the map once more with the H100 at full power where memory rules: kind to the card."""
    for side in SIDES:
        parts = []
        for ranged in (maps.ranged, maps.full_power):
            won = [100 * one.won_share(side, BUSY_ENOUGH) for one in ranged.all]
            best = [one.best_of(side, BUSY_ENOUGH).ratio for one in ranged.all]
            words = {"won": won, "won_low": min(won), "won_high": max(won), "best": best}
            words["ends"] = short_range(ends_of(best))
            parts.append(WORDS["full_power_part"].format(**words))
        line = WORDS["full_power"].format(side=side, parts=parts, full_w=full_w)
        console.print(line, highlight=False)


def _print_idle(console: Console, idle_w: float, maps: Maps) -> None:
    """Print the best cells at a low duty once more with the H100 idle at `IDLE_HIGH_W`."""
    for side in SIDES:
        parts = []
        for accounting in (TENTH, HUNDREDTH):
            best = [one.found.best_of(side, (accounting,)).ratio for one in maps[:2]]
            ends = ends_of(one.best_of(side, (accounting,)).ratio for one in maps.ranged.all)
            words = {"best": best, "ends": short_range(ends), "duty": accounting.duty}
            parts.append(WORDS["idle_part"].format(**words))
        words = {"idle_w": idle_w, "idle_high_w": IDLE_HIGH_W, "parts": ", ".join(parts)}
        console.print(WORDS["idle"].format(side=side, **words), highlight=False)


def _write(options: argparse.Namespace, ranged: RangedMap, gpu: DeviceProfile) -> None:
    """Write map and picture beside the result; of a quick pass only what is asked for."""
    json: Path | None = options.json
    if json is None and not options.quick:
        json = default_path(NAME, describe_machine().slug)
    plot: Path | None = options.plot or (json.with_suffix(".png") if json else None)
    option, path = "--json", json
    try:
        if json is not None:
            path = json.with_name(f"{json.stem}_map.json")
            write_map(ranged, path)
            print(f"written: {path}")
        if plot is not None:
            option, path = ("--plot" if options.plot else "--json"), plot
            draw(ranged, gpu, plot)
            _shrink(plot)
            print(f"written: {plot}")
    except OSError as error:
        allowed = f"a place to write to ({error.strerror})"
        raise ConfigError(option, str(path), allowed) from error


def _shrink(path: Path) -> None:
    """Reduce a picture to `N_COLOURS` colours: a third of the bytes without a visible loss.

    Pillow comes with matplotlib.
    """
    from PIL import Image

    with Image.open(path) as picture:
        fewer = picture.convert("RGB").quantize(N_COLOURS)
    fewer.save(path, optimize=True)


def options(parser: argparse.ArgumentParser) -> None:
    """Add this benchmark's own options."""
    parser.add_argument("--plot", type=Path, metavar="PATH", help="where the picture (PNG) goes")


if __name__ == "__main__":
    sys.exit(run_benchmark(NAME, measure, options=options))
