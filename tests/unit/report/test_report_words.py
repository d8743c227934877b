"""What a reader of a report meets: one name for one thing, and a key for what nobody can know."""

from __future__ import annotations

import html
import io
import re

import pytest
from rich.console import Console

from ecorl.config import PlacementConfig
from ecorl.devices import load_profile
from ecorl.ledger import DeviceRecord
from ecorl.records import (
    Action,
    Algorithm,
    BarrierWait,
    DeviceKind,
    EventKind,
    FaultEvent,
    FaultKind,
    ModelShape,
    Placement,
    Provenance,
    SchedulerState,
    Stage,
    StageWork,
)
from ecorl.report.render.event_tables import rows_fallback
from ecorl.report.render.key import TITLE, key
from ecorl.report.render.page import render_html
from ecorl.report.render.text import print_report
from ecorl.scheduler import CostModel, Guards, build_policy, place
from tests.plain_words import banned

SHAPE = ModelShape(2, 64, 128, 4, 2, 16, 256, 120_000, 100_000)
DEVICES = {"GPU": ("gpu0:h100", "h100_sxm"), "host": ("cpu0:host_cpu", "host_cpu")}
POLICIES = (
    {"type": "static", "reward": "fpga"},
    {"type": "threshold", "max_length": 100},
    {"type": "lookahead"},
    {"type": "learned"},
)


def terminal(report):
    out = io.StringIO()
    print_report(report, Console(file=out, width=100))
    return " ".join(out.getvalue().split())


def page(report):
    """All that the page shows as text, its plots among it."""
    shown = re.sub(r"<style>.*?</style>", " ", render_html(report), flags=re.S)
    told = re.sub(r"<[^>]*>", " ", re.sub(r"<!--(.*?)-->", r" \1 ", shown, flags=re.S))
    return " ".join(html.unescape(told).split())


def decide(run, name):
    """The decisions of every policy in several states, as a run records them."""
    profile, card = load_profile(DEVICES[name][1]), load_profile("u55c")
    kind = DeviceKind.CPU if name == "host" else DeviceKind.GPU
    for chosen in POLICIES:
        config = PlacementConfig(policy=chosen, energy_margin=0.0)
        models = dict.fromkeys((Stage.REWARD, Stage.ACTOR_TRAIN), SHAPE)
        policy = build_policy(config, profile, card, None, models)
        guards = Guards.from_config(config, CostModel(profile, card))
        for stage in (Stage.GENERATION, Stage.REWARD, Stage.ACTOR_TRAIN):
            for queue, length, is_there in (
                (0, 64, True),
                (9, 64, True),
                (0, 4096, True),
                (0, 64, False),
            ):
                work = StageWork(stage, 8, 8 * length, 4 * length, length, SHAPE)
                state = SchedulerState(
                    1, Algorithm.GRPO, stage, (0.5,), (0.5,), queue, is_there, work,
                    framework_on=kind,
                )  # fmt: skip
                run.ledger.placement(place(state, policy, guards))


def full(run, name):
    """A run with offloaded calls, waits, decisions, a fault and a fallback."""
    device = DEVICES[name][0]
    own = {"device": device, "action": Action.GPU, "provenance": Provenance.MEASURED}
    card = {"device": "fpga0:u55c", "provenance": Provenance.MODELLED, "time_s": 0.5}
    run.config()
    device_id, profile = device.split(":")
    run.ledger.device(DeviceRecord(device_id, profile, Provenance.MEASURED, "meter", 30.0))
    run.ledger.device(DeviceRecord("fpga0", "u55c", Provenance.MODELLED, "cycle model", 20.0))
    run.ran(Stage.GENERATION, (1000, 1010), 1000.0, **own)
    run.ran(Stage.REWARD, (1010, 1012), 40.0, **card, n_rows_fallback=2)
    run.clock(1012.0)
    run.ledger.barrier(BarrierWait(1, Stage.REWARD, 1.5, 10, 2, 0))
    run.ran(Stage.REWARD, (1012, 1013), 80.0, **own, n_samples=1)
    run.ran(Stage.ACTOR_TRAIN, (1013, 1018), 600.0, **own)
    run.ledger.fault(FaultEvent(1, FaultKind.ENGINE_TIMEOUT, "reward", "2 rows late", 2))
    decide(run, name)
    run.clock(1020.0)
    run.ledger.event(EventKind.FINISH, "")


