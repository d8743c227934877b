"""How exact is the integral of power, intensity and PUE, where it is known in closed form?

All three are constant by pieces, over hours, and their pieces do not fit each other: the exact
integral is then a sum over overlaps, done here in fractions. Both paths of a run are held against
it: `IntensityTimeline.emitted` alone, and all of it from a feed and power readings through a real
`Ledger`, written and read back as a report reads it.
"""

from __future__ import annotations

import contextlib
import math
import tempfile
import time
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ecorl.carbon.feeds.local import ReplayFeed
from ecorl.carbon.series import Series
from ecorl.carbon.timeline import Emitted, IntensityTimeline, PueTimeline, timelines
from ecorl.carbon.traces.trace import GridTrace
from ecorl.errors import LedgerError
from ecorl.grid import AverageIntensity, Gas, Scope
from ecorl.ledger import LEDGER_FILE, AttemptRow, IntensityRow, Ledger, LedgerReader, PueRow
from ecorl.records import PowerSample, Provenance
from ecorl.report.energy.evidence import Attribution
from ecorl.report.energy.readings import attempt_spans, device_readings
from ecorl.units import JOULES_PER_KWH

FEED_STEP_S = 1800.0
SPEED = 1.37
"""The recording is played this much faster: its intervals are of 1313.9 s, which nothing fits."""

LEAD_S = 613.7
"""How long before the power the first interval begins, s."""

PUE_STEPS = ((-1e6, 1.2), (3333.3, 1.31), (9876.5, 1.17))
"""From when, s after the run's begin, which power usage effectiveness counts."""

READINGS_EVERY_S = 0.9
"""Time between two power readings, s: none of the seconds that a ledger keeps."""

_DEVICE, _SOURCE = "gpu0", "made up"


class GridPiece(NamedTuple):
    """A time of constant power.

    Attributes:
        start_s, end_s: begin and end, s after the run's begin.
        power_w: W.
    """

    start_s: float
    end_s: float
    power_w: float


class MadeUpRun(NamedTuple):
    """A made-up run.

    Attributes:
        g_per_kwh: the feed's values, each for `FEED_STEP_S` / `SPEED` s, the first from `LEAD_S`
            before the run's begin on.
        pieces: powers, in the order of time, without gaps.
    """

    g_per_kwh: tuple[float, ...]
    pieces: tuple[GridPiece, ...]


def integration_errors(n_intensities: int = 10, seed: int = 0) -> dict[str, Any]:
    """Integrate made-up runs on both paths, and compare.

    Args:
        n_intensities: number of intervals of the feed.
        seed: of what is made up.

    Returns:
        Length of the run in hours, the numbers of intervals of the feed and of pieces of power, and
        relative errors of its emissions: ``timeline``, of `IntensityTimeline.emitted` for the
        pieces as they are; ``ledger``, by way of the ledger from power readings of the same pieces;
        ``restless``, the same where each reading brings another power.

    Raises:
        LedgerError: when the ledger dropped a row.
    """
    calm = made_run(n_intensities, seed)
    restless = made_run(n_intensities, seed, (READINGS_EVERY_S, READINGS_EVERY_S))
    return {
        "hours": calm.pieces[-1].end_s / 3600.0,
        "n_intensities": n_intensities,
        "n_pieces": len(calm.pieces),
        "timeline": _error(by_timeline(calm), calm),
        "ledger": _error(by_ledger(calm), calm),
        "restless": _error(by_ledger(restless), restless),
    }


def made_run(
    n_intensities: int, seed: int, lengths_s: tuple[float, float] = (400.0, 2500.0)
) -> MadeUpRun:
    """Make up a run that ends before its feed does.

    Args:
        n_intensities: number of intervals of the feed.
        seed: of the draws.
        lengths_s: shortest and longest piece of power, s.
    """
    rng = np.random.default_rng(seed)
    g_per_kwh = tuple(float(v) for v in rng.uniform(80.0, 600.0, n_intensities).round(1))
    whole_s = n_intensities * FEED_STEP_S / SPEED - 2.0 * LEAD_S
    pieces, start_s = [], 0.0
    while start_s < whole_s:
        end_s = start_s + float(rng.uniform(*lengths_s))
        pieces.append(GridPiece(start_s, end_s, round(float(rng.uniform(60.0, 700.0)), 1)))
        start_s = end_s
    last = pieces[-1]
    pieces[-1] = last._replace(end_s=max(whole_s, last.start_s + 1.0))
    return MadeUpRun(g_per_kwh, tuple(pieces))


