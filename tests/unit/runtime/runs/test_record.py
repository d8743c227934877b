"""Which config may go on in the record of an attached run."""

from __future__ import annotations

import pytest

from ecorl.config import Config
from ecorl.errors import ConfigError
from ecorl.runtime.runs.record import open_attached_run

PLACES = {"reward:math": {"node": "a", "count": 2}}


def config(**tables):
    return Config.model_validate({"places": PLACES} | tables)


@pytest.fixture
def recorded(tmp_path):
    """The folder of an attached run that was cut off before its first checkpoint."""
    open_attached_run(config(), tmp_path / "run", None, {}).close()
    return tmp_path / "run"


def test_the_same_config_goes_on_even_with_another_cluster(recorded):
    open_attached_run(config(), recorded, 0, {}).close()
    ray = {"type": "ray", "address": "head:6379"}
    open_attached_run(config(runtime=ray), recorded, 0, {}).close()


@pytest.mark.parametrize(
    ("places", "line"),
    [
        (
            {"reward:math": {"node": "b", "count": 2}},
            "places.reward:math.node = 'b': allowed is 'a' ",
        ),
        ({}, "places.reward:math = (not given): allowed is {'node': 'a', "),
    ],
)
def test_a_run_keeps_its_places(recorded, places, line):
    with pytest.raises(ConfigError) as caught:
        open_attached_run(config(places=places), recorded, 0, {})
    assert str(caught.value).startswith(line)


def test_a_run_keeps_its_algorithm(recorded):
    with pytest.raises(ConfigError, match=r"algorithm = 'dapo': allowed is 'grpo'"):
        open_attached_run(config(algorithm="dapo"), recorded, 0, {})
