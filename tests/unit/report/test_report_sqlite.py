"""The report's totals against sums taken straight from the SQLite file, by another road."""

from __future__ import annotations

import json
import random
import sqlite3

import pytest

from ecorl.ledger import LEDGER_FILE, DeviceRecord
from ecorl.records import Provenance, Stage
from ecorl.report.render.page import render_json

STAGES = (Stage.GENERATION, Stage.REWARD, Stage.REFERENCE, Stage.ACTOR_TRAIN)


def many(run, seed: int) -> None:
    """Sixty executions on two devices, some without energy or time, and a resume between."""
    draw = random.Random(seed)
    accounting = {"pue": 1.3, "intensity_g_per_kwh": 321.0, "source": "test"}
    run.config(accounting=accounting)
    run.ledger.device(DeviceRecord("gpu0", "h100", Provenance.MEASURED, "nvml", 55.0))
    run.ledger.device(DeviceRecord("fpga0", "u55c", Provenance.MODELLED, "cycle model", 21.0))
    for attempt in range(2):
        at = 1000.0 * (attempt + 1)
        if attempt:
            run.resume(at, from_step=4)
        run.stated(**accounting)
        for iteration in range(1 + 4 * attempt, 9 + 4 * attempt):
            for stage in STAGES:
                offload = stage in (Stage.REWARD, Stage.REFERENCE) and draw.random() < 0.6
                span = (at, at + draw.uniform(0.5, 3.0))
                at = span[1] + draw.uniform(0.0, 0.3)
                device = {"device": "fpga0:u55c", "provenance": Provenance.MODELLED}
                run.ran(
                    stage,
                    span,
                    draw.choice([None, draw.uniform(1, 500), draw.uniform(1, 500)]),
                    iteration=iteration,
                    tokens=draw.randrange(0, 400),
                    time_s=draw.choice([None, 0.2]) if offload else -1.0,
                    **(device if offload else {}),
                )


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_totals_straight_from_sqlite(run, seed):
    many(run, seed)
    report = run.report()
    run.ledger.close()
    db = sqlite3.connect(run.folder / LEDGER_FILE)

    def one(sql: str):
        return db.execute(sql).fetchone()[0]

    last = report.spending.columns[-1]
    run_s = sum(
        end - start
        for start, end in db.execute(
            "SELECT monotonic_anchor_s, max(end_t_s) FROM attempt JOIN execution USING (attempt) "
            "GROUP BY attempt"
        )
    )
    # On one GPU whose windows never overlap, busy time is their sum; the card's is modelled.
    busy = one("SELECT sum(end_t_s - start_t_s) FROM execution WHERE device_id = 'gpu0'")
    card = one("SELECT total(time_s) FROM execution WHERE device_id = 'fpga0'")
    idle_j, card_idle_j = 55.0 * (run_s - busy), 21.0 * (run_s - card)
    executed = one("SELECT sum(energy_j) FROM execution WHERE device_id = 'gpu0'")
    by_card = one("SELECT sum(energy_j) FROM execution WHERE device_id = 'fpga0'")
    beside, both = report.spending.card, report.spending.with_card
    assert beside.energy_j == pytest.approx(by_card + card_idle_j, rel=1e-12)
    assert beside.by_cause["idle"] == pytest.approx(card_idle_j, rel=1e-9)
    assert both.energy_j == pytest.approx(last.energy_j + beside.energy_j, rel=1e-12)
    assert last.energy_j == pytest.approx(executed + idle_j, rel=1e-12)
    assert last.by_cause["idle"] == pytest.approx(idle_j, rel=1e-9)
    superseded = one("SELECT sum(energy_j) FROM execution WHERE superseded AND device_id = 'gpu0'")
    assert last.by_cause["superseded"] == pytest.approx(superseded, rel=1e-12)
    tokens = one(
        "SELECT sum(n_output_tokens) FROM execution WHERE stage = 'generation' AND NOT superseded"
    )
    assert report.spending.n_output_tokens == tokens
    assert last.tokens_per_joule == pytest.approx(tokens / last.energy_j, rel=1e-12)
    assert both.tokens_per_joule == pytest.approx(tokens / both.energy_j, rel=1e-12)
    assert last.carbon_g == pytest.approx((executed + idle_j) / 3.6e6 * 1.3 * 321.0, rel=1e-12)
    for row in report.stages:
        known = db.execute(
            "SELECT sum(energy_j), count(*), count(energy_j), sum(energy_j) FILTER "
            "(WHERE n_output_tokens > 0), sum(n_output_tokens) FILTER (WHERE energy_j IS NOT NULL)"
            " FROM execution WHERE stage = ? AND device = ? AND NOT superseded",
            (str(row.stage), row.device),
        ).fetchone()
        assert (row.n_calls, row.n_with_energy) == known[1:3]
        assert row.energy_j == (known[0] if known[0] is None else pytest.approx(known[0]))
        if row.edi_j_per_token is not None:
            assert row.edi_j_per_token == pytest.approx(known[3] / known[4])
    # Calls without a figure make a lower bound, not a smaller sum.
    assert one("SELECT count(*) - count(energy_j) FROM execution") > 0
    assert last.at_least


def test_where_nothing_is_known_no_figure_is_nought(run):
    """All energies and device times missing: not one 0 stands where None belongs."""
    run.config()
    for i in (1, 2):
        run.ran(Stage.GENERATION, (1000 * i, 1001 * i), None, iteration=i)
        card = {"device": "fpga0:u55c", "provenance": Provenance.MODELLED}
        run.ran(Stage.REWARD, (1000 * i, 1001 * i), None, iteration=i, time_s=None, **card)
    data = json.loads(render_json(run.report()))
    assert data["spending"]["columns"] == []
    for row in data["stages"]:
        missing = ["energy_j", "mean_power_w", "edi_j_per_token", "edi_spread"]
        missing += ["time_s"] * (row["stage"] == "reward")
        assert [row[name] for name in missing] == [None] * len(missing)
    assert all(p["energy_j"] is None for p in data["spending"]["parts"])
    for c in data["comparisons"]:
        assert (c["ratio"], c["saved_j"], c["card_j"]) == (None, None, None)
    assert (data["balance"], data["card_timeline"], data["expectation"]) == (None, None, None)
    assert (data["barriers"]["total_s"], data["barriers"]["p50_s"]) == (None, None)
