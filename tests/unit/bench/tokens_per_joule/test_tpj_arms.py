"""The arms: what each changes of the config, and why some are not run."""

from __future__ import annotations

import pytest

from ecorl.bench.tokens_per_joule.arms import (
    ADAPTIVE,
    CLOCKS,
    GEARS,
    PLACEMENTS,
    GearChoices,
    arms_of,
)
from ecorl.bench.tokens_per_joule.running.worker_main import gear_choices
from ecorl.config import load_config, validate_config
from ecorl.control import Gear
from ecorl.errors import ConfigError
from ecorl.records import Action

ALL = tuple(PLACEMENTS)


def arms(base, *extras, gears=None, placements=ALL):
    return {arm.name: arm for arm in arms_of(base, placements, gears, extras)}


def without_placement(config):
    return config.model_dump(exclude={"placement"})


def test_placements_differ_in_nothing_but_the_placement():
    base = load_config("demo")
    found = arms(base)
    assert list(found) == list(ALL)
    assert all(without_placement(a.config) == without_placement(base) for a in found.values())
    fixed = {name: found[name].config.placement for name in ALL[:3]}
    assert [(p.policy.reward, p.policy.reference) for p in fixed.values()] == [
        (Action.GPU, Action.GPU),
        (Action.FPGA, Action.FPGA),
        (Action.CONCURRENT, Action.CONCURRENT),
    ]
    assert [found[name].config.placement.policy.type for name in ALL[3:]] == list(ALL[3:])


def test_a_fixed_placement_is_fixed_and_one_that_chooses_keeps_the_config():
    base = validate_config(
        {
            "placement": {
                "policy": {"type": "learned", "path": "mine.onnx"},
                "profile_both_paths": True,
                "energy_margin": 0.1,
                "q_max": 3,
            }
        }
    )
    found = arms(base)
    for name in ALL[:3]:
        placement = found[name].config.placement
        assert (placement.profile_both_paths, placement.energy_margin) == (False, None)
        assert placement.q_max == 3
    learned, looking = found["learned"].config.placement, found["lookahead"].config.placement
    assert str(learned.policy.path) == "mine.onnx"
    assert (learned.profile_both_paths, learned.energy_margin) == (True, 0.1)
    assert (looking.profile_both_paths, looking.energy_margin) == (True, 0.1)


def test_an_unknown_placement_is_named():
    with pytest.raises(ConfigError, match=r"--placements = 'gpu'.*gpu_only"):
        arms_of(load_config("demo"), ["gpu"], None, ())


def test_gears_are_arms_where_they_act_and_say_why_where_not():
    base = load_config("demo")
    found = arms(base, GEARS, gears=GearChoices((Gear.BF16, Gear.FP32)))
    assert len(found) == 2 * len(ALL)
    geared = found["concurrent+gears"]
    assert geared.config.gears.allowed == (Gear.BF16, Gear.FP32)
    assert geared.config.placement == found["concurrent"].config.placement
    none = arms(base, GEARS, gears=GearChoices(why="none acts here"))["gpu_only+gears"]
    assert (none.config, none.why) == (None, "none acts here")


def test_gears_of_the_config_go_before_and_plain_arms_have_none():
    base = load_config("demo", ['gears.allowed=["FP32","BF16"]'])
    found = arms(base, GEARS, gears=GearChoices((Gear.BF16, Gear.FP32)))
    assert found["learned"].config.gears.allowed == ()
    assert found["learned+gears"].config.gears.allowed == (Gear.FP32, Gear.BF16)


def test_a_budget_of_noise_does_not_stand_in_the_way_of_arms_without_gears():
    base = load_config("demo", ['gears={allowed=["BF16","FP8"],noise_budget=0.5}'])
    assert arms(base)["gpu_only"].config.gears.noise_budget is None


def test_what_there_is_not_yet_keeps_its_place(snapshot):
    found = arms(load_config("demo"), ADAPTIVE, CLOCKS)
    assert found["gpu_only+clocks"].config is None
    snapshot(found["gpu_only+clocks"].why)


def test_adaptive_batches_are_an_arm_that_differs_in_nothing_else():
    found = arms(load_config("demo", ["trainer.steps=7"]), ADAPTIVE)
    plain, packed = found["gpu_only"].config, found["gpu_only+adaptive_batch"].config
    assert packed.trainer.adaptive_micro_batch is True
    trainer = packed.trainer.model_copy(update={"adaptive_micro_batch": False})
    assert packed.model_copy(update={"trainer": trainer}) == plain


def test_a_cpu_trains_in_bf16_beside_its_own_fp32(require_tool):
    require_tool("torch")
    assert gear_choices("cpu") == GearChoices((Gear.BF16, Gear.FP32))
