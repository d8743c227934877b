"""The tables ``[places]`` and ``[runtime]``: what they mean, and how mistakes in them read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ecorl.config import Config, LocalRuntimeConfig, Place, RayRuntimeConfig, load_config
from ecorl.records import Stage, role_of


def test_a_role_has_its_own_place_else_that_of_its_stage(write):
    path = write(
        '[places.reward]\nnode = "a"\ncount = 2\n'
        '[places."reward:math"]\ndevices = ["0", "GPU-1f"]\ncount = 2\nprofile = "l4"\n'
    )
    config = load_config(str(path))
    assert config.place("reward") == config.place("reward:code") == Place(node="a", count=2)
    assert config.place("reward:math") == Place(devices=("0", "GPU-1f"), count=2, profile="l4")
    assert config.place(Stage.REWARD) == config.place("reward")
    assert config.place(Stage.REFERENCE) is None
    assert Config().places == {}
    with pytest.raises(ValueError, match="rewrd"):
        config.place("rewrd")


@given(st.sampled_from(Stage), st.from_regex(r"[A-Za-z0-9_.-]+", fullmatch=True))
def test_every_named_model_of_a_stage_can_have_a_place(stage, name):
    role = role_of(stage, name)
    config = Config.model_validate({"places": {role: {"node": "b"}}})
    assert config.place(role) == Place(node="b")
    assert config.place(stage) is None


MISTAKES = [
    # text, line, key and value
    ('[places.rewrd]\nnode = "a"', 1, "places.rewrd = {'node': 'a'}"),
    ("[places.x]\ncount = 1", 1, "places.x = {'count': 1}"),
    ('[places."reward:"]\ncount = 1', 1, "places.reward: = {'count': 1}"),
    ('[places."reward:a b"]\ncount = 1', 1, "places.reward:a b = {'count': 1}"),
    ('[places."reward:math"]\ncount = 0', 2, "places.reward:math.count = 0"),
    ('[places.reward]\nnodes = "a"', 2, "places.reward.nodes = 'a'"),
    ('[places.reward]\nnode = " "', 2, "places.reward.node = ' '"),
    ("[places.reward]\ndevices = 0", 2, "places.reward.devices = 0"),
    ("[places.reward]\ndevices = [0]", 2, "places.reward.devices.0 = 0"),
    ('[places.reward]\ndevices = ["0", "0"]', 2, "places.reward.devices = ['0', '0']"),
    ('[places.reward]\ndevices = ["0", "1"]\ncount = 3', 3, "places.reward.count = 3"),
    ("places = 3", 1, "places = 3"),
    ("[places]\nreward = 3", 2, "places.reward = 3"),
    ('[runtime]\ntype = "slurm"', 2, "runtime.type = 'slurm'"),
    ('[runtime]\naddress = "auto"', 1, "runtime.type = (not given)"),
    ('[runtime]\ntype = "local"\naddress = "auto"', 3, "runtime.address = 'auto'"),
    ('[runtime]\ntype = "ray"\npatience_s = 0.5', 3, "runtime.patience_s = 0.5"),
    *(
        (f'[runtime]\ntype = "ray"\naddress = "{address}"', 3, f"runtime.address = '{address}'")
        for address in ("Auto", "head", "head:", "head:0", "head:65536", "ray://head:1", ":1")
    ),
]


def test_a_mistake_reads_as_one_line(write, refusal, snapshot):
    messages = []
    for text, line, key_and_value in MISTAKES:
        path = write(text)
        messages.append(refusal(path))
        assert messages[-1].startswith(f"{path}:{line}: {key_and_value}: ")
    snapshot("\n".join(messages))


def test_a_relation_of_two_keys_is_told_from_the_key_that_was_set(write, refusal, snapshot):
    path = write('[places.reward]\ndevices = ["0", "1"]\ncount = 2')
    snapshot(refusal(path, 'places.reward.devices=["7"]'))


def test_the_runtime_is_local_unless_told_otherwise(write):
    assert Config().runtime == LocalRuntimeConfig()
    assert load_config("demo").runtime == LocalRuntimeConfig()
    ray = load_config(str(write('[runtime]\ntype = "ray"'))).runtime
    assert ray == RayRuntimeConfig(address="auto", namespace="ecorl", patience_s=30.0)
    for address in ("local", "10.0.0.7:6379", "head-1.example:1", "[fe80::1]:65535"):
        assert RayRuntimeConfig(address=address).address == address
