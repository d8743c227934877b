from __future__ import annotations

import tomllib
from dataclasses import asdict

import numpy as np
import pytest

from ecorl.errors import ConfigError
from ecorl.policy.calibration.calibrate import calibrate
from ecorl.policy.calibration.calibration import Calibration
from ecorl.records import Provenance
from tests.fakes.hidden_runs import wrote


@pytest.fixture(scope="module")
def ledger(tmp_path_factory):
    return wrote(tmp_path_factory.mktemp("hidden"), seed=1)


@pytest.fixture(scope="module")
def fitted(ledger):
    return calibrate(ledger)


def same(one, other):
    assert np.array_equal(one.table.lengths, other.table.lengths)
    assert np.array_equal(one.table.values, other.table.values)
    skipped = {"lengths", "values"}
    tables = [{k: v for k, v in asdict(c.table).items() if k not in skipped} for c in (one, other)]
    assert tables[0] == tables[1]
    for name in set(Calibration.__dataclass_fields__) - {"table"}:
        assert getattr(one, name) == getattr(other, name), name


def test_a_calibration_is_saved_and_read(fitted, tmp_path):
    fitted.save(tmp_path / "one.toml")
    read = Calibration.load(tmp_path / "one.toml")
    assert read.table.values == pytest.approx(fitted.table.values, rel=1e-8)
    assert read.counts == fitted.counts
    assert read.provenance is Provenance.MODELLED
    read.save(tmp_path / "two.toml")
    same(Calibration.load(tmp_path / "two.toml"), read)
    assert (tmp_path / "one.toml").read_text() == (tmp_path / "two.toml").read_text()
    said = tomllib.loads((tmp_path / "one.toml").read_text())
    assert said["provenance"] == "modelled"
    assert said["holds_for"]["n_batches"] == fitted.reach.n_batches > 30
    assert said["holds_for"]["completion_least"] < said["holds_for"]["completion_most"]
    assert said["readings"]["reward_card_s"] == fitted.counts["reward_card_s"] > 30


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ('format = "ecorl.calibration/1"', 'format = "other/7"', "format"),
        ('provenance = "modelled"', 'provenance = "guessed"', "provenance"),
        ('algorithm = "ppo"', 'algorithm = "sft"', r"workload\.algorithm"),
        ("\n[holds_for]", "\n[holds_to]", r"holds_for"),
        ("rows_least = ", "rows_least = 0.5 # ", r"holds_for\.rows_least"),
        ("n_rows = 256", "n_rows = 2.5", r"workload\.n_rows"),
        ("card_idle_w = ", "card_idle_w = -", r"powers\.card_idle_w"),
        ("reward_s = [", "reward_s = [1.0, ", r"table\.reward_s"),
        ("critic_s = [", "critic_s = [inf, ", r"table\.critic_s"),
        ("\nlengths = [", "\nlengths = [9e9, ", r"table\.lengths"),
        ("stream = true", 'stream = "yes"', r"abilities\.stream"),
        ("calm = ", "calm = 7.0 #", r"scenario\.calm"),
        ("[powers]", "[powers", "calibration"),
    ],
)
def test_a_file_that_is_not_right_is_refused(fitted, tmp_path, old, new, key):
    path = tmp_path / "one.toml"
    fitted.save(path)
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))
    with pytest.raises(ConfigError, match=key) as caught:
        Calibration.load(path)
    assert "\n" not in str(caught.value)


def test_a_file_that_cannot_be_read_or_written(fitted, tmp_path):
    with pytest.raises(ConfigError, match="readable"):
        Calibration.load(tmp_path / "absent.toml")
    with pytest.raises(ConfigError, match="written"):
        fitted.save(tmp_path / "absent" / "one.toml")