def exact_g(made: MadeUpRun) -> Fraction:
    """Emissions of a made-up run in closed form, g: a sum over overlaps.

    Args:
        made: the run.
    """
    step_s, lead_s = Fraction(FEED_STEP_S) / Fraction(SPEED), Fraction(LEAD_S)
    pue_ends_s = [start_s for start_s, _ in PUE_STEPS[1:]] + [1e6]
    pues = [
        (Fraction(start_s), Fraction(end_s), Fraction(pue))
        for (start_s, pue), end_s in zip(PUE_STEPS, pue_ends_s, strict=True)
    ]
    total = Fraction(0)
    for piece in made.pieces:
        first = math.floor((Fraction(piece.start_s) + lead_s) / step_s)
        last = min(math.floor((Fraction(piece.end_s) + lead_s) / step_s), len(made.g_per_kwh) - 1)
        for number in range(first, last + 1):
            low = max(Fraction(piece.start_s), number * step_s - lead_s)
            high = min(Fraction(piece.end_s), (number + 1) * step_s - lead_s)
            rate = Fraction(piece.power_w) * Fraction(made.g_per_kwh[number])
            for start_s, end_s, pue in pues:
                total += rate * pue * max(Fraction(0), min(high, end_s) - max(low, start_s))
    return total / Fraction(JOULES_PER_KWH)


def by_timeline(made: MadeUpRun, began_s: float = 1.7e9 + 0.123) -> Emitted:
    """Emissions by `IntensityTimeline` alone.

    Args:
        made: the run.
        began_s: when it began, s since 1970.
    """
    rows = [IntensityRow(1, 0.0, AverageIntensity, value) for value in feed_values(made, began_s)]
    attempts = [AttemptRow(1, 0, began_s, 0.0, 1, 2.0)]
    pues = [PueRow(1, began_s + start_s, pue) for start_s, pue in PUE_STEPS]
    ends_s = {1: began_s + made.pieces[-1].end_s}
    timeline = IntensityTimeline(rows, attempts, ends_s, PueTimeline(pues, attempts, None))
    start_s, end_s, power_w = np.array(made.pieces, np.float64).T
    return timeline.emitted(began_s + start_s, began_s + end_s, power_w * (end_s - start_s))


def by_ledger(made: MadeUpRun) -> Emitted:
    """Emissions from a ledger that holds a run's intensities and power readings.

    Each piece is read at its begin and every `READINGS_EVERY_S` from then on; a reading stands
    until the next. The ledger keeps energies by seconds.

    Args:
        made: the run.

    Raises:
        LedgerError: when the ledger dropped a row.
    """
    with tempfile.TemporaryDirectory(prefix="ecorl-integral-") as folder:
        path = Path(folder) / LEDGER_FILE
        ledger = Ledger.create(path, run_id="integral", config_toml="", meta={}, raw_samples=0)
        with contextlib.closing(ledger):
            with LedgerReader(path) as reader:
                (attempt,) = reader.attempts()
            began_s = time.monotonic()
            began_unix_s = began_s + attempt.unix_anchor_s - attempt.monotonic_anchor_s
            for value in feed_values(made, began_unix_s):
                ledger.control.intensity(AverageIntensity, value)
            for start_s, pue in PUE_STEPS:
                ledger.control.pue(began_unix_s + start_s, pue)
            ledger.samples(readings(made.pieces, began_s))
        if ledger.dropped_rows:
            raise LedgerError(f"{path}: {ledger.dropped_rows} rows were dropped")
        with LedgerReader(path) as reader:
            attempts = reader.attempts()
            spans = attempt_spans(attempts, reader.last_times())
            attribution = Attribution(timelines(reader, None), attempts, spans)
            draw, _ = attribution.of_readings(device_readings(reader.power_seconds(), spans))
    found = draw.emissions.average
    assert found is not None
    return found


def feed_values(made: MadeUpRun, began_s: float) -> tuple[AverageIntensity, ...]:
    """What the run's feed tells, by replay of a recording with the run's values.

    Args:
        made: the run.
        began_s: when it began, s since 1970.
    """
    series = Series(0.0, FEED_STEP_S, np.array(made.g_per_kwh))
    trace = GridTrace(
        name="made up",
        path=Path("made_up.csv"),
        series=series,
        scope=Scope.LIFE_CYCLE,
        gas=Gas.CO2E,
        factors="made up",
        mix=None,
        renewable=None,
        estimated=None,
        stated=None,
        repairs=(),
    )
    feed = ReplayFeed(trace, starts_at_s=0.0, began_s=began_s - LEAD_S, speed=SPEED)
    until_s = began_s - LEAD_S + (len(series.values) + 1) * FEED_STEP_S / SPEED
    return feed.history(began_s - LEAD_S - FEED_STEP_S, until_s)


def readings(pieces: Sequence[GridPiece], began_s: float) -> list[PowerSample]:
    """Power readings of a run, with one of 0 W at its end.

    Args:
        pieces: its powers.
        began_s: when it began, monotonic s.
    """
    drawn = []
    for piece in pieces:
        n = max(1, math.ceil((piece.end_s - piece.start_s) / READINGS_EVERY_S - 1e-9))
        drawn += [(piece.start_s + i * READINGS_EVERY_S, piece.power_w) for i in range(n)]
    return [
        PowerSample(_DEVICE, began_s + t_s, power_w, None, None, Provenance.MODELLED, _SOURCE)
        for t_s, power_w in [*drawn, (pieces[-1].end_s, 0.0)]
    ]


def _error(found: Emitted, made: MadeUpRun) -> float:
    """Relative error; what was not found is an error of the whole."""
    exact = exact_g(made)
    return float(abs(Fraction(found.carbon_g or 0.0) - exact) / exact)
