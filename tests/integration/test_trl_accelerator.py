"""TRL trainings whose offloaded stages run on a device in the card's place, by torch."""

from __future__ import annotations

import contextlib
import io

import pytest
import torch
from rich.console import Console

from ecorl.config import load_config, validate_config
from ecorl.ledger import LedgerReader
from ecorl.records import Action, Provenance, Stage
from ecorl.report import RunConfig, build_report
from ecorl.report.render.text import print_report
from ecorl.runtime.training import this_node
from roll_adapters.trl_hooks import attach
from tests.cluster import CARDS
from tests.integration.checks import BOTH, MODELLED, config, outcome

BY_TORCH = {"offload": {"type": "torch"}}
ON_HOST = {"devices": {"accelerator": "host_cpu"}}


def assert_close(one, other):
    """Equal but for the order of sums in a forward of other rows."""
    for mine, theirs in zip(one["log"], other["log"], strict=True):
        for key in mine:
            assert float(theirs[key]) == pytest.approx(float(mine[key]), abs=1e-6), key
    for name, weight in one["weights"].items():
        assert torch.allclose(weight, other["weights"][name], rtol=0, atol=1e-6), name


def offloaded(folder):
    with contextlib.closing(LedgerReader(folder)) as reader:
        placed = [row.placement for row in reader.placements()]
        rows = [row.result for row in reader.executions()]
        assert reader.faults() == []
        devices = {d.device_id: d for d in reader.devices()}
    return placed, [r for r in rows if r.action is not Action.GPU], devices


@pytest.mark.parametrize(
    "policy",
    [BOTH, *(pytest.param({"type": n}, marks=pytest.mark.deep) for n in ("lookahead", "learned"))],
)
def test_with_the_host_as_accelerator_the_numbers_are_those_of_plain_trl(
    make_trainer, tmp_path, policy
):
    plain = make_trainer()
    plain.train()
    attached = make_trainer(name="attached")
    settings = config(tmp_path, policy=policy, engine=BY_TORCH, more=ON_HOST)
    attachment = attach(attached, settings)
    attached.train()
    assert_close(outcome(plain), outcome(attached))
    placed, rows, devices = offloaded(tmp_path / "run")
    # Learnt as times alone, beside the host's own.
    times = {t.stage: t for t in attachment.runtime.edi.times()}
    assert {t.device for t in times.values()} <= {"host_cpu (accelerator)"}
    for stage, learnt in times.items():
        own = [r.time_s for r in rows if r.stage is stage]
        assert (learnt.count, learnt.n_recent) == (len(own), len(own) - 1)
    assert set(times) == {r.stage for r in rows}
    asked = [p for p in placed if p.stage in (Stage.REWARD, Stage.REFERENCE)]
    assert len(asked) == 8
    assert len(rows) == sum(p.action is not Action.GPU for p in asked)
    if policy is BOTH:
        assert {r.stage for r in rows} == {Stage.REWARD, Stage.REFERENCE}
    for row in rows:
        assert (row.device, row.device_ids) == ("host_cpu", (f"{this_node()}/host_process",))
        assert row.time_provenance is Provenance.MEASURED
        assert 0 < row.time_s <= row.host_time_s * (1 + 1e-9)
        assert row.energy.energy_j is None  # nothing tells it from the trainer's own
    assert all(d.provenance is not Provenance.EMULATED for d in devices.values())
    assert not any("fpga" in device_id for device_id in devices)
    saved = load_config(str(tmp_path / "run" / "config.toml"))
    assert saved.devices.accelerator == "host_cpu"
    with contextlib.closing(LedgerReader(tmp_path / "run")) as reader:
        report = build_report(reader, RunConfig(saved))
    page = io.StringIO()
    print_report(report, Console(file=page, width=200))
    assert "simulated" not in page.getvalue()
    assert rows == [] or "host_cpu (host_process)" in page.getvalue()


@pytest.mark.deep
@pytest.mark.timeout(900)
def test_on_another_machine_of_a_cluster_too(ray_nodes, make_trainer, tmp_path):
    import ray

    ray.shutdown()
    plain = make_trainer()
    plain.train()
    attached = make_trainer(name="attached")
    settings = validate_config(
        {
            "run_dir": str(tmp_path / "run"),
            "runtime": {"type": "ray", "address": ray_nodes.address},
            "placement": {"policy": BOTH},
            "engine": BY_TORCH,
            "telemetry": MODELLED,
            **ON_HOST,
        }
    )
    attach(attached, settings)
    attached.train()
    assert_close(outcome(plain), outcome(attached))
    _, rows, _ = offloaded(tmp_path / "run")
    assert len(rows) == 8
    for row in rows:
        assert (row.node, row.device) == (CARDS, "host_cpu")
        assert row.device_ids == (f"{CARDS}/host_process",)
        assert row.time_provenance is Provenance.MEASURED
        assert row.time_s > 0
