"""A loop of PyTorch under `ecorl.measure`: the same weights to the last bit, paused or not."""

from __future__ import annotations

import pytest

import ecorl
from tests.fakes.grids import (
    TWO_WAITS,
    n_pauses,
    plain_config,
    waiting_config,
)

torch = pytest.importorskip("torch")

N_STEPS = 8


def train(done):
    """Dropout and Adam with accumulated gradients: what any draw or any order would show in."""
    torch.manual_seed(5)
    model = torch.nn.Sequential(
        torch.nn.Linear(20, 40), torch.nn.ReLU(), torch.nn.Dropout(0.2), torch.nn.Linear(40, 3)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for _ in range(N_STEPS):
        total = 0.0
        for _ in range(2):
            rows, labels = torch.randn(16, 20), torch.randint(3, (16,))
            loss = torch.nn.functional.cross_entropy(model(rows), labels) / 2
            loss.backward()
            total += loss.item()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(total)
        if not done(total):
            break
    return losses, model.state_dict()


def assert_same(one, other):
    assert one[0] == other[0]
    assert len(one[0]) == N_STEPS
    for name, weight in one[1].items():
        assert torch.equal(weight, other[1][name]), name


def test_measuring_changes_no_bit(tmp_path):
    plain = train(lambda loss: True)
    with ecorl.measure(plain_config(tmp_path / "run"), total_steps=N_STEPS) as run:
        run.watch_memory_by_step()
        measured = train(lambda loss: run.step(n_samples=32, loss=loss) and bool(run.figures()))
    assert_same(plain, measured)


def test_pauses_change_no_bit(tmp_path, turning_grid):
    plain = train(lambda loss: True)
    config = waiting_config(tmp_path / "run", TWO_WAITS)
    with ecorl.measure(config, total_steps=N_STEPS) as run:

        def done(loss):
            if run.n_steps == 3:
                turning_grid.until_turned(2)
            return run.step(n_samples=32, loss=loss)

        paused = train(done)
    assert_same(plain, paused)
    assert n_pauses(tmp_path / "run") == 2
