from __future__ import annotations

from functools import partial

import pytest

from ecorl.errors import RunError, UserError
from ecorl.ledger import LEDGER_FILE, Ledger
from ecorl.policy.calibration.calibrate import calibrate
from tests.fakes.hidden_runs import REWARD_CARD, REWARD_GPU, ROWS, all_but, edited, wrote


@pytest.fixture(scope="module")
def ledger(tmp_path_factory):
    return wrote(tmp_path_factory.mktemp("hidden"), seed=1)


@pytest.fixture
def edit(ledger, tmp_path):
    return partial(edited, ledger, tmp_path)


def refusal(folder):
    with pytest.raises(UserError) as caught:
        calibrate(folder)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        ("DELETE FROM execution", "it records 0 executions of generation"),
        (f"DELETE {ROWS} stage = 'generation'", "it records 0 executions of generation"),
        (f"DELETE {ROWS} stage = 'actor_train'", "actor_train on the GPUs has 0 readings"),
        (f"DELETE {ROWS} {REWARD_CARD}", "reward on the card has 0 readings"),
        (f"DELETE {ROWS} stage = 'reference'", "reference on the card has 0 readings"),
        (
            f"DELETE {ROWS} stage = 'reference' AND action = 'gpu'",
            "reference on the GPUs has 0 readings",
        ),
        (all_but(9, REWARD_GPU), "reward on the GPUs has 9 readings"),
        (
            all_but(1, "stage = 'critic_train' AND action = 'gpu'"),
            "critic_train on the GPUs has 1 reading;",
        ),
        (
            f"UPDATE execution SET energy_j = NULL WHERE {REWARD_GPU}",
            "energy of reward on the GPUs has 0 readings",
        ),
        (
            "UPDATE execution SET time_s = NULL WHERE stage = 'critic'",
            "critic on the GPUs has 0 readings",
        ),
        (
            f"UPDATE execution SET fault = 'EngineTimeout' WHERE {REWARD_CARD}",
            "reward on the card has 0 readings",
        ),
        (
            "UPDATE device SET idle_w = NULL WHERE device_id = 'gpu3'",
            "the idle power of gpu3 (h100_sxm) is not in the ledger",
        ),
        (
            "DELETE FROM device WHERE device_id LIKE 'fpga%'",
            "the idle power of fpga0 (u55c) is not in the ledger",
        ),
    ],
)
def test_what_is_missing_is_named(edit, sql, words):
    message = refusal(edit(sql))
    assert "cannot be calibrated" in message
    assert words in message


def test_all_that_is_missing_is_in_one_line(edit):
    message = refusal(edit("DELETE FROM execution WHERE stage IN ('reward', 'critic_train')"))
    for words in ("reward on the GPUs has 0", "reward on the card has 0", "critic_train on the"):
        assert words in message


def test_a_folder_without_a_ledger(tmp_path):
    assert "there is no ledger" in refusal(tmp_path)


@pytest.mark.parametrize("content", [b"", b"no database", b"SQLite format 3\0 cut off"])
def test_a_file_that_is_no_ledger(tmp_path, content):
    (tmp_path / LEDGER_FILE).write_bytes(content)
    assert LEDGER_FILE in refusal(tmp_path)


def test_an_empty_ledger(tmp_path):
    Ledger.create(tmp_path / LEDGER_FILE, run_id="r", config_toml="", meta={}).close()
    assert "it records 0 executions of generation" in refusal(tmp_path)


def test_a_damaged_ledger(edit):
    folder = edit("UPDATE execution SET n_tokens = 'many'")
    assert "cannot be read" in refusal(folder)
    with pytest.raises(RunError):
        calibrate(folder)
