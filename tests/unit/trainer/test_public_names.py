"""Names of `ecorl.trainer` are there when they are asked for, and torch not before."""

from __future__ import annotations

import subprocess
import sys

import pytest

import ecorl.trainer


def test_the_package_itself_imports_no_torch():
    code = "import sys, ecorl.trainer, ecorl.trainer.optimizer; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize("name", ecorl.trainer.__all__)
def test_each_public_name_is_there(name):
    found = getattr(ecorl.trainer, name)
    assert found.__name__ == name
    assert found.__doc__


def test_all_that_an_elastic_trainer_is_told_is_public():
    made = ecorl.trainer.ElasticOptions()
    for part in (made, made.member, made.member.groups, made.place, made.patience):
        assert type(part).__name__ in ecorl.trainer.__all__
    assert "EpochOrder" in ecorl.trainer.__all__


def test_an_unknown_name_is_no_attribute():
    with pytest.raises(AttributeError, match="'Adam'"):
        ecorl.trainer.Adam  # noqa: B018