@pytest.mark.parametrize("name", DEVICES)
def test_no_report_holds_a_second_name_of_a_thing_or_a_term_of_the_paper(run, name):
    full(run, name)
    report = run.report()
    kept = next(d.told for d in report.decisions if name in d.told)
    for text in (terminal(report), page(report)):
        assert banned(text, on_gpus=name == "GPU") == []
        assert kept in text
        assert rows_fallback(2) in text


@pytest.mark.parametrize("name", DEVICES)
def test_a_run_that_offloaded_nothing_says_where_its_stages_ran(run, name, snapshot):
    run.config()
    device = DEVICES[name][0]
    run.ran(Stage.GENERATION, (1000, 1010), 1000.0, device=device, action=Action.GPU)
    report = run.report()
    snapshot(report.verdict[-1])
    assert banned(page(report), on_gpus=name == "GPU") == []


def test_reasons_of_one_guard_are_one_group_whatever_the_unit_of_their_joules(run):
    for i, costs in enumerate(("2.3 against 0.4 mJ a token", "1.2 against 0.01 J a token")):
        reason = f"kept on the host: offloading would cost more energy ({costs}, modelled)"
        run.ledger.placement(Placement(i, Stage.REWARD, Action.GPU, Action.GPU, "learned", reason))
    (group,) = run.report().decisions
    assert (group.n, group.example) == (2, reason)


def test_the_key_explains_the_words_that_occur_and_no_others(snapshot):
    names = [
        name for name, _ in key(["superseded work (modelled)", "waits at the barrier"], "host")
    ]
    assert names == ["barrier", "superseded", "provenance", "modelled"]
    assert key(["nothing"], "GPU") == []
    # What explains a word holds no word that is left unexplained.
    assert [name for name, _ in key(["offloading"], "GPU")] == ["card", "offloading"]
    terms = key(["12 x card beside GPU: profiling", "J/token", "fallback"], "GPU")
    snapshot("\n".join(map(": ".join, terms)))
    every = "card offloaded profiling barrier superseded beside stages EDI measured replayed"
    explained = dict(key([every + " emulated modelled published"], "host"))
    assert {"offloading", "provenance", *Provenance} <= set(explained)
    assert banned(" ".join(explained.values()), on_gpus=False) == []


def test_both_reports_end_with_a_key(run):
    run.standard()
    run.resume(1030.0, from_step=0)
    report = run.report()
    explained = dict(key(["superseded, measured"], "GPU"))
    for text in (terminal(report), page(report)):
        assert TITLE in text
        assert explained["measured"] in text
    assert explained["superseded"] in page(report)


def iterations(run, n, on_card):
    for i in range(1, n + 1):
        at = 1000 + 10 * i
        run.ran(Stage.GENERATION, (at, at + 5), 10.0, iteration=i)
        if i in on_card:
            run.ran(
                Stage.REWARD, (at + 5, at + 6), 1.0, iteration=i, device="fpga0:u55c",
                provenance=Provenance.MODELLED,
            )  # fmt: skip


def under_timeline(report):
    """Which iterations the plot is said to show."""
    return re.search(r">\s*(iterations? [^<]*)<", render_html(report))[1]


@pytest.mark.parametrize(
    ("n", "on_card", "shown"),
    [
        (9, (), (7, 8, 9)),
        (9, (2, 8), (7, 8, 9)),
        (9, (1, 2, 4), (3, 4, 5)),
        (9, (6,), (7 - 2, 6, 7)),
        (9, (1,), (1, 2, 3)),
        (2, (1,), (1, 2)),
        (1, (1,), (1,)),
    ],
)
def test_the_timeline_shows_an_iteration_in_which_the_card_worked(run, n, on_card, shown, snapshot):
    iterations(run, n, on_card)
    report = run.report()
    assert report.timeline.iterations == shown
    assert report.timeline.offloaded == tuple(i for i in shown if i in on_card)
    snapshot(under_timeline(report))


def test_the_timeline_goes_back_to_the_attempt_in_which_the_card_worked(run, snapshot):
    iterations(run, 3, (2,))
    run.resume(2000.0, from_step=3)
    for i in (4, 5, 6):
        run.ran(Stage.GENERATION, (2000 + 10 * i, 2005 + 10 * i), 10.0, iteration=i)
    report = run.report()
    assert (report.timeline.attempt, report.timeline.iterations) == (1, (1, 2, 3))
    snapshot(under_timeline(report))


def test_the_key_takes_a_simulated_format_for_no_card():
    named = [name for name, _ in key(["50 % in FP8 (simulated)"], "host")]
    assert "simulated card" not in named
    assert "simulated card" in [name for name, _ in key(["u55c (simulated)"], "host")]
