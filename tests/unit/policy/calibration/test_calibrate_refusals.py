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


WITHOUT = {
    "executions": "DELETE FROM execution",
    "generation": f"DELETE {ROWS} stage = 'generation'",
    "training": f"DELETE {ROWS} stage = 'actor_train'",
    "rewards of the card": f"DELETE {ROWS} {REWARD_CARD}",
    "reference": f"DELETE {ROWS} stage = 'reference'",
    "reference on the GPUs": f"DELETE {ROWS} stage = 'reference' AND action = 'gpu'",
    "rewards but 9": all_but(9, REWARD_GPU),
    "critics but 1": all_but(1, "stage = 'critic_train' AND action = 'gpu'"),
    "energy": f"UPDATE execution SET energy_j = NULL WHERE {REWARD_GPU}",
    "time": "UPDATE execution SET time_s = NULL WHERE stage = 'critic'",
    "answers": f"UPDATE execution SET fault = 'EngineTimeout' WHERE {REWARD_CARD}",
    "idle power": "UPDATE device SET idle_w = NULL WHERE device_id = 'gpu3'",
    "cards": "DELETE FROM device WHERE device_id LIKE 'fpga%'",
    "two stages": "DELETE FROM execution WHERE stage IN ('reward', 'critic_train')",
}


@pytest.mark.parametrize("sql", WITHOUT.values(), ids=WITHOUT)
def test_what_is_missing_is_named_in_one_line(edit, sql, snapshot):
    snapshot(refusal(edit(sql)))


def test_a_folder_without_a_ledger(tmp_path, snapshot):
    snapshot(refusal(tmp_path))


@pytest.mark.parametrize("content", [b"", b"no database", b"SQLite format 3\0 cut off"])
def test_a_file_that_is_no_ledger(tmp_path, content):
    (tmp_path / LEDGER_FILE).write_bytes(content)
    assert LEDGER_FILE in refusal(tmp_path)


def test_an_empty_ledger(tmp_path, snapshot):
    Ledger.create(tmp_path / LEDGER_FILE, run_id="r", config_toml="", meta={}).close()
    snapshot(refusal(tmp_path))


def test_a_damaged_ledger(edit, snapshot):
    folder = edit("UPDATE execution SET n_tokens = 'many'")
    snapshot(refusal(folder))
    with pytest.raises(RunError):
        calibrate(folder)
