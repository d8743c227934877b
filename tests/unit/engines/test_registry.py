from __future__ import annotations

import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import numpy as np
import pytest

from ecorl.config import EngineConfig
from ecorl.engines.fpga.card.backend import KernelBackend
from ecorl.engines.lanes.isolated import IsolatedEngine
from ecorl.engines.lanes.threaded import ThreadedEngine
from ecorl.engines.registry import (
    GROUP,
    FaultyEngine,
    build_engine,
    engine_spec,
    find_plugin,
    make_engine,
)
from ecorl.errors import CheckpointError, ConfigError, EngineCrashed
from ecorl.records import Stage

NOWHERE = Path("nowhere")


def config(offload, faults=()):
    return EngineConfig.model_validate({"offload": offload, "faults": list(faults)})


def test_unknown_plugin_names_those_that_are_there(toy_path):
    assert {"toy", "toy_broken"} <= {point.name for point in entry_points(group=GROUP)}
    with pytest.raises(ConfigError, match=r"'toi'.*'toy', 'toy_broken'") as caught:
        build_engine(config({"type": "plugin", "name": "toi"}), NOWHERE, Stage.REWARD, "u55c")
    assert caught.value.key == "engine.offload.name"


def test_of_two_plugins_with_a_name_the_first_on_the_path_is_used(tmp_path, monkeypatch):
    for name in ("second", "first"):
        info = tmp_path / name / f"{name}-1.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
        (info / "entry_points.txt").write_text(f"[{GROUP}]\ntwice = {name}:X\n")
        monkeypatch.syspath_prepend(tmp_path / name)
    assert find_plugin("twice").value == "first:X"


def test_plugins_run_on_a_thread_or_in_a_process(toy_path, make_rows):
    for isolated, kind in ((False, ThreadedEngine), (True, IsolatedEngine)):
        table = {"type": "plugin", "name": "toy", "isolated": isolated}
        engine = build_engine(config(table), NOWHERE, Stage.REWARD, "u55c")
        try:
            assert isinstance(engine, kind)
            assert engine.device == "u55c"
            assert float(engine.submit(make_rows([7])).result(10).values[0]) == pytest.approx(0.07)
        finally:
            engine.close()


def test_options_reach_the_factory(toy_path):
    table = {"type": "plugin", "name": "toy", "isolated": False, "options": {"load": "checkpoint"}}
    with pytest.raises(CheckpointError):
        build_engine(config(table), NOWHERE, Stage.REWARD, "u55c")


def test_a_factory_of_something_else_is_refused(toy_path):
    table = {"type": "plugin", "name": "toy_broken", "isolated": False}
    with pytest.raises(EngineCrashed, match="object"):
        build_engine(config(table), NOWHERE, Stage.REWARD, "u55c")


def test_exit_needs_a_process_of_its_own(toy_path):
    table = {"type": "plugin", "name": "toy", "isolated": False}
    faults = [{"kind": "nan", "calls": [0]}, {"kind": "exit", "calls": [1]}]
    with pytest.raises(ConfigError, match=r"engine\.faults\.1\.kind"):
        build_engine(config(table, faults), NOWHERE, Stage.REWARD, "u55c")


def test_specs_carry_what_the_config_says():
    spec = engine_spec(
        config({"type": "fpga", "build": "strict", "threads": 2}), NOWHERE, Stage.REWARD, "u55c"
    )
    assert (spec.kind, spec.device, spec.threads) == ("fpga", "u55c", 2)
    backend = KernelBackend("csim", None, (0,), may_reset=True)
    assert spec.options == {"build": "strict", "threads": 2, "backend": backend}
    # The torch engine stands for the machine that it runs on, not for the card.
    spec = engine_spec(config({"type": "torch"}), NOWHERE, Stage.REFERENCE, "u55c")
    assert (spec.kind, spec.device, spec.options) == (
        "torch",
        "host_cpu",
        {"threads": 1, "dtype": "float32"},
    )


