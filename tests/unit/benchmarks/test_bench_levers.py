"""The benchmark of the levers: its figures, and what is missing without recordings."""

from __future__ import annotations

import argparse

import pytest

from benchmarks import levers
from benchmarks.harness.figures import Figure
from benchmarks.studies.carbon.traces import WHY_MISSING
from ecorl.records import Provenance

IDS = (
    "placement_saved_share", "clocks_saved_share", "overlap_saved_share", "gears_saved_share",
    "timing_saved_share", "all_saved_share",
)  # fmt: skip


@pytest.fixture(scope="module")
def found():
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("ECORL_TRACES", raising=False)
        patch.setattr(
            levers, "_plan_seconds", lambda *_: Figure("plan.seconds", None, "s", note="not here")
        )
        options = argparse.Namespace(traces=None, write=False, quick=True, box_s=None)
        config, figures = levers.measure(options)
    return config, {figure.id: figure for figure in figures}


def test_every_lever_has_its_figure(found):
    _, figures = found
    assert {f"levers.{id}" for id in IDS} <= set(figures)
    for id in IDS:
        figure = figures[f"levers.{id}"]
        if id == "timing_saved_share":
            assert figure.value is None
            assert figure.note == WHY_MISSING
            continue
        assert figure.provenance is Provenance.MODELLED
        assert figure.spread["low"] <= figure.value <= figure.spread["high"]
        assert len(figure.spread["by_job"]) == 4


def test_all_together_is_more_than_the_best_alone_and_below_their_physical_sum(found):
    config, figures = found
    everything = figures["levers.all_saved_share"].value
    assert everything >= max(figures[f"levers.{id}"].value for id in IDS[:4])
    for job in config["jobs"].values():
        alone = [value for value, _, _ in job["alone"].values()]
        beyond = [value for _, _, value in job["interactions"]]
        assert everything < sum(alone) + sum(v for v in beyond if v > 0.0) + 0.1
        assert sum(added for _, added in job["order"]) == pytest.approx(
            job["alone"]["clocks"][0] + sum(added for _, added in job["order"][1:])
        )
