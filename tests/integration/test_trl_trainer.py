"""The trainer of a run is made with what the config says."""

from __future__ import annotations

import pytest

from ecorl.config import validate_config
from roll_adapters.trl.task import TaskFiles
from roll_adapters.trl.trainer import build_trainer

TRAINER = {
    "steps": 7, "per_device_batch_size": 8, "num_generations": 4, "max_completion_length": 6,
    "learning_rate": 3e-4, "beta": 0.25, "temperature": 0.7, "save_every": 3,
}  # fmt: skip


@pytest.mark.parametrize("width", [1, 2])
def test_each_value_of_the_config_is_the_trainers(tiny, tmp_path, width):
    config = validate_config({"seed": 17, "trainer": TRAINER})
    files = TaskFiles(tiny.policy, tiny.reward, tiny.prompts, None, None)
    args = build_trainer(config, files, tmp_path, width).args
    assert args.per_device_train_batch_size * width == TRAINER["per_device_batch_size"]
    assert (args.seed, args.max_steps, args.save_steps) == (17, 7, 3)
    for name in ("num_generations", "max_completion_length", "learning_rate", "beta"):
        assert getattr(args, name) == TRAINER[name], name
    assert args.temperature == TRAINER["temperature"]
