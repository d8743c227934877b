"""A loop of the user's own under `ecorl.measure`: what is recorded of it, and what is not done."""

from __future__ import annotations

import io
import json
import logging
import math
import os
import subprocess
import sys
import time

import numpy as np
import pytest
from rich.console import Console

import ecorl
from ecorl.errors import ConfigError, LedgerError, RunError
from ecorl.records import Action, EventKind, Stage
from ecorl.report import write_report
from tests.fakes.grids import plain_config


@pytest.fixture
def config(tmp_path):
    return plain_config(tmp_path / "run")


# ---------------------------------------------------------------- what is recorded


def test_each_step_is_an_execution_with_its_rows_tokens_and_figures(config, record, descent):
    with ecorl.measure(config, total_steps=4) as run:
        plain = descent(4)
        time.sleep(0.2)  # long enough to be told from the others
        losses, calls_s = [], []

        def done(loss):
            losses.append(loss)
            begin_s = time.monotonic()
            goes_on = run.step(n_samples=16, n_tokens=np.int64(128), loss=np.float32(loss), kl=None)
            calls_s.append((begin_s, time.monotonic()))
            return goes_on

        measured = descent(4, done)
    assert measured.tobytes() == plain.tobytes()
    results = record.results()
    assert [(r.iteration, r.stage, r.action) for r in results] == [
        (i, Stage.ACTOR_TRAIN, Action.GPU) for i in (1, 2, 3, 4)
    ]
    assert {(r.n_sequences, r.n_tokens, r.n_output_tokens) for r in results} == {(16, 128, 128)}
    assert results[0].time_s >= 0.2
    for before, now, result in zip(calls_s, calls_s[1:], results[1:], strict=False):
        assert before[0] <= result.t_start_s <= result.t_end_s <= now[1]
        assert result.time_s <= result.t_end_s - result.t_start_s + 1e-6
    assert results[0].energy.energy_j > 0
    assert record.metrics("loss") == pytest.approx(dict(enumerate(losses, 1)), rel=1e-6)
    assert record.metrics("kl") == dict.fromkeys((1, 2, 3, 4))
    assert all(value > 1e6 for value in record.metrics("peak_memory_host_bytes").values())
    assert record.metrics("peak_memory_step_host_bytes") == {}
    assert record.states() == ["start", "finish"]
    # Nothing is begun behind the last step.
    assert len(record.read("placements")) == 4
    assert record.read("faults") == []


def test_what_nobody_counts_has_no_price(config, record, descent):
    with ecorl.measure(config) as run:
        time.sleep(0.1)
        descent(2, lambda loss: run.step())
    assert {(r.n_sequences, r.n_tokens, r.n_output_tokens) for r in record.results()} == {(0, 0, 0)}
    (edi,) = record.read("edi")
    assert '"cells": []' in edi.json
    assert record.states() == ["start", "finish"]


def test_what_lies_between_two_steps_is_no_training(config, record):
    with ecorl.measure(config, total_steps=2) as run:
        time.sleep(0.1)
        run.end_step(n_samples=1)
        ended_s = time.monotonic()
        time.sleep(0.3)
        begun_s = time.monotonic()
        assert run.begin_step()
        time.sleep(0.1)
        run.step()
        last_s = time.monotonic()
        time.sleep(0.3)
    one, other = record.results()
    assert one.t_end_s <= ended_s < begun_s <= other.t_start_s
    assert other.t_end_s <= last_s
    for step in (one, other):
        assert 0.09 < step.time_s <= step.t_end_s - step.t_start_s + 1e-6


def test_the_facts_of_a_run_stand_in_its_head(config, record):
    facts = {"accumulation_steps": 4, "batch_size": 16, "dataset": "digits"}
    with ecorl.measure(config, facts=facts):
        pass
    meta = record.read("run").meta
    assert meta.items() >= {
        "gradient_accumulation_steps": "4", "per_device_train_batch_size": "16",
        "effective_batch_size": "64", "dataset": "digits", "trainer": "training loop",
    }.items()  # fmt: skip
    assert "policy_model" not in meta


