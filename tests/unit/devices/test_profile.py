from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from ecorl.devices import (
    MissingFigure,
    cheapest,
    dearest,
    load_profile,
    profile_names,
    stage_cost,
)
from ecorl.devices import profile as profile_module
from ecorl.devices.card import CARD_FIGURES, missing_card_figures
from ecorl.devices.host import DeviceFigure, HostCpu, complete_host_figures, read_host_cpu
from ecorl.devices.llama import model_shape
from ecorl.devices.profile import UNITS
from ecorl.engines.fpga.cycles.model import CycleModel
from ecorl.errors import ConfigError
from ecorl.records import ModelShape, Provenance, Stage, StageWork

GOOD = """
name = "mine"
kind = "fpga"
[figures.idle_w]
value = 20
unit = "W"
provenance = "measured"
source = "a meter"
"""


def test_the_packaged_profiles_are_those_promised():
    assert set(profile_names()) == {
        "a100_sxm",
        "b200_sxm",
        "h100_sxm",
        "h200",
        "host_cpu",
        "l4",
        "u55c",
        "v80",
    }


@pytest.mark.parametrize("name", profile_names())
def test_every_packaged_figure_has_unit_provenance_and_source(name):
    profile = load_profile(name)
    assert profile.name == name
    assert profile.kind in ("gpu", "fpga", "cpu")
    for key, figure in profile.figures.items():
        assert figure.unit == UNITS[key]
        assert figure.value > 0
        assert len(figure.source) > 10
        if figure.provenance is Provenance.PUBLISHED:
            assert not figure.source.startswith("assumed")
        if name != "host_cpu" and figure.provenance is Provenance.MODELLED:
            assert figure.source.startswith(("assumed", "fitted", "carried"))


@pytest.mark.parametrize("name", profile_names())
def test_packaged_powers_and_shares_are_ordered(name):
    p = load_profile(name)
    idle, active, tdp = p.get("idle_w"), p.get("active_w"), p.get("tdp_w")
    if idle is not None and active is not None:
        assert idle < active
    if active is not None and tdp is not None:
        assert active <= tdp
    used, total = p.get("n_dsp_used"), p.get("n_dsp")
    if used is not None and total is not None:
        assert used <= total


def test_data_sheet_figures():
    h100, u55c = load_profile("h100_sxm"), load_profile("u55c")
    assert h100.value("peak_bf16_flops") == 989e12
    assert h100.figure("peak_bf16_flops").provenance is Provenance.PUBLISHED
    assert (u55c.value("n_dsp"), u55c.value("n_dsp_used")) == (9024, 3136)
    assert (u55c.value("memory_bytes_per_s"), u55c.value("clock_hz")) == (460e9, 245e6)
    assert load_profile("a100_sxm").get("peak_fp8_flops") is None


def test_a_missing_figure_names_profile_and_key():
    profile = load_profile("v80")
    assert profile.get("clock_hz") is None
    with pytest.raises(MissingFigure, match=r"v80\.clock_hz"):
        profile.value("clock_hz")


