"""Faults of a run with everything: workers that are killed, a cluster that is, and a signal that
comes in a pause.
"""

from __future__ import annotations

import contextlib
import signal

import psutil
import pytest

from benchmarks.studies.frameworks.samples import count_samples
from ecorl.config import config_toml, validate_config
from ecorl.control import Command, Why
from ecorl.ledger import LedgerReader
from ecorl.records import Action, EventKind, FaultKind, Stage
from tests.forks import Fork
from tests.integration.test_demo_all import DAY, FAR_S, NUMBERS, config, folder, grid
from tests.integration.test_run import ecorl, wait_for

__all__ = ["config", "folder"]  # fixtures

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

ROLES = (Stage.REWARD, Stage.REFERENCE)


def started(settings, folder):
    """Start a run by the command."""
    path = folder / f"{settings.name}.toml"
    path.write_text(config_toml(settings), encoding="utf-8")
    return Fork("-m", "ecorl.cli", "run", "--config", str(path), merged=True)


def named(settings, folder, name, **changes):
    """The small run with everything under another name, with some tables changed."""
    told = settings.model_dump(mode="json")
    for table, own in changes.items():
        told[table] |= own
    return validate_config(told | {"run_dir": str(folder / name), "name": name})


def uncontrolled(settings, folder, name, n_steps):
    """That run without pauses, and with all rewards and references on the workers."""
    policy = {"type": "static", "reward": "concurrent", "reference": "concurrent"}
    control = settings.carbon.control.model_dump(mode="json") | {"controller": None}
    control |= {"deadline_in_s": None}
    return named(
        settings, folder, name,
        placement={"policy": policy, "profile_both_paths": False},
        carbon={"control": control},
        trainer={"steps": n_steps},
    )  # fmt: skip


def is_named(process, who):
    """Whether a process is a server of the cluster, or the one that has started it."""
    if who == "local_cluster":
        return f"ecorl.runtime.ray.{who}" in told(process)
    with contextlib.suppress(psutil.Error):
        return process.name() == who
    return False


def below(process):
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(process.pid).children(recursive=True)
    return []


def told(process):
    with contextlib.suppress(psutil.Error):
        return " ".join(process.cmdline())
    return ""


def read(run_dir, what):
    if not (run_dir / "ledger.sqlite").is_file():
        return []
    with contextlib.closing(LedgerReader(run_dir)) as reader:
        return getattr(reader, what)()


def assert_each_step_once(run_dir, n_steps):
    with contextlib.closing(LedgerReader(run_dir)) as reader:
        rows = [m for m in reader.metrics() if m.name in NUMBERS and not m.superseded]
        events = {event.kind for event in reader.events()}
    for name in ("loss", "reward", "kl"):
        steps = [row.iteration for row in rows if row.name == name]
        assert steps == list(range(1, n_steps + 1)), name
    assert EventKind.FINISH in events


@pytest.mark.deep
def test_with_its_accelerator_workers_killed_a_run_goes_on_by_itself_and_ends(config, folder):
    settings = uncontrolled(config, folder, "killed", 30)
    process = started(settings, folder)

    def has_offloaded():
        assert process.poll() is None, process.output()
        rows = [row.result for row in read(settings.run_dir, "executions")]
        return sum(r.action is Action.CONCURRENT for r in rows) >= 4

    wait_for(has_offloaded)
    workers = [p for p in below(process) if told(p).startswith("ray::WorkerActor")]
    assert len(workers) == len(ROLES)
    for worker in workers:
        worker.kill()
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    assert_each_step_once(settings.run_dir, 30)
    faults = read(settings.run_dir, "faults")
    assert {fault.where.partition(":")[0] for fault in faults} & set(map(str, ROLES)), faults
    rows = settings.trainer.per_device_batch_size
    expected = {(step, str(role)): rows for step in range(1, 31) for role in ROLES}
    with contextlib.closing(LedgerReader(settings.run_dir)) as reader:
        assert count_samples(reader, expected) == (0, 0)
        results = [row.result for row in reader.executions()]
    # Rows that were with them were computed by the trainer, or are placed there since.
    at_home = [r for r in results if r.stage in ROLES and r.action is Action.GPU]
    assert at_home or any(r.n_rows_fallback for r in results)


@pytest.mark.parametrize(
    "who",
    [
        "raylet",
        pytest.param("local_cluster", marks=pytest.mark.deep),
        pytest.param("gcs_server", marks=pytest.mark.deep),
    ],
)
def test_a_run_whose_own_cluster_is_killed_goes_on_by_itself_and_ends(config, folder, who):
    settings = uncontrolled(config, folder, who, 24)
    process = started(settings, folder)

    def has_saved():
        assert process.poll() is None, process.output()
        done = [row.iteration for row in read(settings.run_dir, "metrics")]
        return max(done, default=0) > settings.trainer.save_every

    wait_for(has_saved)
    children = below(process)
    (killed,) = [p for p in children if is_named(p, who)]
    killed.kill()
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    assert_each_step_once(settings.run_dir, 24)
    (lost,) = [f for f in read(settings.run_dir, "faults") if f.kind == FaultKind.CLUSTER_LOST]
    # It has gone on from a checkpoint.
    assert lost.iteration >= settings.trainer.save_every
    assert len(read(settings.run_dir, "attempts")) == 2
    with contextlib.closing(LedgerReader(settings.run_dir)) as reader:
        expected = {(step, str(role)): 16 for step in range(1, 25) for role in ROLES}
        assert count_samples(reader, expected) == (0, 0)
    _, alive = psutil.wait_procs(children, 240)
    assert not [p for p in alive if p.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.deep
def test_a_run_that_is_stopped_in_a_pause_goes_on_later(config, folder):
    (folder / "dirty").mkdir()
    carbon = config.carbon.model_dump(mode="json")
    # It pauses whenever its first steps are timed. While it is stopped the grid turns cleaner than
    # any hour that it has seen: there is nothing to wait for.
    carbon["feeds"][0]["path"] = str(grid(folder / "dirty", [500.0] * len(DAY)))
    carbon["control"]["deadline_in_s"] = FAR_S
    settings = named(config, folder, "stopped", carbon=carbon)
    process = started(settings, folder)

    def is_paused():
        assert process.poll() is None, process.output()
        rows = read(settings.run_dir, "choices")
        return bool(rows) and rows[-1].choice.command is Command.PAUSE

    wait_for(is_paused)
    children = below(process)
    assert any("raylet" in told(child) for child in children)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=240)
    assert process.returncode == 130, output
    assert f"ecorl run --resume {settings.run_dir}" in output
    whys = [row.choice.why for row in read(settings.run_dir, "choices")]
    assert whys[-1] is Why.STOPPING
    _, alive = psutil.wait_procs(children, 240)
    assert not [p for p in alive if p.status() != psutil.STATUS_ZOMBIE]
    grid(folder / "dirty", [1.0] * len(DAY))
    resumed = ecorl("run", "--resume", str(settings.run_dir))
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    assert_each_step_once(settings.run_dir, settings.trainer.steps)
    assert len(read(settings.run_dir, "attempts")) >= 2
