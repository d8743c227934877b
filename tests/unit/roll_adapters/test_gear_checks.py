"""Gears that a framework's training cannot be shifted into are refused in one line."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

pytest.importorskip("ray")
pytest.importorskip("torch")
pytest.importorskip("hydra")

from ecorl.config import validate_config
from ecorl.errors import ConfigError
from roll_adapters.openrlhf.flags import steps_of
from roll_adapters.openrlhf.gears import checks
from roll_adapters.roll.gears import formats
from tests.fakes.openrlhf import flags

BOTH = {"allowed": ["BF16", "FP8"]}


def config_of(gears):
    return validate_config({"gears": gears})


@pytest.mark.parametrize(
    ("gears", "args"),
    [
        (BOTH, {}),
        (BOTH, {"ds__zero_stage": 0, "ds__adam_offload": True}),
        (BOTH, {"ds__zero_stage": 1, "ds__grad_accum_dtype": "fp32", "ds__adam_offload": True}),
        ({"allowed": ["BF16"], "optimizer": "own"}, {"ds__packing_samples": True}),
        ({}, {"ds__zero_stage": 3, "ds__param_dtype": "fp16"}),
    ],
)
def test_gears_over_openrlhf_s_bf16_weights_are_let_through(gears, args):
    checks.check_gears(config_of(gears), flags(**args))


@pytest.mark.parametrize(
    ("gears", "args", "key", "told"),
    [
        ({"allowed": ["FP32", "BF16"]}, {}, "allowed", "a list of BF16 and FP8"),
        ({"allowed": ["BF16", "FP16"]}, {}, "allowed", "a list of BF16 and FP8"),
        (BOTH, {"ds__param_dtype": "fp16"}, "allowed", "--ds.param_dtype fp16"),
        (BOTH, {"ds__zero_stage": 3}, "allowed", "--ds.zero_stage 3"),
        (BOTH, {"ds__tensor_parallel_size": 2}, "allowed", "--ds.tensor_parallel_size 2"),
        (BOTH, {"ds__ring_attn_size": 2}, "allowed", "--ds.ring_attn_size 2"),
        (BOTH, {"ds__load_in_4bit": True}, "allowed", "--ds.load_in_4bit"),
        (BOTH, {"ds__deepcompile": True}, "allowed", "--ds.deepcompile"),
        (BOTH, {"train__enable_ema": True}, "allowed", "--train.enable_ema"),
        (
            BOTH, {"ds__zero_stage": 1, "ds__grad_accum_dtype": "fp32"}, "allowed",
            "--ds.grad_accum_dtype fp32",
        ),
        (BOTH | {"noise_budget": 0.1}, {}, "noise_budget", "left out"),
        (BOTH | {"optimizer": "literal"}, {}, "optimizer", "adaptive or own"),
    ],
)  # fmt: skip
def test_others_are_refused_by_openrlhf_s_flags(gears, args, key, told):
    with pytest.raises(ConfigError) as caught:
        checks.check_gears(config_of(gears), flags(**args))
    assert caught.value.key == f"gears.{key}"
    assert told in caught.value.allowed


def test_the_trainer_s_steps_follow_from_those_of_the_optimizer():
    sizes = {
        "rollout__batch_size": 8, "rollout__n_samples_per_prompt": 4, "train__batch_size": 16,
        "train__max_epochs": 2,
    }  # fmt: skip
    # Ten steps of 32 rows, each row read twice, 16 at a time.
    assert steps_of(flags(**sizes), 40) == 10
    assert steps_of(flags(**sizes), None) is None


# ---------------------------------------------------------------- ROLL


class Read:
    def __init__(self, gears):
        self.config = config_of(gears)

    def error(self, key, value, allowed):
        return ConfigError(key, value, allowed)


def pipeline(strategy="fsdp2_train", **changed):
    config = {"param_dtype": "float32", **changed.pop("config", {})}
    arguments = SimpleNamespace(strategy_name=strategy, strategy_config=config)
    return SimpleNamespace(actor_train=SimpleNamespace(strategy_args=arguments, **changed))


@pytest.mark.parametrize(
    ("gears", "config"),
    [
        ({"allowed": ["FP32", "BF16", "FP8"]}, {}),
        (BOTH, {"param_dtype": "bfloat16"}),
        (BOTH, {"param_dtype": "torch.bfloat16"}),
        ({}, {"param_dtype": "float16"}),
    ],
)
def test_gears_no_wider_than_what_fsdp2_gathers_are_let_through(gears, config):
    formats.check_gears(Read(gears), pipeline(config=config), moves=True)


@pytest.mark.parametrize(
    ("gears", "made", "moves", "key", "told"),
    [
        (BOTH, pipeline("megatron_train"), True, "allowed", "megatron_train: only fsdp2_train"),
        (BOTH, pipeline(), False, "allowed", "[]: in this pipeline nothing is shifted"),
        (BOTH, pipeline(config={"param_dtype": "float16"}), True, "allowed", "param_dtype float16"),
        (
            {"allowed": ["FP32", "BF16"]}, pipeline(config={"param_dtype": "bf16"}), True,
            "allowed", "a list of BF16, FP8: FSDP2 gathers the weights in BF16",
        ),
        ({"allowed": ["FP32", "FP16"]}, pipeline(), True, "allowed", "a list of FP32, BF16, FP8"),
        (BOTH, pipeline(config={"ep_size": 2}), True, "allowed", "ep_size"),
        (
            BOTH, pipeline(use_dynamic_batching_in_train=True), True, "allowed",
            "use_dynamic_batching_in_train",
        ),
        (BOTH | {"noise_budget": 0.1}, pipeline(), True, "noise_budget", "left out"),
        (BOTH | {"optimizer": "literal"}, pipeline(), True, "optimizer", "adaptive or own"),
    ],
)  # fmt: skip
def test_others_are_refused_by_roll_s_settings(gears, made, moves, key, told):
    with pytest.raises(ConfigError) as caught:
        formats.check_gears(Read(gears), made, moves=moves)
    assert caught.value.key == f"ecorl.gears.{key}"
    assert told in caught.value.allowed
