"""Records of arms with known numbers, and results made of figures."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from ecorl.bench.machine import Machine
from ecorl.bench.tokens_per_joule.arms import PLACEMENTS
from ecorl.bench.tokens_per_joule.plan import Stand
from ecorl.bench.tokens_per_joule.reading.model import (
    CardEnergy,
    MachineEnergy,
    QualityPoint,
    RunFigures,
    StageUse,
)
from ecorl.bench.tokens_per_joule.result import ArmEntry, BenchResult, targets_of
from ecorl.bench.tokens_per_joule.running.idle import IdleReading
from ecorl.bench.tokens_per_joule.running.known_truth import KnownTruth
from ecorl.ledger import encoding as encoding_module
from ecorl.ledger import ledger as ledger_module
from ecorl.ledger import schema
from ecorl.records import Provenance
from tests.unit.report.conftest import UNIX_S, RunMaker

MEASURED, MODELLED = Provenance.MEASURED, Provenance.MODELLED


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Writes a record; `run.clock` sets the monotonic time that it sees, s."""
    now = [1000.0]
    clock = SimpleNamespace(monotonic=lambda: now[0], time=lambda: UNIX_S + now[0])
    for module in (ledger_module, schema, encoding_module):
        monkeypatch.setattr(module, "time", clock)
    maker = RunMaker(tmp_path, now)
    yield maker
    maker.ledger.close()


def machine(energy_j=100.0, provenance=MEASURED, **changes):
    fields = {
        "provenance": provenance,
        "energy_j": energy_j,
        "useful_j": 0.8 * energy_j,
        "wasted_j": 0.05 * energy_j,
        "beside_j": 0.15 * energy_j,
        "by_cause": {
            "generation": 0.5 * energy_j,
            "training": 0.3 * energy_j,
            "barrier wait": 0.05 * energy_j,
            "beside stages": 0.15 * energy_j,
        },
        "at_least": False,
        "carbon_g": energy_j / 3.6e6 * 450.0,
        "carbon_provenance": Provenance.PUBLISHED,
    }
    return MachineEnergy(**fields | changes)


def figures(arm, seed, energy_j=100.0, provenance=MEASURED, card_j=None, **changes):
    """The figures of a run: 1,000 tokens and 100 completions in 10 s."""
    card = None
    if card_j is not None:
        card = CardEnergy(card_j / 4, 3 * card_j / 4, 8.0, 0.1, 2.1, 0.9 * energy_j)
    stages = (
        StageUse("generation", "h100", MEASURED, provenance, 8, 1000, 5.0, energy_j / 2, False),
    )
    quality = tuple(
        QualityPoint(
            step, reward, correct, float(step), energy_j * step / 10, provenance if step else None,
            False, None if card is None else 0.8 * step, None if card is None else card_j * step,
        )
        for step, reward, correct in ((0, 0.0, 0.2), (5, 0.5, 0.3), (10, 1.0 + seed / 1000, 0.4))
    )  # fmt: skip
    fields = {
        "n_steps": 8,
        "n_tokens": 1000,
        "n_samples": 100,
        "time_s": 10.0,
        "busy_s": 9.0,
        "machine": machine(energy_j, provenance),
        "card": card,
        "stages": stages,
        "quality": quality,
        "offloaded": {"reward": float(card is not None), "reference": 0.0},
    }
    return RunFigures(arm, seed, **fields | changes)


STAND = Stand(
    Machine("intel-xeon-2core", "Intel Xeon", 2, 8 * 2**30, None),
    "abcd1234",
    "Linux 6.1",
    {"ecorl": "0.1.0", "torch": "2.13.0"},
    "c0ffee",
    "0123456789ab",
)

PLAN = {
    "config": "name = 'x'\n",
    "placements": list(PLACEMENTS),
    "extras": ["gears", "adaptive_batch", "clocks"],
    "seeds": [1, 2, 3],
    "steps": 10,
    "warm_up": 2,
    "idle_s": 3.0,
    "supervised": True,
    "reward": None,
    "correct": None,
}


def result_of(runs, *, arms=None, supervised=(), **changes):
    """A result of some runs; its arms are theirs."""
    names = dict.fromkeys(run.arm for run in runs)
    entries = arms or tuple(
        ArmEntry(name, name.partition("+")[0], name.partition("+")[2], "") for name in names
    )
    fields = {
        "stand": STAND,
        "commits": ("c0ffee",),
        "plan": PLAN,
        "arms": tuple(entries),
        "runs": tuple(runs),
        "supervised": tuple(supervised),
        "idle": (IdleReading("before", "gpu0", 70.0, MEASURED, "nvml:field186", 3.0),),
        "known_truth": KnownTruth(2.0, 2.001),
        "targets": targets_of(runs, None, None),
    }
    return BenchResult(**fields | changes)


@pytest.fixture
def whole():
    """A result of all placements and three seeds, with a card in four of them."""
    runs = []
    for seed in (1, 2, 3):
        for i, name in enumerate(PLACEMENTS):
            energy_j = 100.0 + 5 * i + seed
            runs.append(figures(name, seed, energy_j, MODELLED, 200.0 + i if i else None))
    arms = [ArmEntry(name, name, "", "") for name in PLACEMENTS]
    arms.append(ArmEntry("gpu_only+clocks", "gpu_only", "clocks", "clocks: not there yet"))
    trained = [figures("supervised", seed, 20.0, MODELLED, n_all_tokens=3000) for seed in (1, 2, 3)]
    return result_of(runs, arms=arms, supervised=trained)
