"""ROLL without ecorl. What the other tests compare with must be the same each time."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.frameworks.roll import harness
from tests.frameworks.trainings import LIMIT_S

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2 * LIMIT_S + 60)]

# ROLL logs the mean of none where no response is of a kind.
MAY_BE_MISSING = ("right_response", "error_response")


def test_plain_run_trains(plain):
    steps = list(range(harness.N_STEPS))
    for name, values in plain.numbers.items():
        if not any(part in name for part in MAY_BE_MISSING):
            assert sorted(values) == steps, name
            assert all(map(math.isfinite, values.values())), name
    assert {"critic/loss", "actor/total_loss", "actor_train/grad_norm"} <= plain.numbers.keys()
    for domain in harness.DOMAINS:
        kl = plain.numbers[f"{domain}/critic/kl"]
        # The policy is another one after its first step, and the reference is not.
        assert abs(kl[0]) < 1e-6 < 1e-3 < abs(kl[1])
        length = plain.numbers[f"{domain}/token/response_length/mean"]
        assert all(0 < mean <= harness.RESPONSE_LENGTH for mean in length.values())


@pytest.mark.deep_on_double
def test_plain_runs_repeat(plain, tiny, cluster, tmp_path):
    again = harness.run_training(cluster, tmp_path, harness.rlvr(tiny, tmp_path))
    assert again.numbers.keys() == plain.numbers.keys()
    for name, values in plain.numbers.items():
        np.testing.assert_equal(again.numbers[name], values, err_msg=name)
    assert again.weights.keys() == plain.weights.keys()
    for name, weight in plain.weights.items():
        np.testing.assert_array_equal(again.weights[name], weight, err_msg=name)


def test_the_trained_weights_can_be_read(plain, tiny):
    from safetensors.torch import load_file

    for role, folder in (("actor_train", tiny.actor), ("critic", harness.critic_of(tiny))):
        before = load_file(folder / "model.safetensors")
        assert {f"{role}.{name}" for name in before} <= plain.weights.keys()
        name = "model.embed_tokens.weight"
        assert not before[name].equal(plain.weights[f"{role}.{name}"])
