from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ecorl.errors import ConfigError
from ecorl.records import Stage
from ecorl.scheduler import encode, state_size

SHARE = st.one_of(st.none(), st.floats())


def test_72_numbers_at_32_gpus(make_state):
    assert state_size(32) == 72
    state = replace(
        make_state(queue=4, length=1024), gpu_power_share=(0.5,) * 32, gpu_utilisation=(0.25,) * 32
    )
    encoded = encode(state)
    assert encoded.shape == (72,)
    assert encoded.dtype == np.float32
    assert (encoded[:32] == 0.5).all()
    assert (encoded[32:64] == 0.25).all()
    assert encoded[64] == 0.5  # 4 of 8 batches
    assert encoded[65:71].tolist() == [0, 1, 0, 0, 0, 0]
    assert encoded[71] == 0.5  # 1,024 of 2,048 tokens


@pytest.mark.parametrize("stage", list(Stage))
def test_the_one_hot_follows_the_order_of_the_record(make_state, stage):
    code = encode(make_state(stage))[65:71]
    assert code.sum() == 1
    assert code[list(Stage).index(stage)] == 1


def test_a_missing_share_is_the_mean_of_the_known(make_state):
    state = replace(
        make_state(), gpu_power_share=(0.2, None, 0.4), gpu_utilisation=(None, None, None)
    )
    encoded = encode(state, n_gpus=4)
    assert encoded[:4] == pytest.approx([0.2, 0.3, 0.4, 0.0])
    assert encoded[4:8] == pytest.approx([0.5, 0.5, 0.5, 0.0])


def test_more_gpus_than_places_are_refused(make_state):
    with pytest.raises(ConfigError, match="33 GPUs"):
        encode(replace(make_state(), gpu_power_share=(0.1,) * 33))
    with pytest.raises(ConfigError):
        encode(make_state(), q_max=0)


def test_beyond_a_limit_reads_above_one(make_state):
    encoded = encode(make_state(queue=16, length=4096))
    assert (encoded[64], encoded[71]) == (2.0, 2.0)


@given(st.lists(SHARE, max_size=8), st.lists(SHARE, max_size=8), st.integers(0, 1000))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_encoding_is_always_finite_and_bounded(make_state, power, utilisation, queue):
    state = replace(
        make_state(queue=queue), gpu_power_share=tuple(power), gpu_utilisation=tuple(utilisation)
    )
    encoded = encode(state, n_gpus=8)
    assert np.isfinite(encoded).all()
    assert (encoded[:16] >= 0).all()
    assert (encoded[:16] <= 2).all()
    for i, share in enumerate(power):
        if share is not None and math.isfinite(share) and 0 <= share <= 2:
            assert encoded[i] == pytest.approx(share, rel=1e-6, abs=1e-6)
