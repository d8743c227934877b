"""Errors of an engine process arrive in the parent as what they are."""

from __future__ import annotations

import json
import shutil

import pytest
from toy_process import LIMITS, spec

from ecorl.engines.lanes.threaded import EngineSpec, error_of, fault_of
from ecorl.engines.registry import make_engine
from ecorl.errors import (
    CheckpointError,
    ConfigError,
    EngineCrashed,
    EngineTimeout,
    MissingToolError,
)
from ecorl.records import Stage
from tests.fakes.blocking_engine import HostLimits, IsolatedEngine

pytestmark = pytest.mark.usefixtures("toy_path", "no_process_left")


def test_errors_of_the_user_arrive_as_themselves():
    with pytest.raises(CheckpointError, match="nowhere"):
        IsolatedEngine(spec(load="checkpoint"), LIMITS)
    with pytest.raises(ConfigError, match=r"toy\.toml:3: toy\.load") as caught:
        IsolatedEngine(spec(load="config"), LIMITS)
    assert (caught.value.key, caught.value.line) == ("toy.load", 3)
    with pytest.raises(EngineCrashed, match="RuntimeError: the toy is broken"):
        IsolatedEngine(spec(load="error"), LIMITS)
    with pytest.raises(EngineCrashed, match="code 3"):
        IsolatedEngine(spec(load="exit"), LIMITS)
    with pytest.raises(EngineTimeout, match=" 1 s"):
        IsolatedEngine(spec(load="hang"), HostLimits(start_s=1.0))


@pytest.mark.parametrize(
    "error",
    [
        MissingToolError("no g++"),
        EngineTimeout("late"),
        ConfigError("a.b", 3, "4", "x.toml", 7),
    ],
)
def test_errors_survive_the_journey(error):
    back = error_of(fault_of(error))
    assert type(back) is type(error)
    assert str(back) == str(error)
    assert vars(back) == vars(error)


def test_a_subclass_defined_elsewhere_arrives_as_its_public_base():
    from ecorl.devices.profile import MissingFigure

    error = MissingFigure("v80.clock_hz", None, "a figure", "profile v80")
    arrived = error_of(fault_of(error))
    assert type(arrived) is ConfigError
    assert str(arrived) == str(error)


def torch_spec(tiny_policy, tmp_path, changes):
    """A torch engine of a checkpoint whose config.json has been changed."""
    folder = tmp_path / "m"
    shutil.copytree(tiny_policy, folder)
    fields = json.loads((folder / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps(fields))
    return EngineSpec("torch", "torch", folder, Stage.REFERENCE, "host_cpu")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_hidden_layers": "2"}, "num_hidden_layers"),  # huggingface_hub's own validation
        ({"layer_types": ["windows"]}, "layer_types"),
        ({"num_attention_heads": 0}, "ZeroDivisionError"),
        ({"id2label": 5}, "AttributeError"),
    ],
)
def test_a_config_that_transformers_refuses_is_the_users_mistake(
    tiny_policy, tmp_path, changes, words
):
    with pytest.raises(CheckpointError, match=words) as caught:
        make_engine(torch_spec(tiny_policy, tmp_path, changes))
    assert "\n" not in str(caught.value)


def test_and_arrives_as_such_from_another_process(tiny_policy, tmp_path):
    broken = torch_spec(tiny_policy, tmp_path, {"num_hidden_layers": "2"})
    with pytest.raises(CheckpointError, match="num_hidden_layers"):
        IsolatedEngine(broken, HostLimits(start_s=60))
