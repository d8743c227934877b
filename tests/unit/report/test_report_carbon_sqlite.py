"""The run's grams against sums taken straight from the SQLite file, by another road."""

from __future__ import annotations

import random
import sqlite3

import pytest

from ecorl.control import Command, Why
from ecorl.grid import MarginalIntensity
from ecorl.ledger import LEDGER_FILE, DeviceRecord
from ecorl.records import EventKind, Provenance, Stage

COUNTED_AT = """
SELECT g_per_kwh FROM intensity JOIN attempt USING (attempt)
WHERE kind = :kind AND attempt = :attempt
  AND t_s - monotonic_anchor_s + unix_anchor_s <= :t
ORDER BY intensity.id DESC LIMIT 1
"""
"""What was heard last before an instant; each value of these runs holds from then on."""

PUE_AT = """
SELECT pue FROM pue WHERE attempt = :attempt AND start_unix_s <= :t ORDER BY start_unix_s DESC
LIMIT 1
"""

READINGS = "SELECT attempt, t_s, power_w * 0.5 FROM raw_sample"
"""Each of the readings, two a second, holds until the next, and the last to the attempt's end."""


def many(run, seed: int) -> None:
    """Two attempts on one device that is read, with pauses, gaps and a PUE series; no overlaps.

    All changes come at whole seconds, so that none comes between a reading and the next.
    """
    draw = random.Random(seed)
    run.config(accounting={"pue": 1.3})
    for attempt in range(2):
        begin = 1000 + 5000 * attempt
        if attempt:
            run.resume(float(begin), from_step=3)
        run.ledger.device(DeviceRecord("gpu0", "h100", Provenance.MEASURED, "nvml", 55.0))
        for i in range(4):
            run.pue(begin + 60.0 * i - 30.0, draw.choice([None, 1.1, 1.4, 1.9]))
        paused = False
        for step in range(20):
            at = begin + 10 * step
            told = draw.choice([None, draw.uniform(50, 700), draw.uniform(50, 700)])
            run.heard(float(at), told, interval_s=10.0)
            if draw.random() < 0.7:
                told = draw.choice([None, draw.uniform(500, 900)])
                run.heard(float(at), told, MarginalIntensity, interval_s=10.0)
            paused = draw.random() < 0.3
            run.chose(float(at), Command.PAUSE if paused else Command.RUN, Why.DIRTY)
            watts = 60.0 if paused else draw.uniform(200, 600)
            run.power("gpu0", range(at, at + 10), watts)
            if not paused:
                span = (at + 1, at + 1 + draw.randrange(1, 8))
                run.ran(Stage.GENERATION, span, watts * (span[1] - span[0]), iteration=step)
        run.clock(begin + 200.0)
        run.ledger.event(EventKind.STOP, "")


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_grams_straight_from_sqlite(run, seed):
    many(run, seed)
    report = run.report()
    run.ledger.close()
    db = sqlite3.connect(run.folder / LEDGER_FILE)
    assert db.execute("SELECT count(*) FROM raw_sample").fetchone()[0] == 2 * 2 * 200
    offsets = dict(db.execute("SELECT attempt, unix_anchor_s - monotonic_anchor_s FROM attempt"))

    def at(sql, attempt, t_s, **kwargs):
        values = {"attempt": attempt, "t": t_s + 0.1 + offsets[attempt], **kwargs}
        row = db.execute(sql, values).fetchone()
        return None if row is None else row[0]

    def is_paused(attempt, t_s):
        row = db.execute(
            "SELECT command FROM gear_choice WHERE attempt = ? AND t_s <= ? ORDER BY id DESC",
            (attempt, t_s + 0.1),
        ).fetchone()
        return row is not None and row[0] == "pause"

    readings = db.execute(READINGS).fetchall()
    for kind in ("average", "marginal"):
        grams = known_j = unknown_j = paused_g = 0.0
        for attempt, t_s, joules in readings:
            g_per_kwh = at(COUNTED_AT, attempt, t_s, kind=kind)
            pue = at(PUE_AT, attempt, t_s)
            if g_per_kwh is None or pue is None:
                unknown_j += joules
                continue
            known_j += joules
            grams += joules / 3.6e6 * pue * g_per_kwh
            paused_g += is_paused(attempt, t_s) * joules / 3.6e6 * pue * g_per_kwh
        (column,) = (c for c in report.footprint.columns if c.kind == kind)
        assert column.emitted.known_j == pytest.approx(known_j, rel=1e-5)
        assert column.emitted.unknown_j == pytest.approx(unknown_j, rel=1e-5)
        assert column.emitted.carbon_g == pytest.approx(grams, rel=1e-5)
        by_cause = {cause: e.carbon_g for cause, e in column.by_cause.items()}
        assert by_cause["paused"] == pytest.approx(paused_g, rel=1e-5)
        generated_g = 0.0
        runs = db.execute("SELECT attempt, start_t_s, end_t_s, energy_j FROM execution "
                          "WHERE NOT superseded")  # fmt: skip
        for attempt, start, end, joules in runs.fetchall():
            n = int(end - start)
            for second in range(int(start), int(end)):
                factors = at(COUNTED_AT, attempt, second, kind=kind), at(PUE_AT, attempt, second)
                if None not in factors:
                    generated_g += joules / n / 3.6e6 * factors[0] * factors[1]
        assert by_cause["generation"] == pytest.approx(generated_g, rel=1e-5)
