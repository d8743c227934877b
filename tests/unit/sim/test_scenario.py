from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from ecorl.errors import ConfigError
from ecorl.records import Algorithm, Stage
from ecorl.scheduler.tables import COLUMN
from ecorl.sim.scenario import FROZEN_ONLY, Scenario
from ecorl.sim.simulation import rules_of
from ecorl.sim.tasks import LONGEST, POINTS, SHARES, TASKS
from tests.fakes.scenarios import ALL_ABILITIES, SCENARIO


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("n_rows", 0),
        ("n_gpus", 0),
        ("n_cards", -1),
        ("n_iterations", 0),
        ("load", -0.1),
        ("load", 1.0),
        ("load", math.nan),
        ("calm", 0.4),
        ("calm", 1.1),
        ("drift_memory", 1.0),
        ("drift_memory", -0.1),
        ("slow", 0.9),
        ("mix", (0.5, 0.5, 0.5, -0.5)),
        ("mix", (0.25, 0.25, 0.25, 0.2)),
    ],
)
def test_a_bad_value_is_named_with_its_key(key, value):
    with pytest.raises(ConfigError) as error:
        replace(SCENARIO, **{key: value})
    assert error.value.key == f"scenario.{key}"
    assert repr(error.value.value) == repr(value)


def test_the_fitted_calibration_needs_a_table():
    with pytest.raises(ConfigError, match=r"scenario\.fitted"):
        replace(SCENARIO, calibration="fitted")
    table = SCENARIO.table
    assert replace(SCENARIO, calibration="fitted", fitted=table).table is table


def test_unknown_devices_and_sizes_are_named():
    with pytest.raises(ConfigError, match="h900"):
        assert replace(SCENARIO, gpu="h900").setting
    with pytest.raises(ConfigError, match="9b"):
        assert replace(SCENARIO, sizes={Stage.REWARD: "9b"}).models


def test_training_has_the_shapes_of_what_it_trains():
    models = replace(SCENARIO, sizes={Stage.GENERATION: "70b", Stage.CRITIC: "3b"}).models
    assert models[Stage.ACTOR_TRAIN] == models[Stage.GENERATION]
    assert models[Stage.CRITIC_TRAIN] == models[Stage.CRITIC]
    assert models[Stage.REWARD] != models[Stage.REFERENCE]  # a scalar head
    assert models[Stage.REWARD].n_params_active < models[Stage.REFERENCE].n_params_active


def test_the_mix_is_the_papers_and_lengths_differ_by_task():
    assert tuple(SHARES) == (0.40, 0.25, 0.20, 0.15)
    assert [t.name for t in TASKS] == ["math", "code", "reasoning", "instruction"]
    assert (np.diff(POINTS, axis=1) > 0).all()
    assert (POINTS.max(axis=1) < LONGEST).all()
    # Quantiles of equal weight keep the median.
    middle = np.exp(np.log(POINTS[:, 3:5]).mean(axis=1))
    assert middle == pytest.approx([t.median_length for t in TASKS])


def test_the_nominal_length_is_that_of_the_mix_up_to_the_limit():
    one = replace(SCENARIO, mix=(0.0, 0.0, 0.0, 1.0), max_length=1e9)
    assert one.nominal_length == pytest.approx(POINTS[3].mean())
    assert replace(one, length_scale=2.0).nominal_length == pytest.approx(2 * POINTS[3].mean())
    short = replace(one, max_length=200.0)
    assert short.nominal_length == pytest.approx(np.minimum(POINTS[3], 200.0).mean())


def test_rows_stay_or_keep_the_tokens_even():
    lengths = np.geomspace(16, 4096, 20)
    assert (SCENARIO.rows_at(lengths) == SCENARIO.n_rows).all()
    adaptive = replace(SCENARIO, adaptive_batch=True)
    rows = adaptive.rows_at(lengths)
    assert rows.min() == SCENARIO.n_rows / 2
    assert rows.max() == SCENARIO.n_rows * 2
    tokens = rows * (SCENARIO.prompt_length + lengths)
    free = (rows > rows.min()) & (rows < rows.max())
    expected = SCENARIO.n_rows * (SCENARIO.prompt_length + SCENARIO.nominal_length)
    assert tokens[free] == pytest.approx(expected, rel=0.01)
    assert adaptive.rows_at(np.array(adaptive.nominal_length)) == SCENARIO.n_rows


def test_abilities_and_cards_decide_what_is_usable():
    def usable(**changes):
        rules = rules_of([replace(SCENARIO, **changes)])
        return [float(u[0]) for u in rules.usable]

    assert usable() == [1.0, 1.0, 1.0]
    assert usable(abilities=FROZEN_ONLY) == [1.0, 1.0, 0.0]
    assert usable(n_cards=0) == [0.0, 0.0, 0.0]
    large = dict.fromkeys(Stage, "70b")
    assert usable(calibration="roofline", sizes=large) == [0.0, 0.0, 0.0]


def test_only_ppo_can_put_its_critic_off():
    algorithms = (Algorithm.PPO, Algorithm.GRPO, Algorithm.DAPO)
    rules = rules_of([replace(SCENARIO, algorithm=a) for a in algorithms])
    assert rules.defer.tolist() == [1.0, 0.0, 0.0]
    assert rules.stream.tolist() == [1.0, 1.0, 1.0]
    no_cards = rules_of([replace(SCENARIO, n_cards=0, abilities=ALL_ABILITIES)])
    assert (no_cards.stream[0], no_cards.early[0], no_cards.defer[0]) == (0.0, 1.0, 1.0)


def test_a_default_scenario_is_priced_by_physics():
    scenario = Scenario("default")
    assert scenario.calibration == "roofline"
    assert scenario.table.provenance == "modelled"
    assert SCENARIO.table.provenance == "published"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("calibration", "papers"),
        ("mix", (0.5, 0.5)),
        ("concentration", 0.0),
        ("noise_std", -1.0),
        ("drift_std", -0.1),
        ("prompt_length", -5.0),
        ("length_scale", 0.0),
        ("max_length", 0.0),
        ("failure_rate", 2.0),
        ("failure_rate", -1.0),
        ("repair_iterations", 0.0),
        ("burst_s", 0.0),
        ("reward_calls", 0),
        ("ambient_c", math.nan),
    ],
)
def test_a_bad_value_of_any_key_is_named_with_its_key(key, value):
    with pytest.raises(ConfigError, match=rf"scenario\.{key}"):
        replace(SCENARIO, **{key: value})


@pytest.mark.parametrize(("gpu", "card"), [("h100_sxm", "l4"), ("l4", "a100_sxm"), ("l4", "u55c")])
def test_any_device_can_stand_on_either_side(gpu, card):
    sizes = dict.fromkeys(Stage, "0.5b")
    made = Scenario("pair", gpu=gpu, n_gpus=1, card=card, n_cards=2, sizes=sizes, n_rows=64)
    assert made.table.card_usable[:2] == (True, True)
    on_card = made.table.values[:, COLUMN["reward_card_s"]]
    assert (on_card > 0).all()
    assert np.isfinite(made.table.values).all()
    if card == "a100_sxm":
        assert (on_card < made.table.values[:, COLUMN["reward_s"]]).all()
