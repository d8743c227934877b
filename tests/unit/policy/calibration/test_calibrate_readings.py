from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from ecorl.policy.calibration.calibrate import calibrate
from ecorl.policy.calibration.readings import LONGEST_METRIC, read_run
from ecorl.records import Abilities, Algorithm
from ecorl.scheduler.tables import COLUMN
from ecorl.sim.scenario import Limits
from tests.fakes.hidden_runs import PLAIN, REWARD_CARD, ROWS, edited, wrote


@pytest.fixture(scope="module")
def ledger(tmp_path_factory):
    return wrote(tmp_path_factory.mktemp("hidden"), seed=1)


@pytest.fixture(scope="module")
def fitted(ledger):
    return calibrate(ledger)


@pytest.fixture
def edit(ledger, tmp_path):
    return partial(edited, ledger, tmp_path)


# ---------------------------------------------------------------- readings that do not count


def worst(fitted, folder):
    """Largest change of a cost over lengths, relative."""
    again = calibrate(folder).table
    columns = [i for name, i in COLUMN.items() if not name.startswith("generation")]
    lengths = fitted.table.lengths[2:-2]
    return np.abs(again.at(lengths) / fitted.table.at(lengths) - 1.0)[:, columns].max()


def test_outliers_hardly_move_the_fit(fitted, edit):
    folder = edit(
        "UPDATE execution SET time_s = time_s * 12, energy_j = energy_j / 9 WHERE id % 19 = 0"
    )
    assert worst(fitted, folder) < 0.04


@pytest.mark.parametrize(
    "mark", ["fault = 'EngineCrashed'", "n_rows_fallback = 3", "superseded = 1"]
)
def test_what_is_not_sound_is_left_out(fitted, edit, mark):
    """Were they read, a fifth of the readings at twice their value would show."""
    changed = "time_s = time_s * 2, energy_j = energy_j * 2"
    folder = edit(
        f"UPDATE execution SET {mark}, {changed} WHERE id % 5 = 0 AND stage <> 'generation'"
    )
    assert worst(fitted, folder) < 0.06
    clean = calibrate(folder).counts["critic_train_s"]
    assert clean < fitted.counts["critic_train_s"]


def test_a_stage_that_ran_on_both_sides_for_a_batch_is_no_reading(ledger, fitted, edit):
    """As when the exact path answers what the card lost."""
    folder = edit(
        f"CREATE TEMP TABLE more AS SELECT * {ROWS} {REWARD_CARD}",
        "UPDATE more SET id = id + 1000000, action = 'gpu', n_sequences = 5, time_s = 1e-3, "
        "device_id = (SELECT device_id FROM execution WHERE stage = 'generation' LIMIT 1) ",
        "DELETE FROM more WHERE iteration % 3 > 0",
        "INSERT INTO execution SELECT * FROM more",
    )
    assert worst(fitted, folder) < 0.06
    assert calibrate(folder).counts["reward_card_s"] < fitted.counts["reward_card_s"]


# ---------------------------------------------------------------- what the ledger does not tell


def test_without_the_longest_completion_generation_goes_by_tokens(fitted, edit, snapshot):
    folder = edit(f"DELETE FROM metric WHERE name = '{LONGEST_METRIC}'")
    found = calibrate(folder)
    for unit in "sj":
        short, long = (COLUMN[f"generation_{name}_{unit}"] for name in ("short", "long"))
        assert found.table.values[:, short] == pytest.approx(found.table.values[:, long])
    snapshot("\n".join(note for note in found.notes if note not in fitted.notes))


def test_without_tasks_the_mix_is_assumed(fitted, edit, snapshot):
    found = calibrate(edit("DELETE FROM metric WHERE name LIKE 'task_share%'"))
    assert found.lengths.concentration > 1000
    snapshot("\n".join(note for note in found.notes if note not in fitted.notes))


def test_without_overlaps_their_prices_are_assumed(edit):
    found = calibrate(
        edit(
            "DELETE FROM execution WHERE action = 'concurrent' AND stage IN "
            "('generation', 'actor_train', 'critic_train')"
        )
    )
    assert found.abilities == Abilities(False, False, False, True)
    assert (found.table.forward_share, found.table.early_share) == (1 / 3, 0.10)
    assert (found.table.swap_share, found.table.contention) == (0.06, 0.55)
    assert sum("assumed" in note for note in found.notes) >= 3


def test_a_config_that_says_nothing(fitted, edit, snapshot):
    found = calibrate(edit("UPDATE run SET config_toml = ''"))
    assert found.algorithm is Algorithm.PPO  # a critic ran
    assert found.limits == Limits()
    snapshot("\n".join(note for note in found.notes if note not in fitted.notes))


def test_a_full_queue_counts_also_where_the_policy_itself_proposed_the_gpu(tmp_path):
    run = wrote(tmp_path / "run", replace(PLAIN, load=0.6, limits=Limits(q_max=1.0)))
    before = read_run(run).refused
    assert len(before) > 5
    other = tmp_path / "other"
    other.mkdir()
    asked = "UPDATE placement SET proposed = 'gpu', reason = 'as told' WHERE refusal = 'queue_full'"
    assert read_run(edited(run, other, asked)).refused == before
