"""The tables ``[places]`` and ``[runtime]``: what they mean, and how mistakes in them read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ecorl.config import Config, LocalRuntimeConfig, Place, RayRuntimeConfig, load_config
from ecorl.records import Stage, role_of

STAGES = [str(stage) for stage in Stage]


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


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            '[places.rewrd]\nnode = "a"',
            f":1: places.rewrd = {{'node': 'a'}}: allowed is a role: one of {STAGES}, alone or as "
            "in 'reward:math'; is 'reward' meant?",
        ),
        (
            "[places.x]\ncount = 1",
            f":1: places.x = {{'count': 1}}: allowed is a role: one of {STAGES}, alone or as in "
            "'reward:math'",
        ),
        (
            '[places."reward:"]\ncount = 1',
            ":1: places.reward: = {'count': 1}: allowed is 'reward', or 'reward:' and a name that "
            "matches [A-Za-z0-9_.-]+",
        ),
        (
            '[places."reward:a b"]\ncount = 1',
            ":1: places.reward:a b = {'count': 1}: allowed is 'reward', or 'reward:' and a name "
            "that matches [A-Za-z0-9_.-]+",
        ),
        (
            '[places."reward:math"]\ncount = 0',
            ":2: places.reward:math.count = 0: allowed is a whole number of at least 1 and at most "
            "4096",
        ),
        (
            '[places.reward]\nnodes = "a"',
            ":2: places.reward.nodes = 'a': allowed is one of ['count', 'devices', 'node', "
            "'profile']; is 'node' meant?",
        ),
        (
            '[places.reward]\nnode = " "',
            ":2: places.reward.node = ' ': allowed is text in quotes that is not empty",
        ),
        (
            "[places.reward]\ndevices = 0",
            ":2: places.reward.devices = 0: allowed is a list of texts in quotes",
        ),
        (
            "[places.reward]\ndevices = [0]",
            ":2: places.reward.devices.0 = 0: allowed is text in quotes that is not empty",
        ),
        (
            '[places.reward]\ndevices = ["0", "0"]',
            ":2: places.reward.devices = ['0', '0']: allowed is names of devices, each once",
        ),
        (
            '[places.reward]\ndevices = ["0", "1"]\ncount = 3',
            ":3: places.reward.count = 3: allowed is 2, the number of names in devices, or no "
            "count",
        ),
        ("places = 3", ":1: places = 3: allowed is a table"),
        ("[places]\nreward = 3", ":2: places.reward = 3: allowed is a table"),
        (
            '[runtime]\ntype = "slurm"',
            ":2: runtime.type = 'slurm': allowed is 'local' or 'ray'",
        ),
        (
            '[runtime]\naddress = "auto"',
            ":1: runtime.type = (not given): allowed is 'local' or 'ray'",
        ),
        (
            '[runtime]\ntype = "local"\naddress = "auto"',
            ":3: runtime.address = 'auto': allowed is one of ['type'] (the keys of type 'local')",
        ),
        (
            '[runtime]\ntype = "ray"\npatience_s = 0.5',
            ":3: runtime.patience_s = 0.5: allowed is a number of at least 1 and at most 3600",
        ),
        *(
            (
                f'[runtime]\ntype = "ray"\naddress = "{address}"',
                f":3: runtime.address = '{address}': allowed is 'auto', 'local' or 'host:port'",
            )
            for address in ("Auto", "head", "head:", "head:0", "head:65536", "ray://head:1", ":1")
        ),
    ],
)
def test_a_mistake_reads_as_one_line(write, refusal, text, line):
    path = write(text)
    assert refusal(path) == f"{path}{line}"


def test_a_relation_of_two_keys_is_told_from_the_key_that_was_set(write, refusal):
    path = write('[places.reward]\ndevices = ["0", "1"]\ncount = 2')
    assert refusal(path, 'places.reward.devices=["7"]') == (
        "--set places.reward.devices = ['7']: allowed is 2 names of devices, as count says, or none"
    )


def test_the_runtime_is_local_unless_told_otherwise(write):
    assert Config().runtime == LocalRuntimeConfig()
    assert load_config("demo").runtime == LocalRuntimeConfig()
    ray = load_config(str(write('[runtime]\ntype = "ray"'))).runtime
    assert ray == RayRuntimeConfig(address="auto", namespace="ecorl", patience_s=30.0)
    for address in ("local", "10.0.0.7:6379", "head-1.example:1", "[fe80::1]:65535"):
        assert RayRuntimeConfig(address=address).address == address
