"""``[devices]``, and the device of the torch engine."""

from __future__ import annotations

import pytest

from ecorl.config import Config, parse_config
from ecorl.errors import ConfigError


@pytest.mark.parametrize("line", ["accelerator = 3", "n_accelerators = 0", "fpga = 'u55c'"])
def test_a_mistake_names_the_key_as_it_was_written(line):
    with pytest.raises(ConfigError) as caught:
        parse_config(f"[devices]\n{line}", "c.toml")
    assert f"devices.{line}: allowed is " in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.line == 2


@pytest.mark.parametrize("device", ["cpu", "cuda:0", "cuda:1", "cuda:12"])
def test_the_torch_engine_names_its_device(device):
    config = Config.model_validate({"engine": {"offload": {"type": "torch", "device": device}}})
    assert config.engine.offload.device == device


@pytest.mark.parametrize("device", ["cuda", "gpu", "cuda:-1", "cuda:01", "cuda:1000", "", "mps"])
def test_no_other_device_is_taken(device):
    text = f"[engine.offload]\ntype = 'torch'\ndevice = '{device}'"
    with pytest.raises(ConfigError) as caught:
        parse_config(text, "c.toml")
    message = str(caught.value)
    assert caught.value.line == 3
    assert f"engine.offload.device = {device!r}: " in message
