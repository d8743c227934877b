"""``[devices]``: the accelerator's keys, and their former names."""

from __future__ import annotations

import pytest

from ecorl.config import Config, config_toml, load_config, parse_config
from ecorl.config.devices import DeviceConfig
from ecorl.errors import ConfigError


def told(text, *overrides):
    devices = parse_config(text, "c.toml", overrides).devices
    return devices.accelerator, devices.n_accelerators


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ("u55c", 1)),
        ("[devices]\naccelerator = 'l4'\nn_accelerators = 2", ("l4", 2)),
        ("[devices]\nfpga = 'v80'\nn_fpgas = 3", ("v80", 3)),
        ("[devices]\nfpga = 'v80'\naccelerator = 'v80'", ("v80", 1)),
        ("[devices]\nfpga = 'v80'\nn_accelerators = 4", ("v80", 4)),
    ],
)
def test_the_accelerator_is_read_by_its_name_and_by_its_former_one(text, expected):
    assert told(text) == expected


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        (
            "[devices]\naccelerator = 'l4'\nfpga = 'u55c'",
            2,
            "devices.accelerator = 'l4': allowed is 'u55c', as devices.fpga says, or no fpga",
        ),
        (
            "[devices]\nn_fpgas = 2\nn_accelerators = 1",
            3,
            "devices.n_accelerators = 1: allowed is 2, as devices.n_fpgas says, or no n_fpgas",
        ),
        ("[devices]\naccelerator = 3", 2, "devices.accelerator = 3: allowed is text in quotes"),
        ("[devices]\nn_fpgas = 0", 2, "devices.n_fpgas = 0: allowed is a whole number"),
    ],
)
def test_a_mistake_names_the_key_as_it_was_written(text, line, words):
    with pytest.raises(ConfigError) as caught:
        told(text)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.line == line


@pytest.mark.parametrize("written", ["accelerator", "fpga"])
@pytest.mark.parametrize("asked", ["accelerator", "fpga"])
def test_an_override_goes_before_the_file_whichever_name_each_uses(written, asked):
    assert told(f"[devices]\n{written} = 'u55c'", f"devices.{asked}=l4") == ("l4", 1)


def test_two_overrides_that_disagree_are_refused():
    overrides = ("devices.accelerator=l4", "devices.fpga=v80")
    with pytest.raises(ConfigError, match=r"--set devices\.accelerator = 'l4'"):
        told("", *overrides)


def test_a_saved_config_has_the_new_names_and_reads_back_equal(tmp_path):
    config = parse_config("[devices]\nfpga = 'v80'\nn_fpgas = 3", "c.toml")
    text = config_toml(config)
    assert 'accelerator = "v80"' in text
    assert "n_accelerators = 3" in text
    assert "fpga = " not in text.replace('type = "fpga"', "")
    (tmp_path / "config.toml").write_text(config_toml(config), encoding="utf-8")
    assert load_config(str(tmp_path / "config.toml")) == config


def test_the_names_are_equal_in_python_too():
    assert DeviceConfig(fpga="v80") == DeviceConfig(accelerator="v80")
    assert DeviceConfig(n_fpgas=2).n_accelerators == 2


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
    assert f"engine.offload.device = {device!r}: allowed is text in quotes that matches" in message