@pytest.mark.parametrize(
    ("accelerator", "device"), [("l4", "cuda:1"), ("host_cpu", "cpu"), ("u55c", "cpu")]
)
def test_the_torch_engine_is_booked_as_the_accelerator_that_it_computes_on(accelerator, device):
    table = config({"type": "torch", "device": device})
    spec = engine_spec(table, NOWHERE, Stage.REWARD, accelerator)
    assert spec.device == ("host_cpu" if accelerator == "u55c" else accelerator)
    assert spec.options.get("torch_device", "cpu") == device


def test_a_profile_of_ones_own_gives_the_engine_its_name(tiny_reward, make_batch, tmp_path):
    path = tmp_path / "second.toml"
    path.write_text('name = "second_cpu"\nkind = "cpu"\n')
    table = config({"type": "torch", "isolated": False})
    engine = build_engine(table, tiny_reward, Stage.REWARD, str(path))
    plain = build_engine(table, tiny_reward, Stage.REWARD, "host_cpu")
    assert (engine.device, plain.device) == ("second_cpu", "host_cpu")
    answers = [e.submit(make_batch(3)).result(240).values for e in (engine, plain)]
    assert answers[0].tobytes() == answers[1].tobytes()
    for one in (engine, plain):
        one.close()


def test_faults_wrap_the_engine(toy_path):
    table = {"type": "plugin", "name": "toy"}
    plain = make_engine(engine_spec(config(table), NOWHERE, Stage.REWARD, "u55c"))
    assert not isinstance(plain, FaultyEngine)
    faults = [{"kind": "raise", "calls": [0]}]
    faulty = make_engine(engine_spec(config(table, faults), NOWHERE, Stage.REWARD, "u55c"))
    assert isinstance(faulty, FaultyEngine)


def test_torch_engines_are_made_by_config(tiny_reward, make_batch):
    engine = build_engine(
        config({"type": "torch", "isolated": False}), tiny_reward, Stage.REWARD, "u55c"
    )
    batch = make_batch(3)
    result = engine.submit(batch).result(240)
    assert (engine.device, len(result.values)) == ("host_cpu", 3)
    engine.close()


def test_importing_the_registry_touches_no_torch():
    code = "import sys, ecorl.engines.registry; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=240)


def test_the_torch_engine_computes_in_the_dtype_asked_for(tiny_policy, make_batch):
    torch_table, fpga_table = config({"type": "torch"}), config({"type": "fpga"})
    spec = engine_spec(torch_table, NOWHERE, Stage.REFERENCE, "u55c", dtype="bfloat16")
    assert spec.options == {"threads": 1, "dtype": "bfloat16"}
    spec = engine_spec(fpga_table, NOWHERE, Stage.REFERENCE, "u55c", dtype="bfloat16")
    assert "dtype" not in spec.options
    with pytest.raises(ConfigError, match="bfloat16"):
        engine_spec(torch_table, NOWHERE, Stage.REFERENCE, "u55c", dtype="int4")
    table = config({"type": "torch", "isolated": False})
    values = []
    for dtype in ("float32", "bfloat16"):
        engine = build_engine(table, tiny_policy, Stage.REFERENCE, "u55c", dtype=dtype)
        (row,) = engine.submit(make_batch(1)).result(240).values
        values.append(row)
        engine.close()
    assert values[0].dtype == values[1].dtype == np.float32
    assert 0 < np.abs(values[0] - values[1]).max() < 0.2


@pytest.mark.parametrize("isolated", [True, False])
def test_bytes_on_the_card_are_known_to_the_dispatcher(toy_path, isolated):
    for options, expected in (({}, None), ({"card_bytes": 12345}, 12345)):
        table = {"type": "plugin", "name": "toy", "isolated": isolated, "options": options}
        faults = [{"kind": "raise", "calls": [0]}]
        engine = build_engine(config(table, faults), NOWHERE, Stage.REWARD, "u55c")
        assert engine.card_bytes == expected
        engine.close()
