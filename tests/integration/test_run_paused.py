"""`ecorl run` under a dirty grid: it waits, is stopped meanwhile, goes on, and keeps its bits."""

from __future__ import annotations

import contextlib
import signal

import pytest

from ecorl.control import Command, Why
from ecorl.controllers.waiting import paused_spans
from ecorl.ledger import LedgerReader
from tests.fakes.recordings import blinking, two, write
from tests.frameworks.openrlhf.attached import toml
from tests.integration import test_run
from tests.integration.test_run import assert_same_weights, config_writer, ecorl, start, wait_for

unbroken, here = test_run.unbroken, test_run.here
pytestmark = pytest.mark.slow


@pytest.fixture
def write_config(tiny, tmp_path):
    """Write a config with a table ``[carbon]``."""

    def write_one(name, carbon, **accounting):
        path = config_writer(tiny, tmp_path)(name)
        more = f"accounting = {toml(accounting)}\n" if accounting else ""
        path.write_text(f"carbon = {toml(carbon)}\n{more}" + path.read_text("utf-8"), "utf-8")
        return path

    return write_one


def choices_of(run_dir):
    with contextlib.closing(LedgerReader(run_dir)) as reader:
        return reader.choices(), paused_spans(reader.choices(), reader.last_times())


def has_paused(run_dir):
    if not (run_dir / "ledger.sqlite").is_file():
        return False
    return any(row.choice.why is Why.DIRTY for row in choices_of(run_dir)[0])


def test_a_run_that_waits_and_pauses_ends_with_the_weights_of_one_that_does_not(
    unbroken,
    write_config,
    tmp_path,
):
    done = ecorl("run", "--config", str(write_config("paused", blinking(tmp_path))))
    assert done.returncode == 0, done.stderr
    assert_same_weights(unbroken, tmp_path / "paused")
    rows, spans = choices_of(tmp_path / "paused")
    assert {Why.DIRTY, Why.CLEAN} <= {row.choice.why for row in rows}
    assert sum(end_s - start_s for start_s, end_s in spans[1]) > 0


def test_a_run_is_stopped_while_it_waits_and_goes_on_later(
    unbroken,
    here,
    write_config,
    tmp_path,
):
    dirty = blinking(tmp_path)
    dirty["feeds"][0]["path"] = str(write(tmp_path, two([400.0] * 3000), "DIRTY_2022.csv"))
    dirty |= {"max_wait_s": 3.0}
    run_dir = tmp_path / "stopped"
    process = start("run", "--config", str(write_config("stopped", dirty)))

    def waiting():
        assert process.poll() is None, process.stdout.read()
        return has_paused(run_dir)

    wait_for(waiting)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=240)
    assert process.returncode == 130, output
    assert f"ecorl run --resume {run_dir}" in output
    rows, _ = choices_of(run_dir)
    assert [row.choice.why for row in rows][-1] is Why.STOPPING
    # What was waited before counts: the wait is over at once, or soon.
    resumed = here("run", "--resume", str(run_dir))
    assert resumed.returncode == 0, resumed.stderr
    assert_same_weights(unbroken, run_dir)
    rows, spans = choices_of(run_dir)
    assert Why.WAITED in {row.choice.why for row in rows if row.attempt == 2}
    # That it is counted, by a clock that stands: tests/unit/runtime/control/test_governor.py.
    waited_s = sum(end_s - start_s for own in spans.values() for start_s, end_s in own)
    assert waited_s > 2.0


def test_a_run_ends_at_its_budget_and_leaves_a_checkpoint(write_config, tmp_path):
    # A millionth of a gram is used up by the first step.
    config = write_config("spent", {}, budget_g=1e-6, over_budget="stop")
    done = ecorl("run", "--config", str(config))
    assert done.returncode == 130, done.stderr
    run_dir = tmp_path / "spent"
    rows, _ = choices_of(run_dir)
    assert rows[-1].choice.command is Command.STOP
    assert rows[-1].choice.why is Why.BUDGET
    assert list((run_dir / "checkpoints").glob("checkpoint-*"))
    assert "budget_g" in done.stderr + done.stdout


def rarely_clean(folder):
    """A table ``[carbon]`` with the default controller, on a grid that is clean an hour a day.

    An hour is a tenth of a second, so that a decision falls into a dirty one nearly always.
    Decisions are as frequent as can be: a fast machine has steps left for a second one, too.
    """
    path = write(folder, two(([400.0] * 23 + [200.0]) * 300), "RARELY_2022.csv")
    feed = {
        "type": "replay", "path": str(path), "speed": 36_000.0,
        "starts_at": "2022-01-21T00:00:00Z",
    }  # fmt: skip
    control = {"controller": "stochastic", "slack": 3.0}
    return {"recheck_s": 0.1, "stale_after_s": 60.0, "feeds": [feed], "control": control}


def test_a_run_under_a_controller_ends_with_the_weights_of_one_without(
    unbroken,
    write_config,
    tmp_path,
):
    done = ecorl("run", "--config", str(write_config("governed", rarely_clean(tmp_path))))
    assert done.returncode == 0, done.stderr
    assert_same_weights(unbroken, tmp_path / "governed")
    rows, spans = choices_of(tmp_path / "governed")
    whys = {row.choice.why for row in rows}
    assert {Why.TIMING, Why.PRICED} <= whys
    assert {row.choice.controller for row in rows} == {"stochastic"}
    assert any(row.choice.command is Command.PAUSE for row in rows)
    assert sum(end_s - start_s for start_s, end_s in spans[1]) > 0
    assert all(row.memory["deadline_s"] for row in rows if row.choice.why is Why.PRICED)
