"""What counts as a card, as a path, and as recorded: calls without a time, or without a result."""

from __future__ import annotations

import io

from rich.console import Console

from ecorl.ledger import DeviceRecord
from ecorl.records import Action, Provenance, Stage
from ecorl.report.render.text import print_report

MEASURED, MODELLED = Provenance.MEASURED, Provenance.MODELLED
ENGINE = {"device": "host_process:host_cpu", "action": Action.CONCURRENT}


def terminal(report) -> str:
    out = io.StringIO()
    print_report(report, Console(file=out))
    return " ".join(out.getvalue().split())


def trained(run, **kwargs):
    run.ledger.device(DeviceRecord("gpu0", "h100", MEASURED, "nvml", 30.0))
    run.ran(Stage.GENERATION, (1000, 1010), 1000.0, **kwargs)
    run.ran(Stage.ACTOR_TRAIN, (1013, 1018), 600.0, **kwargs)


def ended(run, t_s=1020.0):
    run.clock(t_s)
    run.ledger.event("finish", "")
    return run.report()


# ---------------------------------------------------------------- a call without a time


def test_a_call_without_a_time_makes_no_card(run):
    """As older ledgers hold an engine of this host that never answered."""
    trained(run)
    lost = {"time_s": None, "time_provenance": MODELLED, "fault": "EngineTimeout"}
    run.ran(Stage.REWARD, (1010, 1012), None, **ENGINE, **lost)
    report = ended(run)
    assert not any(p.simulated for p in report.spending.parts)
    assert report.spending.card is None
    assert report.card_timeline is None
    # What nothing metered is missing from this machine's total.
    assert report.spending.columns[-1].at_least
    assert "simulated" not in terminal(report)


def test_it_does_not_hide_the_idle_draw_of_the_card_beside_it(run):
    run.standard()
    lost = {"time_s": None, "time_provenance": MODELLED, "fault": "EngineTimeout"}
    run.ran(Stage.REFERENCE, (1013, 1014), None, **ENGINE, **lost)
    assert run.report().card_timeline.idle_j is not None


# ---------------------------------------------------------------- one profile on both paths


def both_paths(run):
    """The trainer on the host's processor, and an engine on the same that nothing meters."""
    trained(run, device="cpu0:host_cpu", action=Action.GPU)
    on_path = {"device": "cpu0:host_cpu", "action": Action.GPU}
    run.ran(Stage.REWARD, (1010, 1011), 40.0, **on_path)
    run.ran(Stage.REWARD, (1011, 1013), None, **ENGINE)
    return ended(run)


def test_a_profile_on_both_paths_has_a_row_for_each(run):
    rows = [r for r in both_paths(run).stages if r.stage is Stage.REWARD]
    assert [(r.device, r.on_gpu_path, r.n_calls, r.time_s, r.energy_j) for r in rows] == [
        ("host_cpu", True, 1, 1.0, 40.0),
        ("host_cpu (host_process)", False, 1, 2.0, None),
    ]


def test_a_stage_on_an_engine_of_the_same_profile_left_the_path(run, snapshot):
    snapshot("\n".join(both_paths(run).verdict))


# ---------------------------------------------------------------- nothing kept


def test_superseded_is_not_unrecorded(run, snapshot):
    trained(run)
    run.ledger.metric(1, "reward", 1.0)
    run.resume(2000.0, 0)
    snapshot("\n".join(ended(run, 2001.0).missing))
