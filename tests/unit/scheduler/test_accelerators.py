"""GPUs and processors in the card's place: priced by the roofline, in their own precision."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ecorl.config import DeviceConfig
from ecorl.devices import load_profile, parameter_bytes, stage_cost
from ecorl.devices.llama import model_shape
from ecorl.errors import ConfigError
from ecorl.records import Algorithm, Stage
from ecorl.scheduler import CostModel
from ecorl.scheduler.learned import LearnedScheduler
from ecorl.scheduler.policies import RunSetting
from ecorl.scheduler.policy_file import PolicyFile
from ecorl.scheduler.tables import COLUMN, Setting, length_grid, roofline_table, stage_work

LENGTHS = length_grid(64.0, 2048.0)
NAMES = ("l4", "a100_sxm", "host_cpu", "u55c")
BYTES = {"l4": 2, "a100_sxm": 2, "host_cpu": 4, "u55c": 1}
H100 = load_profile("h100_sxm")


def profile(name):
    """A device; this host with a memory that does not hang on the machine."""
    loaded = load_profile(name)
    return with_memory(loaded, 2**36) if name == "host_cpu" else loaded


def with_memory(profile, n_bytes):
    memory = replace(profile.figure("memory_bytes"), value=float(n_bytes))
    return replace(profile, figures={**profile.figures, "memory_bytes": memory})


def setting(card, size="1b", **changes):
    models = {s: model_shape(size, scalar_head=s is Stage.REWARD) for s in Stage}
    made = Setting(Algorithm.PPO, models, 64, 200.0, H100, 8, card)
    return replace(made, **changes)


@pytest.mark.parametrize("name", NAMES)
def test_a_stage_on_the_accelerator_costs_what_its_kind_of_device_costs(name):
    s = setting(profile(name))
    table = roofline_table(s, LENGTHS)
    costs = CostModel(H100, s.card)
    assert table.card_usable == (True, True, True)
    for stage in (Stage.REWARD, Stage.REFERENCE):
        for i, length in enumerate(LENGTHS):
            work = stage_work(s, stage, float(length), s.n_rows)
            cost = costs.fpga_cost(work)
            assert table.values[i, COLUMN[f"{stage}_card_s"]] == pytest.approx(cost.time_s)
            if name != "u55c":
                assert cost == stage_cost(work, s.card)


@pytest.mark.parametrize("name", NAMES)
def test_weights_take_the_bytes_of_the_device_s_own_precision(name):
    card = load_profile(name)
    assert parameter_bytes(card) == BYTES[name]
    shape = model_shape("1b")
    n_params = model_shape("1b", scalar_head=True).n_params + shape.n_params
    both = BYTES[name] * n_params
    short = roofline_table(setting(with_memory(card, 0.99 * both), n_rows=1), LENGTHS)
    assert short.card_usable == (False, False, False)
    precision = {1: "INT8", 2: "BF16", 4: "FP32"}[BYTES[name]]
    assert precision in short.notes[0]
    # Beside them there is no room for the critic's.
    enough = setting(with_memory(card, 1.4 * both), n_rows=1, prompt_length=1.0)
    found = roofline_table(enough, length_grid(1.0, 4.0))
    assert found.card_usable == (True, True, False)
    assert "critic" in found.notes[0]


@pytest.mark.parametrize("name", NAMES)
def test_new_weights_of_the_critic_take_as_long_as_they_have_bytes(name):
    card, critic = profile(name), model_shape("1b")
    table = roofline_table(setting(card), LENGTHS)
    if name == "host_cpu":  # read and written in one memory
        expected = 2 * 4 * critic.n_params / card.value("memory_bytes_per_s")
    else:
        expected = BYTES[name] * critic.n_params / card.value("link_bytes_per_s")
    assert table.resync_s == pytest.approx(expected)


@pytest.mark.parametrize("n_cards", [1, 4])
@pytest.mark.parametrize("name", NAMES)
def test_the_accelerator_draws_the_mean_of_its_stages(name, n_cards):
    s = setting(profile(name), n_cards=n_cards, divides_rows=False)
    table = roofline_table(s, LENGTHS)
    idle_w, active_w = s.card.value("idle_w"), s.card.value("active_w")
    assert table.card_idle_w == n_cards * idle_w
    if name == "u55c":
        assert table.card_active_w == n_cards * active_w
        return
    length = float(LENGTHS[len(LENGTHS) // 2])
    works = [stage_work(s, stage, length, s.n_rows) for stage in (Stage.REWARD, Stage.REFERENCE)]
    works.append(replace(works[0], model=s.models[Stage.CRITIC]))
    found = [stage_cost(work, s.card) for work in works]
    mean_w = sum(c.energy_j for c in found) / sum(c.time_s for c in found)
    assert table.card_active_w == pytest.approx(n_cards * mean_w)
    assert idle_w < mean_w <= active_w


def test_with_starts_of_kernels_that_take_long_it_draws_less_than_under_load():
    slow = load_profile("l4")
    launch = replace(slow.figure("launch_s"), value=0.1)
    slow = replace(slow, figures={**slow.figures, "launch_s": launch})
    table = roofline_table(setting(slow), LENGTHS)
    assert table.card_active_w < 0.9 * slow.value("active_w")


def test_where_it_runs_nothing_its_load_power_stands():
    card = with_memory(load_profile("l4"), 1.0)
    table = roofline_table(setting(card), LENGTHS)
    assert (table.card_active_w, table.resync_s) == (card.value("active_w"), 0.0)
    assert np.all(table.values[:, COLUMN["reward_card_s"]] == 0.0)


# ------------------------------------------------------------ the learned policy


def bound(card, calibration="roofline"):
    models = {Stage.REWARD: model_shape("1b", scalar_head=True)}
    devices = DeviceConfig(calibration=calibration)
    LearnedScheduler(PolicyFile()).bind(RunSetting(H100, card, devices, models, 8.0, 1e5, None))


@pytest.mark.parametrize("name", NAMES)
def test_the_learned_policy_takes_any_of_them(name):
    bound(load_profile(name))


@pytest.mark.parametrize("name", ["l4", "host_cpu"])
def test_it_demands_the_figures_that_their_price_needs(name):
    whole = load_profile(name)
    lacking = {k: f for k, f in whole.figures.items() if k != "mfu_prefill"}
    with pytest.raises(ConfigError, match=rf"{name}\.mfu_prefill = \(not given\)"):
        bound(replace(whole, figures=lacking))
    bound(replace(whole, figures=lacking), "paper")  # its prices are printed
    lacking = {k: f for k, f in whole.figures.items() if k not in ("clock_hz", "link_latency_s")}
    bound(replace(whole, figures=lacking))
