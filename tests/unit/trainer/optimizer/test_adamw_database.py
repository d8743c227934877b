"""The inputs and the error inputs with which torch tests its own AdamW, on ours.

torch has them in its wheel, in the code of its own tests. Importing that switches global flags of
torch and of the process, so that another process does it and hands over plain data.
"""

from __future__ import annotations

import pickle
import re
import subprocess
import sys
import warnings
from copy import deepcopy

import pytest
import torch
from torch.optim import AdamW

from ecorl.trainer import PrecisionAdaptiveAdamW
from tests.unit.trainer.optimizer.conftest import Trial, assert_equal_bits

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]

READ = """
import pickle, sys, types, unittest
import torch
# torch's tests build on a package for comparing printed text, which is not needed here.
sys.modules["expecttest"] = types.ModuleType("expecttest")
sys.modules["expecttest"].TestCase = unittest.TestCase
from torch.testing._internal.common_optimizers import optim_db, OptimizerErrorEnum
info = next(i for i in optim_db if i.optim_cls is torch.optim.AdamW)
dtypes = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
wrong = info.optim_error_inputs_func("cpu", torch.float32)
assert all(e.error_on is OptimizerErrorEnum.CONSTRUCTION_ERROR for e in wrong)
pickle.dump(
    {
        "implementations": info.supported_impls,
        "inputs": {d: [i.kwargs for i in info.optim_inputs_func("cpu", d)] for d in dtypes},
        "errors": [
            (
                e.optimizer_error_input.desc,
                e.optimizer_error_input.params,
                e.optimizer_error_input.kwargs,
                e.error_type,
                e.error_regex,
            )
            for e in wrong
        ],
    },
    sys.stdout.buffer,
)
"""


@pytest.fixture(scope="module")
def database():
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", READ], capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    return pickle.loads(done.stdout)


def settings(database, dtype):
    """torch's settings, each with the flags of its paths in turn."""
    flags = [
        {},
        *({flag: True} for flag in database["implementations"] if flag != "differentiable"),
    ]
    return [{**deepcopy(given), **flag} for given in database["inputs"][dtype] for flag in flags]


@pytest.mark.parametrize("dtype", DTYPES)
def test_torchs_settings_give_torchs_weights(database, dtype):
    given = settings(database, dtype)
    assert len(given) >= 15
    for options in given:
        ours = Trial(dtype).trained(lambda w, o=options: PrecisionAdaptiveAdamW(w, **o), 10)
        theirs = Trial(dtype).trained(lambda w, o=options: AdamW(w, **o), 10)
        assert_equal_bits(ours, theirs)


@pytest.mark.parametrize("gamma", [1.0, 1.5])
def test_torchs_settings_go_in_the_right_direction(database, gamma):
    for options in settings(database, torch.float32):
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


def test_torchs_errors_are_ours(database):
    assert len(database["errors"]) >= 10
    for what, params, options, kind, message in database["errors"]:
        given = params if params is not None else [torch.nn.Parameter(torch.ones(1))]
        if issubclass(kind, Warning):
            with warnings.catch_warnings(record=True) as seen:
                warnings.simplefilter("always")
                PrecisionAdaptiveAdamW(given, **options)
            assert any(re.search(message, str(w.message)) for w in seen), what
        else:
            with pytest.raises(kind, match=message):
                PrecisionAdaptiveAdamW(given, **options)
