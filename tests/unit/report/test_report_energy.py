"""Energy, EDI and carbon of small runs against figures worked out by hand."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ecorl.ledger import DeviceRecord, ExecutionRow
from ecorl.records import (
    Action,
    BarrierWait,
    EnergyMethod,
    Provenance,
    Stage,
    StageEnergy,
    StageResult,
)
from ecorl.report.energy.causes import CAUSES, simulated_cards, spending
from ecorl.report.energy.evidence import Evidence
from ecorl.report.energy.model import Accounting
from ecorl.report.energy.readings import length, merged, minus
from ecorl.report.energy.stages import comparisons, stage_rows
from ecorl.report.render.spending_tables import energy_section
from tests.examples import examples

MODELLED, MEASURED = Provenance.MODELLED, Provenance.MEASURED


def column(report, title):
    return next(c for c in report.spending.columns if c.title == title)


def part(report, device_id, cause):
    return next(p for p in report.spending.parts if (p.device_id, p.cause) == (device_id, cause))


def test_a_run_by_hand(run):
    accounting = {"pue": 1.5, "intensity_g_per_kwh": 400.0, "source": "test"}
    run.config(accounting=accounting)
    run.stated(**accounting)
    run.standard()
    report = run.report()
    assert report.head.run_time_s == 20.0
    assert report.head.state == "finished"
    assert (report.head.n_steps_done, report.head.n_steps_planned) == (1, 60)

    # gpu0 was busy 16 of 20 s; of its idle 4 s (30 W) the training thread waited 1.5 s.
    assert part(report, "gpu0", "barrier wait").energy_j == pytest.approx(45.0)
    assert part(report, "gpu0", "idle").energy_j == pytest.approx(75.0)
    assert part(report, "gpu0", "idle").provenance is MODELLED
    # The card: 20 W x (20 s - 0.5 s of device time); its host time does not matter.
    assert part(report, "fpga0", "idle").energy_j == pytest.approx(390.0)

    measured, modelled = column(report, "measured"), column(report, "modelled")
    together = column(report, "together")
    assert measured.energy_j == pytest.approx(1680.0)
    assert measured.by_cause == {"generation": 1000.0, "scoring": 80.0, "training": 600.0}
    assert modelled.energy_j == pytest.approx(120.0)
    assert (modelled.useful_j, modelled.wasted_j) == pytest.approx((0.0, 120.0))
    assert together.energy_j == pytest.approx(1800.0)
    assert together.provenance is MODELLED
    # The card was simulated: in no column of the machine.
    card, both = report.spending.card, report.spending.with_card
    assert card.by_cause == {"scoring": 40.0, "idle": pytest.approx(390.0)}
    assert (card.useful_j, card.wasted_j) == pytest.approx((40.0, 390.0))
    assert both.energy_j == pytest.approx(2230.0)
    assert both.tokens_per_joule == pytest.approx(100 / 2230)
    # The tokens took the joules of both columns: neither has a figure of its own.
    assert (measured.tokens_per_joule, modelled.tokens_per_joule) == (None, None)
    assert together.tokens_per_joule == pytest.approx(100 / 1800)
    assert together.carbon_g == pytest.approx(1800 / 3.6e6 * 1.5 * 400)
    assert card.carbon_g == pytest.approx(430 / 3.6e6 * 1.5 * 400)
    assert not any(c.at_least for c in report.spending.columns)
    assert report.spending.gaps == ()


def test_a_wait_in_which_the_device_works_is_no_barrier_waste(run):
    run.standard()
    run.clock(1012.5)
    run.ledger.barrier(BarrierWait(1, Stage.REFERENCE, 1.0, 10, 0, 0))
    report = run.report()
    # 1011.5 to 1012 lies within the first wait, 1012 to 1012.5 within an execution of gpu0.
    assert part(report, "gpu0", "barrier wait").time_s == pytest.approx(1.5)


def test_stage_rows_and_comparison_by_hand(run, snapshot):
    run.standard()
    report = run.report()
    reward_gpu, reward_card = (r for r in report.stages if r.stage is Stage.REWARD)
    assert (reward_gpu.device, reward_gpu.on_gpu_path) == ("h100", True)
    assert reward_gpu.edi_j_per_token == pytest.approx(0.8)
    assert reward_gpu.mean_power_w == pytest.approx(80.0)
    assert reward_card.edi_j_per_token == pytest.approx(0.4)
    assert (reward_card.time_s, reward_card.host_time_s) == (0.5, 2.0)
    # 40 J over the device's 0.5 s; the simulation's 2 s would give 20 W.
    assert reward_card.mean_power_w == pytest.approx(80.0)
    assert (reward_card.energy_provenance, reward_gpu.energy_provenance) == (MODELLED, MEASURED)
    by_stage = {c.stage: c for c in report.comparisons}
    assert by_stage[Stage.REWARD].ratio == pytest.approx(0.5)
    assert by_stage[Stage.REWARD].ratio_provenance is MODELLED
    assert by_stage[Stage.REWARD].saved_j == pytest.approx(40.0)
    assert by_stage[Stage.GENERATION].ratio is None
    assert report.balance.net_j == pytest.approx(-320.0)
    snapshot(by_stage[Stage.GENERATION].sentence)


def test_spread_of_edi(run):
    for i, joules in enumerate([100.0, 200.0, 300.0], start=1):
        run.ran(Stage.GENERATION, (1000 + i, 1001 + i), joules, iteration=i)
    (row,) = run.report().stages
    assert row.edi_j_per_token == pytest.approx(2.0)
    assert row.edi_spread == pytest.approx(1.0)
    assert (row.n_edi, row.n_calls) == (3, 3)


def test_edi_weighs_by_tokens_and_skips_calls_without_output(run):
    run.ran(Stage.GENERATION, (1000, 1001), 100.0, tokens=100)
    run.ran(Stage.GENERATION, (1001, 1002), 100.0, tokens=300)
    run.ran(Stage.GENERATION, (1002, 1003), 50.0, tokens=0)
    (row,) = run.report().stages
    assert row.edi_j_per_token == pytest.approx(200 / 400)
    assert row.energy_j == pytest.approx(250.0)
    assert row.n_edi == 2


@pytest.mark.parametrize(
    ("counter", "expected_rest_j"), [(None, 320.0), (lambda t: 7.0 + (t - 1000) * 120.0, 710.0)]
)
def test_readings_tell_the_rest_of_a_device(run, counter, expected_rest_j):
    """100 W over 20 s is 2000 J; a counter at 120 W says 2340 J in 19.5 s, then 0.5 s at 100 W."""
    run.standard()
    run.power("gpu0", range(1000, 1020), 100.0, counter)
    report = run.report()
    waited, beside = part(report, "gpu0", "barrier wait"), part(report, "gpu0", "beside stages")
    assert waited.energy_j + beside.energy_j == pytest.approx(expected_rest_j)
    assert waited.energy_j == pytest.approx(expected_rest_j * 1.5 / 4)
    assert beside.provenance is MEASURED
    measured = column(report, "measured")
    # What a device that also evaluates and saves drew beside the stages is not called waste.
    assert measured.other_j == pytest.approx(expected_rest_j * 2.5 / 4)
    assert measured.wasted_j == pytest.approx(expected_rest_j * 1.5 / 4)
    assert column(report, "measured").energy_j == pytest.approx(1680 + expected_rest_j)


def test_missing_energy_is_never_zero(run, snapshot):
    run.config()
    run.standard()
    run.ran(Stage.ACTOR_TRAIN, (1018, 1019), None, iteration=2)
    report = run.report()
    train = next(r for r in report.stages if r.stage is Stage.ACTOR_TRAIN)
    assert (train.n_calls, train.n_with_energy, train.n_edi) == (2, 1, 1)
    assert train.energy_j == pytest.approx(600.0)
    assert train.edi_j_per_token == pytest.approx(6.0)
    # 600 J took 5 s: the call without energy does not thin the mean power out.
    assert train.mean_power_w == pytest.approx(120.0)
    together = column(report, "together")
    assert together.at_least
    assert report.spending.covered_share == pytest.approx(4 / 5)
    snapshot("\n".join([*report.verdict, *report.missing]))
    missing = next(p for p in report.spending.parts if p.provenance is None)
    assert missing.energy_j is None


def test_a_call_without_energy_on_a_read_device_is_in_its_readings(run, snapshot):
    run.standard()
    run.power("gpu0", range(1000, 1020), 100.0)
    run.ran(Stage.ACTOR_TRAIN, (1018, 1019), None)
    report = run.report()
    measured = column(report, "measured")
    assert measured.energy_j == pytest.approx(2000.0)
    assert not measured.at_least
    snapshot("\n".join(report.spending.gaps))


def test_nothing_known_at_all(run):
    run.ran(Stage.GENERATION, (1000, 1001), None)
    report = run.report()
    (row,) = report.stages
    assert (row.energy_j, row.edi_j_per_token, row.mean_power_w) == (None, None, None)
    assert row.energy_provenance is None
    assert report.spending.columns == ()


def test_unknown_idle_power_makes_a_lower_bound(run, snapshot):
    run.ran(Stage.GENERATION, (1000, 1001), 10.0)
    report = run.report()
    assert column(report, "measured").at_least
    snapshot("\n".join(report.spending.gaps))


def test_readings_below_the_executions_claim_nothing(run, snapshot):
    run.standard()
    run.power("gpu0", range(1000, 1020), 50.0)
    report = run.report()
    assert part(report, "gpu0", "beside stages").energy_j is None
    snapshot("\n".join(report.spending.gaps))


def test_sparse_readings_make_a_lower_bound(run, snapshot):
    run.standard()
    # The last reading, at 1015.5, holds for 2 s.
    run.power("gpu0", range(1000, 1016), 100.0)
    report = run.report()
    snapshot("\n".join(report.spending.gaps))
    assert column(report, "measured").at_least


def test_superseded_work_is_wasted(run):
    run.ledger.device(DeviceRecord("gpu0", "h100", MEASURED, "nvml", 10.0))
    run.ran(Stage.GENERATION, (1000, 1010), 1000.0, iteration=1)
    run.ran(Stage.GENERATION, (1010, 1020), 1100.0, iteration=2)
    run.resume(2000.0, from_step=1)
    run.ran(Stage.GENERATION, (2000, 2010), 900.0, iteration=2)
    report = run.report()
    assert report.head.n_attempts == 2
    assert report.head.run_time_s == pytest.approx(30.0)
    measured = column(report, "measured")
    assert measured.by_cause == {"generation": 1900.0, "superseded": 1100.0}
    assert (measured.useful_j, measured.wasted_j) == (1900.0, 1100.0)
    assert report.spending.n_output_tokens == 200
    assert column(report, "together").tokens_per_joule == pytest.approx(200 / 3000)
    (row,) = report.stages
    assert row.n_calls == 2


def test_provenances_are_never_merged(run):
    """The same stage on the same device, once measured and once modelled: two rows, two columns."""
    run.ledger.device(DeviceRecord("gpu0", "h100", MEASURED, "nvml", None))
    run.ran(Stage.GENERATION, (1000, 1001), 10.0)
    run.ran(Stage.GENERATION, (1001, 1002), 30.0, provenance=MODELLED)
    run.ran(Stage.GENERATION, (1002, 1003), None)
    report = run.report()
    rows = {r.energy_provenance: r for r in report.stages}
    assert {p: r.energy_j for p, r in rows.items()} == {MEASURED: 10.0, MODELLED: 30.0, None: None}
    assert [c.title for c in report.spending.columns] == ["measured", "modelled", "together"]
    assert column(report, "measured").energy_j == 10.0
    assert column(report, "modelled").energy_j == 30.0
    assert column(report, "together").provenance is MODELLED


def test_devices_read_together_count_once(run):
    """Energy of two GPUs read as one: neither is counted a second time as idle."""
    run.ran(Stage.GENERATION, (1000, 1010), 1500.0, meters=("gpu0", "gpu1"))
    run.power("gpu0", range(1000, 1010), 100.0)
    run.power("gpu1", range(1000, 1010), 100.0)
    report = run.report()
    assert column(report, "measured").energy_j == pytest.approx(2000.0, rel=0.06)
    assert {p.device_id for p in report.spending.parts} == {"gpu0+gpu1"}


def test_overlapping_windows_of_a_device_are_busy_once(run):
    run.ledger.device(DeviceRecord("gpu0", "h100", MEASURED, "nvml", 10.0))
    run.ran(Stage.GENERATION, (1000, 1010), 100.0)
    run.ran(Stage.REWARD, (1005, 1012), 100.0)
    run.clock(1020.0)
    run.ledger.event("finish", "")
    assert part(run.report(), "gpu0", "idle").time_s == pytest.approx(8.0)


SPANS = st.lists(
    st.tuples(st.integers(0, 50), st.integers(0, 10)).map(lambda p: (p[0], p[0] + p[1])),
    max_size=8,
)


@given(SPANS, SPANS)
def test_spans_behave_like_sets(a, b):
    def points(spans):
        return {x for s, e in spans for x in range(s, e)}

    left, right = merged(a), merged(b)
    assert length(left) == len(points(a))
    rest = minus(left, right)
    assert points(rest) == points(a) - points(b)
    assert length(rest) == len(points(rest))


class Counted(list):
    """A list that counts how often it is looked into."""

    looks = 0

    def __getitem__(self, index):
        self.looks += 1
        return super().__getitem__(index)


def test_a_long_run_takes_time_in_proportion():
    """40,000 waits between 40,000 executions: a few looks at each, not at all for each."""
    n = 40_000
    spans = [(4.0 * i, 4.0 * i + 2) for i in range(n)]
    holes = Counted((4.0 * i + 1, 4.0 * i + 3) for i in range(n))
    assert length(minus(spans, holes)) == n
    assert holes.looks <= 4 * n
    # One hole over all spans, and one span over all holes.
    assert minus(spans, [(0.0, 4.0 * n)]) == []
    assert len(minus([(0.0, 4.0 * n)], holes)) == n + 1


def test_tokens_per_joule_with_calls_that_have_no_energy_is_an_upper_bound(run):
    """In truth 1000 tokens took 1500 J: 0.667 tokens per J."""
    run.ledger.device(DeviceRecord("gpu0", "h100", MEASURED, "nvml", 0.0))
    for i in range(10):
        run.ran(Stage.GENERATION, (1000 + i, 1001 + i), None if i % 2 else 150.0, iteration=i + 1)
    report = run.report()
    last = report.spending.columns[-1]
    assert (last.energy_j, last.at_least) == (pytest.approx(750.0), True)
    assert last.tokens_per_joule == pytest.approx(1000 / 750)
    assert {c.tokens_per_joule for c in report.spending.columns[:-1]} == {None}
    (cells,) = (r for r in energy_section(report.spending).tables[0].rows if "per J" in r[0])
    assert cells[-1] == "at most 1.33"
    assert not any("1.33" in cell for cell in cells[:-1])


@st.composite
def executions(draw):
    rows = []
    for i in range(draw(st.integers(0, 12))):
        start = draw(st.floats(0, 90))
        end = start + draw(st.floats(0.01, 10))
        device_id = draw(st.sampled_from(["gpu0", "fpga0"]))
        joules = draw(st.none() | st.floats(0, 1e6))
        provenance = draw(st.sampled_from(list(Provenance)))
        energy = StageEnergy(
            (device_id,),
            start,
            end,
            joules,
            None,
            None,
            None,
            1,
            1.0,
            EnergyMethod.INTEGRAL,
            provenance,
        )
        rows.append(
            ExecutionRow(
                1,
                draw(st.booleans()),
                StageResult(
                    iteration=i,
                    stage=draw(st.sampled_from(list(Stage))),
                    action=Action.GPU if device_id == "gpu0" else Action.FPGA,
                    device_ids=(device_id,),
                    device=device_id[:-1],
                    t_start_s=start,
                    t_end_s=end,
                    time_s=draw(st.none() | st.floats(0.001, 10)),
                    time_provenance=draw(st.sampled_from([MEASURED, MODELLED])),
                    host_time_s=end - start,
                    wait_s=0.0,
                    n_sequences=1,
                    n_tokens=10,
                    n_output_tokens=draw(st.integers(0, 50)),
                    energy=draw(st.sampled_from([energy, None])),
                ),
            )
        )
    return rows


@given(executions())
@settings(max_examples=examples(150), deadline=None)
def test_energy_is_conserved(rows):
    """No joule is lost, invented, counted under two provenances, or taken from card to machine."""
    spent = spending(Evidence(rows, [], [], [], {1: (0.0, 120.0)}), Accounting(1.2, 450.0, "x"))
    cards = simulated_cards(rows, [])
    own_rows = [e for e in rows if cards.isdisjoint(e.result.device_ids)]
    known, by_card = (
        [
            (e.result.energy.provenance, e.result.energy.energy_j)
            for e in rows
            if (not cards.isdisjoint(e.result.device_ids)) == beside
            and e.result.energy is not None
            and e.result.energy.energy_j is not None
        ]
        for beside in (False, True)
    )
    single = [c for c in spent.columns if c.title == str(c.provenance)]
    assert len(single) == len({p for p, _ in known})
    for c in single:
        own = math.fsum(j for p, j in known if p is c.provenance)
        assert c.energy_j == pytest.approx(own)
    assert (spent.card is not None) == bool(by_card)
    if spent.card is not None:
        assert spent.card.energy_j == pytest.approx(math.fsum(j for _, j in by_card))
    if spent.with_card is not None:
        total_j = spent.columns[-1].energy_j + spent.card.energy_j
        assert spent.with_card.energy_j == pytest.approx(total_j)
    for c in spent.shown:
        assert c.energy_j == pytest.approx(c.useful_j + c.other_j + c.paused_j + c.wasted_j)
        assert c.energy_j == pytest.approx(math.fsum(c.by_cause.values()))
        assert set(c.by_cause) <= set(CAUSES)
    if len(spent.columns) > 1:
        assert spent.columns[-1].energy_j == pytest.approx(math.fsum(c.energy_j for c in single))
    if len(known) < len(own_rows) and spent.columns:
        assert spent.columns[-1].at_least
    kept = [e for e in rows if not e.superseded]
    table = stage_rows(rows)
    assert sum(r.n_calls for r in table) == len(kept)
    assert sum(r.n_output_tokens for r in table) == sum(e.result.n_output_tokens for e in kept)
    for row in table:
        assert (row.energy_j is None) == (row.n_with_energy == 0)
        assert (row.edi_j_per_token is None) == (row.n_edi == 0)
    for c in comparisons(table):
        assert (c.ratio is None) or (c.gpu is not None and c.card is not None)