def test_a_users_file_is_read(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(GOOD)
    profile = load_profile(str(path))
    assert (profile.name, profile.title, profile.value("idle_w")) == ("mine", "mine", 20.0)
    assert profile.figure("idle_w").provenance is Provenance.MEASURED


@pytest.mark.parametrize(
    ("old", "new", "key", "allowed"),
    [
        ("value = 20", "value = -1", "figures.idle_w.value", "above 0"),
        ("value = 20", "value = nan", "figures.idle_w.value", "finite"),
        ("value = 20", 'value = "20"', "figures.idle_w.value", "number"),
        ("value = 20", "value = true", "figures.idle_w.value", "number"),
        ('unit = "W"', 'unit = "mW"', "figures.idle_w.unit", "'W'"),
        ('"measured"', '"emulated"', "figures.idle_w.provenance", "published"),
        ('source = "a meter"', 'source = " "', "figures.idle_w.source", "sentence"),
        ('source = "a meter"', "", "figures.idle_w", "source"),
        ("[figures.idle_w]", "[figures.power]", "figures.power", "idle_w"),
        ('kind = "fpga"', 'kind = "asic"', "kind", "gpu"),
        ('name = "mine"', "", "name", "non-empty"),
        ('name = "mine"', 'name = "mine"\nwatts = 3', "watts", "figures"),
        ('name = "mine"', "name = ", "(syntax)", "TOML"),
    ],
)
def test_a_bad_file_names_key_value_and_allowed(tmp_path, old, new, key, allowed):
    path = tmp_path / "bad.toml"
    path.write_text(GOOD.replace(old, new))
    with pytest.raises(ConfigError) as error:
        load_profile(str(path))
    assert error.value.key == key
    assert allowed in error.value.allowed
    assert str(path) in str(error.value)


INTERVAL = 'source = "a meter"\nlow = 15\nhigh = 30.5'


def test_an_interval_stands_beside_the_value_and_its_ends_make_work_cheap_or_dear(tmp_path):
    path = tmp_path / "mine.toml"
    share = '[figures.mfu_train]\nvalue = 0.4\nunit = "1"\nprovenance = "modelled"\n'
    text = GOOD.replace('source = "a meter"', INTERVAL)
    path.write_text(f'{text}\n{share}source = "assumed"\nlow = 0.3\nhigh = 0.5\n')
    profile = load_profile(str(path))
    assert (profile.figure("idle_w").low, profile.figure("idle_w").high) == (15.0, 30.5)
    ends = cheapest(profile), dearest(profile)
    assert [end.value("idle_w") for end in ends] == [15.0, 30.5]
    assert [end.value("mfu_train") for end in ends] == [0.5, 0.3]
    assert all(cheapest(end) == end == dearest(end) for end in ends)


@pytest.mark.parametrize(
    ("ends", "key", "allowed"),
    [
        ("low = 15", "figures.idle_w", "low and high or neither"),
        ("low = 21\nhigh = 30", "figures.idle_w.value", "low = 21"),
        ("low = 15\nhigh = 19", "figures.idle_w.value", "high = 19"),
        ("low = 0\nhigh = 30", "figures.idle_w.low", "above 0"),
        ('low = 15\nhigh = "30"', "figures.idle_w.high", "number"),
    ],
)
def test_a_bad_interval_is_refused(tmp_path, ends, key, allowed):
    path = tmp_path / "bad.toml"
    path.write_text(GOOD.replace('source = "a meter"', f'source = "a meter"\n{ends}'))
    with pytest.raises(ConfigError) as error:
        load_profile(str(path))
    assert error.value.key == key
    assert allowed in error.value.allowed


def test_work_between_the_ends_of_a_packaged_profile_costs_what_lies_between():
    work = StageWork(Stage.ACTOR_TRAIN, 64, 64 * 512, 64 * 384, 512, model_shape("1b"))
    profile = load_profile("h100_sxm")
    cheap, middle, dear = (
        stage_cost(work, each) for each in (cheapest(profile), profile, dearest(profile))
    )
    assert cheap.time_s < middle.time_s < dear.time_s
    assert cheap.energy_j < middle.energy_j < dear.energy_j


def test_a_share_above_one_is_refused(tmp_path):
    path = tmp_path / "bad.toml"
    path.write_text(GOOD.replace("idle_w", "mfu_train").replace('"W"', '"1"'))
    with pytest.raises(ConfigError) as error:
        load_profile(str(path))
    assert error.value.key == "figures.mfu_train.value"
    assert error.value.allowed.endswith(" 1")


def with_figures(folder, shipped, **figures):
    """A shipped profile with other values, as a user's file."""
    text = (Path(profile_module.__file__).parent / "profiles" / f"{shipped}.toml").read_text()
    for key, value in figures.items():
        text, n = re.subn(rf"(\[figures\.{key}\]\nvalue = )\S+", rf"\g<1>{value}", text)
        assert n == 1, key
    path = folder / "card.toml"
    path.write_text(text)
    return str(path)


def test_a_device_beyond_its_own_limits_is_refused(tmp_path, snapshot):
    lines = []
    for shipped, key, value in (
        ("u55c", "clock_hz", 7.76e8),
        ("u55c", "n_dsp_used", 9025),
        ("u55c", "idle_w", 74.0),
        ("u55c", "active_w", 151.0),
        ("h200", "active_w", 701.0),
    ):
        path = with_figures(tmp_path, shipped, **{key: value})
        with pytest.raises(ConfigError) as error:
            load_profile(path)
        assert (error.value.key, error.value.value) == (f"figures.{key}.value", value)
        lines.append(str(error.value))
    snapshot("\n".join(lines))


def test_a_device_at_its_own_limits_passes(tmp_path):
    path = with_figures(
        tmp_path, "u55c", clock_hz=7.75e8, n_dsp_used=9024, idle_w=150.0, active_w=150.0
    )
    assert load_profile(path).value("n_dsp_used") == 9024


def test_idle_power_is_held_against_the_limit_where_power_under_load_is_not_known(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(GOOD + GOOD[GOOD.index("[fig") :].replace("idle_w", "tdp_w").replace("20", "9"))
    with pytest.raises(ConfigError) as error:
        load_profile(str(path))
    assert (error.value.key, error.value.value) == ("figures.idle_w.value", 20.0)
    assert "tdp_w = 9 W" in error.value.allowed


@pytest.mark.parametrize("key", CARD_FIGURES)
def test_the_figures_that_a_card_needs_are_those_of_its_cycle_model(key):
    u55c = load_profile("u55c")
    assert missing_card_figures(u55c) == []
    whole = replace(u55c, figures={k: u55c.figure(k) for k in CARD_FIGURES})
    shape = ModelShape(2, 64, 128, 4, 2, 16, 32, 80_000, 80_000)
    CycleModel(shape, whole)
    part = replace(u55c, figures={k: f for k, f in u55c.figures.items() if k != key})
    assert missing_card_figures(part) == [key]
    if key != "memory_bytes":  # the engine's own check asks for it
        with pytest.raises(MissingFigure, match=key):
            CycleModel(shape, part)


def test_an_unknown_name_lists_what_there_is():
    with pytest.raises(ConfigError, match="u55c"):
        load_profile("nosuch")


def test_a_file_that_is_not_text_is_refused(tmp_path):
    path = tmp_path / "bad.toml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="UTF-8"):
        load_profile(str(path))


CPUINFO = """processor : 0
model name : Some CPU
cpu MHz : 3000.000
flags : fpu avx avx2 fma avx512f avx512_vnni
"""


def test_the_host_reads_cpuinfo(tmp_path):
    path = tmp_path / "cpuinfo"
    path.write_text(CPUINFO)
    cpu = read_host_cpu(path)
    assert cpu.model == "Some CPU"
    assert (cpu.fp32_flops_per_cycle, cpu.int8_ops_per_cycle) == (64, 256)
    assert cpu.n_cores >= 1
    assert cpu.memory_bytes > 0


def test_a_host_without_cpuinfo_says_that_its_clock_is_assumed(tmp_path, monkeypatch):
    monkeypatch.setattr("ecorl.devices.host._CLOCK_LIMIT", tmp_path / "none")
    cpu = read_host_cpu(tmp_path / "none")
    assert cpu.clock_source.startswith("assumed")
    assert cpu.fp32_flops_per_cycle == 8


@pytest.mark.parametrize(
    ("flags", "fp32", "int8"),
    [
        *(({"avx512f", "avx512_vnni", "amx_int8"}, 64, 2048), ({"avx2", "fma"}, 32, 64)),
        *(({"avx"}, 16, 32), ({"asimd", "asimddp"}, 16, 64), (set(), 8, 16)),
    ],
)
def test_vector_width_follows_the_flags(flags, fp32, int8):
    cpu = HostCpu("x", 1, 1e9, "test", frozenset(flags), 1)
    assert (cpu.fp32_flops_per_cycle, cpu.int8_ops_per_cycle) == (fp32, int8)


def test_host_figures_scale_with_cores_and_are_modelled():
    cpu = HostCpu("x", 4, 2e9, "test", frozenset({"avx512f"}), 8_000_000_000)
    per_core = {"active_w": DeviceFigure(6.0, "W", Provenance.MODELLED, "assumed")}
    made = complete_host_figures({}, per_core, cpu)
    assert made["active_w"].value == 24.0
    assert made["peak_fp32_flops"].value == 4 * 2e9 * 64
    assert made["peak_fp32_flops"].provenance is Provenance.MODELLED
    assert made["memory_bytes"].value == 8e9
