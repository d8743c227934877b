"""The inputs and the error inputs with which torch tests its own AdamW, on ours.

torch has them in its wheel, for the writers of optimizers; they move with its releases.
"""

from __future__ import annotations

import re
import warnings
from copy import deepcopy

import pytest
import torch
from torch.optim import AdamW

from ecorl.trainer import PrecisionAdaptiveAdamW
from tests.unit.trainer.optimizer.conftest import Trial, assert_equal_bits

database = pytest.importorskip("torch.testing._internal.common_optimizers")

INFO = next(info for info in database.optim_db if info.optim_cls is AdamW)
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


def inputs(dtype):
    """torch's settings, each with the flags of its paths in turn."""
    flags = [{}, *({flag: True} for flag in INFO.supported_impls if flag != "differentiable")]
    return [
        {**deepcopy(given.kwargs), **flag}
        for given in INFO.optim_inputs_func("cpu", dtype)
        for flag in flags
    ]


@pytest.mark.parametrize("dtype", DTYPES)
def test_torchs_settings_give_torchs_weights(dtype):
    settings = inputs(dtype)
    assert len(settings) >= 15
    for options in settings:
        ours = Trial(dtype).trained(lambda w, o=options: PrecisionAdaptiveAdamW(w, **o), 10)
        theirs = Trial(dtype).trained(lambda w, o=options: AdamW(w, **o), 10)
        assert_equal_bits(ours, theirs)


@pytest.mark.parametrize("gamma", [1.0, 1.5])
def test_torchs_settings_go_in_the_right_direction(gamma):
    for options in inputs(torch.float32):
        up = options.get("maximize", False)
        weight = torch.nn.Parameter(torch.linspace(-1, 1, 10))
        optimizer = PrecisionAdaptiveAdamW([weight], gamma=gamma, **options)

        def loss(weight=weight, optimizer=optimizer):
            optimizer.zero_grad()
            value = ((weight - 2.0) ** 2).mean()
            value.backward()
            return value

        values = [float(optimizer.step(loss).detach()) for _ in range(30)]
        assert (values[-1] > values[0]) == up, options


def error_inputs():
    return INFO.optim_error_inputs_func("cpu", torch.float32)


def test_there_are_errors_to_be_made():
    assert len(error_inputs()) >= 10


@pytest.mark.parametrize("wrong", error_inputs(), ids=lambda w: w.optimizer_error_input.desc)
def test_torchs_errors_are_ours(wrong):
    given = wrong.optimizer_error_input
    params = given.params if given.params is not None else [torch.nn.Parameter(torch.ones(1))]
    assert wrong.error_on is database.OptimizerErrorEnum.CONSTRUCTION_ERROR
    if issubclass(wrong.error_type, Warning):
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            PrecisionAdaptiveAdamW(params, **given.kwargs)
        assert any(re.search(wrong.error_regex, str(w.message)) for w in seen)
    else:
        with pytest.raises(wrong.error_type, match=wrong.error_regex):
            PrecisionAdaptiveAdamW(params, **given.kwargs)
