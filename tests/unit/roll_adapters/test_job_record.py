"""The record of a job on Ray: a folder for each start, and begun again without a checkpoint."""

from __future__ import annotations

import pytest

from ecorl.config import Config

pytest.importorskip("ray")

from roll_adapters.ray_jobs.run import OpenedRun

FRESH = (None, None)


def test_a_job_has_a_folder_of_its_own_time_and_goes_on_in_it(tmp_path):
    config = Config(run_dir=tmp_path / "{name}-{time}")
    first = OpenedRun.of(config, None, FRESH, {})
    assert first.config.resolved_run_dir() == first.folder
    first.ledger.close()
    again = OpenedRun.of(config, None, (3, None), {})
    again.ledger.close()
    assert again.folder == first.folder
    other = OpenedRun.of(config, None, FRESH, {})
    assert other.folder != first.folder
    other.withdraw()
    assert list(tmp_path.iterdir()) == [first.folder]


def test_a_job_that_is_started_again_before_a_checkpoint_keeps_its_record(tmp_path):
    config = Config(run_dir=tmp_path / "run")
    OpenedRun.of(config, None, FRESH, {}).ledger.close()
    again = OpenedRun.of(config, None, FRESH, {})
    assert again.ledger.attempt == 2
    again.ledger.close()