def test_evaluations_and_figures_of_the_run(config, record):
    with ecorl.measure(config, total_steps=1) as run:
        time.sleep(0.2)
        run.step(n_tokens=10)
        run.metric("grad_norm", 2.0)
        run.evaluation("correct", np.array([1, 0, 1]))
        run.evaluation("correct", [True, None, False], phase="before")
        time.sleep(0.2)
        figures = run.figures()
    assert figures["energy/total_j"] > figures["energy/actor_train_j"] > 0
    assert figures["carbon/intensity_g_per_kwh"] == 450.0
    assert record.metrics("grad_norm") == {1: 2.0}
    rows = {row.phase: row.values for row in record.read("evaluations")}
    assert rows == {"after": (1.0, 0.0, 1.0), "before": (1.0, None, 0.0)}


def test_the_memory_of_each_step_alone_where_the_system_tells_it(config, record):
    with ecorl.measure(config, total_steps=3) as run:
        if not run.watch_memory_by_step():
            pytest.skip("this system lets no process set its mark of memory back")
        for size in (0, 80_000_000, 0):
            np.ones(size // 8)
            run.step()
    _, large, small = record.metrics("peak_memory_step_host_bytes").values()
    assert large - small > 60e6
    # The mark of the whole process does not fall.
    first, second, third = record.metrics("peak_memory_host_bytes").values()
    assert first <= second <= third


def test_a_config_s_placement_loads_no_engine(tmp_path, record):
    policy = {"type": "static", "reward": "concurrent", "reference": "concurrent"}
    config = plain_config(tmp_path / "run", placement={"policy": policy})
    with ecorl.measure(config) as run:
        run.step()
    assert 'reward = "gpu"' in record.read("run").config_toml


def test_tables_that_say_nothing_of_a_loop_are_named(tmp_path, caplog):
    file = tmp_path / "ecorl.toml"
    file.write_text(f'run_dir = "{tmp_path}/run"\n[trainer]\nsteps = 500\n')
    with caplog.at_level(logging.WARNING), ecorl.measure(file):
        pass
    assert "['trainer']" in caplog.text


def test_the_start_and_the_end_are_told(config, capsys, tmp_path):
    with ecorl.measure(config) as run:
        run.step()
    start, end = capsys.readouterr().err.splitlines()
    assert f"{tmp_path}/run" in start
    assert "recorded 1 step," in end
    assert end.endswith(f"ecorl report {tmp_path}/run")


# ---------------------------------------------------------------- ends and resumes


class OwnError(Exception):
    """An error of the user's loop."""


def cut(config, n_steps, saves_at=None, folder=None, **options):
    """A training that an error of the user's ends in a step."""
    with pytest.raises(OwnError), ecorl.measure(config, **options) as run:  # noqa: PT012
        while run.n_steps < n_steps:
            run.step(n_tokens=5)
            if run.n_steps == saves_at:
                folder.mkdir(exist_ok=True)
                run.checkpoint(folder)
        raise OwnError


def test_an_error_of_the_loop_goes_through_and_ends_the_record(config, record):
    cut(config, 2, total_steps=5)
    assert record.steps() == [1, 2]
    assert record.states() == ["start", "failure"]
    assert record.ending() == "OwnError"


def test_a_run_that_was_cut_off_goes_on_with_its_record(config, record, tmp_path):
    saved = tmp_path / "checkpoint"
    cut(config, 4, saves_at=3, folder=saved, total_steps=6)
    assert (saved / "ecorl_state.json").is_file()
    with ecorl.measure(config, total_steps=6, from_step=3) as run:
        assert run.n_steps == 3
        while run.n_steps < 6:
            run.step(n_tokens=5)
    assert record.steps() == [1, 2, 3, 4, 5, 6]
    assert record.states() == ["start", "failure", "resume", "finish"]
    assert [row.from_step for row in record.read("attempts")] == [0, 3]
    superseded = [row.result.iteration for row in record.read("executions") if row.superseded]
    assert superseded == [4]


@pytest.mark.parametrize(
    "told",
    [
        "CUDA out of memory. Tried to allocate 2.00 GiB",
        "DefaultCPUAllocator: can't allocate memory: you tried to allocate 80 bytes",
    ],
)
def test_a_loop_that_ran_out_of_memory_is_tried_again_in_its_run(config, record, told):
    def train(n_samples, error=None):
        with ecorl.measure(config, total_steps=2) as run:
            while run.n_steps < 2:
                run.step(n_samples=n_samples)
                if error is not None:
                    raise error

    with pytest.raises(RuntimeError):
        train(8, RuntimeError(told))
    train(4)
    assert [row.from_step for row in record.read("attempts")] == [0, 0]
    rows = [(row.superseded, row.result.n_sequences) for row in record.read("executions")]
    assert rows == [(True, 8), (False, 4), (False, 4)]
    with pytest.raises(RunError, match="step 2"):
        train(4)


def test_a_fresh_start_does_not_write_over_a_run(config, record, tmp_path, snapshot):
    cut(config, 2, saves_at=1, folder=tmp_path / "checkpoint")
    for from_step in (None, 0):
        with (
            pytest.raises(RunError, match="from_step") as caught,
            ecorl.measure(config, from_step=from_step),
        ):
            pass
    snapshot(str(caught.value))
    assert record.steps() == [1, 2]


def test_before_a_checkpoint_a_run_is_started_again_by_overwriting_it(
    config, record, tmp_path, snapshot
):
    cut(config, 2)
    (tmp_path / "run" / "mine.txt").write_text("kept")
    with pytest.raises(RunError) as caught:
        ecorl.measure(config, total_steps=1).open()
    snapshot(str(caught.value))
    with ecorl.measure(config, total_steps=1, overwrite=True) as run:
        run.step()
    assert record.steps() == [1]
    assert record.states() == ["start", "finish"]
    assert (tmp_path / "run" / "mine.txt").is_file()


def test_overwriting_and_going_on_exclude_each_other(config):
    with pytest.raises(ConfigError, match=r"^overwrite = True: allowed is False"):
        ecorl.measure(config, from_step=3, overwrite=True)


def test_a_time_in_the_folder_is_filled_in_when_the_record_is_opened(config, tmp_path):
    timed = config.model_copy(update={"run_dir": tmp_path / "timed" / "{time}"})
    with ecorl.measure(timed, total_steps=1) as run:
        run.step()
    (made,) = (tmp_path / "timed").iterdir()
    assert run.folder == made
    assert "{" not in str(made)


def test_a_finished_run_and_another_config_are_refused(tmp_path, config, snapshot):
    other = plain_config(tmp_path / "run", accounting={"pue": 1.5})
    cut(config, 1)
    with pytest.raises(ConfigError, match=r"accounting\.pue = 1\.5: allowed is 1\.2"):
        ecorl.measure(other, from_step=1).open()
    with ecorl.measure(config, from_step=1):
        pass
    with pytest.raises(RunError) as caught:
        ecorl.measure(config).open()
    snapshot(str(caught.value))


def test_a_refused_config_leaves_no_folder(tmp_path):
    wrong = plain_config(tmp_path / "run", devices={"gpu": "nobody"})
    with pytest.raises(ConfigError, match=r"devices\.gpu"), ecorl.measure(wrong):
        pass
    assert not (tmp_path / "run").exists()


def test_a_loop_that_is_left_early_can_be_gone_on_with(config, record, snapshot):
    with ecorl.measure(config, total_steps=5) as run:
        run.step()
    assert record.states() == ["start", "stop"]
    snapshot(record.ending())


def test_more_steps_than_were_told(config, record, caplog, snapshot):
    with ecorl.measure(config, total_steps=2) as run:
        for _ in range(4):
            assert run.step(loss=1.0)
    snapshot("\n".join(line for line in caplog.messages if "total_steps" in line))
    # The first one beyond is told of at its end: nobody knew when it began.
    assert record.steps() == [1, 2, 4]
    assert list(record.metrics("loss")) == [1, 2, 3, 4]
    assert record.states() == ["start", "finish"]


# ---------------------------------------------------------------- bad input


def test_a_wrong_argument_is_one_line(config, tmp_path, snapshot):
    lines = []
    for options in (
        {"total_steps": 0},
        {"total_steps": 2.5},
        {"from_step": -1},
        {"facts": {"accumulation_steps": True}},
        {"facts": {"accumulation_steps": 4, "batch_size": 16, "effective_batch": 60}},
        {"facts": {"origin": "me"}},
    ):
        with pytest.raises(ConfigError) as caught:
            ecorl.measure(config, **options)
        lines.append(str(caught.value))
    assert "facts.effective_batch = 60: allowed is 64" in lines[4]
    snapshot("\n".join(lines))
    assert not (tmp_path / "run").exists()


def test_a_wrong_figure_of_a_step_is_one_line(config, snapshot):
    lines = []
    with ecorl.measure(config) as run:
        for given in ({"n_samples": -1}, {"n_tokens": "many"}, {"loss": "low"}):
            with pytest.raises(ConfigError) as caught:
                run.step(**given)
            lines.append(str(caught.value))
        assert run.n_steps == 0
    snapshot("\n".join(lines))


def test_outside_of_its_block_a_loop_is_not_measured(config):
    run = ecorl.measure(config)
    with pytest.raises(RunError, match="inside `with"):
        run.step()
    with run:
        pass
    with pytest.raises(RunError, match="inside `with"):
        run.step()


@pytest.mark.parametrize("told", ["2", "16"])
def test_one_of_several_processes_is_refused(config, monkeypatch, told):
    monkeypatch.setenv("WORLD_SIZE", told)
    with pytest.raises(ConfigError, match=f"WORLD_SIZE = '{told}': allowed is 1"):
        ecorl.measure(config)


# ---------------------------------------------------------------- faults of ecorl's own


@pytest.mark.parametrize("call", ["on_stage_start", "on_stage_end", "settle", "tick", "totals"])
@pytest.mark.parametrize("error", [LedgerError("no room"), OSError(28, "no space"), KeyError("x")])
def test_a_fault_of_ours_never_reaches_the_loop(config, record, caplog, call, error):
    with ecorl.measure(config, total_steps=3) as run:

        def fail(*args, **kwargs):
            raise error

        setattr(run._runtime, call, fail)
        for _ in range(3):
            assert run.step(loss=1.0) is True
        assert isinstance(run.figures(), dict)
    lines = [r for r in caplog.records if "training goes on" in r.message]
    assert len(lines) == 1
    assert {fault.kind for fault in record.read("faults")} == {type(error).__name__}
    assert list(record.metrics("loss")) == [1, 2, 3]
    assert record.states() == ["start", "finish"]


def test_a_sampler_that_dies_costs_figures_alone(config, record):
    with ecorl.measure(config, total_steps=3) as run:
        os.kill(run._runtime._monitor.sampler._process.pid, 9)
        for _ in range(3):
            assert run.step()
            time.sleep(0.05)
    assert record.steps() == [1, 2, 3]


def test_a_feed_that_is_dead_delays_nothing_for_long(tmp_path, record):
    feed = {"type": "uk", "base_url": "http://127.0.0.1:9"}
    carbon = {"feeds": [feed], "threshold_g_per_kwh": 100.0, "recheck_s": 0.1}
    config = plain_config(tmp_path / "run", carbon=carbon)
    with ecorl.measure(config, total_steps=2) as run:
        assert run.step()
        assert run.step()
    assert record.steps() == [1, 2]
    assert "IntensityUnknown" in {fault.kind for fault in record.read("faults")}


def test_a_full_disk_costs_rows_alone(tmp_path):
    """In a process of its own, whose files may not grow any more from the second step on."""
    code = """
import resource, signal, sys
import ecorl
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
with ecorl.measure(sys.argv[1], total_steps=200) as run:
    run.step(loss=1.0)
    resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, resource.RLIM_INFINITY))
    for _ in range(199):
        assert run.step(loss=1.0, other=2.0, another=3.0)
    assert run._runtime.record.flush() is False
    print("trained", run.n_steps)
"""
    file = tmp_path / "ecorl.toml"
    file.write_text(f'run_dir = "{tmp_path}/run"\n[telemetry.gpu]\ntype = "modelled"\n')
    done = subprocess.run(
        [sys.executable, "-c", code, str(file)], capture_output=True, text=True, timeout=240
    )
    assert done.stdout.strip() == "trained 200", done.stderr
    assert "rows" in done.stderr
    assert done.returncode == 0


# ---------------------------------------------------------------- what is not imported


def test_importing_ecorl_touches_neither_torch_nor_a_driver():
    code = (
        "import sys, ecorl; loaded = set(sys.modules);"
        "print(sorted({'torch', 'numpy', 'pynvml', 'pyxrt', 'ecorl.loop'} & loaded));"
        "print(callable(ecorl.measure), 'torch' in sys.modules, hasattr(ecorl, 'nothing'))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240)
    assert done.stdout.splitlines() == ["[]", "True False False"], done.stderr


def test_a_loop_of_numpy_needs_no_torch(tmp_path):
    code = """
import sys
for name in ("torch", "transformers", "onnxruntime"):
    sys.modules[name] = None
import ecorl, numpy as np
with ecorl.measure(sys.argv[1], total_steps=3) as run:
    for _ in range(3):
        np.linalg.svd(np.ones((50, 50)))
        assert run.step(n_samples=1)
print("done")
"""
    file = tmp_path / "ecorl.toml"
    file.write_text(f'run_dir = "{tmp_path}/run"\n[telemetry.gpu]\ntype = "modelled"\n')
    done = subprocess.run(
        [sys.executable, "-c", code, str(file)], capture_output=True, text=True, timeout=240
    )
    assert done.stdout.strip() == "done", done.stderr


def test_missing_figures_are_missing(config, record):
    with ecorl.measure(config, total_steps=1) as run:
        run.step(loss=math.nan, other=None)
    assert record.metrics("loss") == {1: None}
    assert record.metrics("other") == {1: None}
    assert record.read("events")[-1].kind is EventKind.FINISH


def test_the_end_leaves_a_footprint_beside_record_and_weights(config, tmp_path):
    weights = tmp_path / "weights"
    weights.mkdir()
    with ecorl.measure(config, total_steps=2) as run:
        run.step(loss=2.0)
        run.step(loss=1.0)
        run.checkpoint(weights)
    told = json.loads((weights / "footprint.json").read_text())
    assert told == json.loads((tmp_path / "run" / "footprint.json").read_text())
    assert (weights / "emissions.csv").is_file()
    assert (told["run"]["steps"], told["run"]["final_loss"]) == (2, 1.0)
    # Nobody counted them: they are missing, and not 0.
    assert told["run"]["samples"] is None
    assert told["run"]["tokens"] is None


def test_the_report_of_a_loop_names_no_algorithm_and_no_tokens_that_nobody_counted(config, record):
    with ecorl.measure(config, total_steps=1) as run:
        time.sleep(0.1)
        run.step()
    out = io.StringIO()
    write_report(run.folder, console=Console(file=out, width=100))
    assert "grpo" not in out.getvalue()
    line = next(x for x in out.getvalue().splitlines() if x.strip().startswith("actor_train"))
    assert line.split()[3] == "-"


def test_rows_that_are_known_of_a_part_of_the_steps_make_no_mean(config, record):
    with ecorl.measure(config, total_steps=2) as run:
        time.sleep(0.1)
        run.step(n_samples=4)
        time.sleep(0.1)
        run.step()
    kept = json.loads((run.folder / "footprint.json").read_text())
    assert kept["run"]["samples"] is None


def test_a_step_that_has_begun_does_not_begin_anew(config, record):
    """Else its device would count as held twice, and its energy be halved."""
    with ecorl.measure(config, total_steps=2) as run:
        assert run.begin_step()
        run.step()
        run.step()
    assert len(record.read("placements")) == len(record.results()) == 2


def test_figures_are_missing_with_a_line_for_each_reason(config, record, caplog):
    with ecorl.measure(config, total_steps=1) as run:
        run.lack("the rows hide")
        run.lack("the rows hide")
        run.step()
    assert caplog.text.count("the rows hide") == 1
    assert [(f.kind, f.detail) for f in record.read("faults")] == [("NotCounted", "the rows hide")]
