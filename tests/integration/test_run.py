"""`ecorl run` as a user starts it: finished, killed, stopped, resumed, refused."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

from ecorl import cli
from ecorl.ledger import LedgerReader, is_being_written
from ecorl.records import EVALUATION_ROLE, Action, Stage
from tests import forks
from tests.forks import Fork

STEPS = 12


def config_writer(tiny, tmp_path: Path):
    """A function that writes a config file; keyword arguments replace lines of [task] by key."""

    def write(name: str = "run", **changes: Any) -> Path:
        values = {
            "policy": f'"{tiny.policy}"',
            "reward": f'"{tiny.reward}"',
            "prompts": f'"{tiny.prompts}"',
            "eval_prompts": f'"{tiny.eval_prompts}"',
            "pairs": f'"{tiny.pairs}"',
        } | changes
        task = "\n".join(f"{key} = {value}" for key, value in values.items())
        path = tmp_path / f"{name}.toml"
        path.write_text(
            f"""
name = "{name}"
seed = 5
run_dir = "{tmp_path}/{name}"

[task]
type = "files"
{task}

[trainer]
steps = {STEPS}
per_device_batch_size = 16
num_generations = 4
max_completion_length = 6
learning_rate = 1e-3
save_every = 3

[telemetry]
stale_after_s = 600.0

[placement]
profile_both_paths = true
n_profiling = 4

[placement.policy]
type = "threshold"
"""
        )
        return path

    return write


@pytest.fixture
def write_config(tiny, tmp_path):
    return config_writer(tiny, tmp_path)


def ecorl(*words: str) -> subprocess.CompletedProcess[str]:
    return forks.run("-m", "ecorl.cli", *words, timeout=240)


@pytest.fixture
def here(monkeypatch, capsys):
    """The command in this process, where TRL is loaded already: for what does not train."""

    def call(*words: str) -> subprocess.CompletedProcess[str]:
        monkeypatch.setattr(sys, "argv", ["ecorl", *words])
        capsys.readouterr()  # what the test's own preparation has printed
        with pytest.raises(SystemExit) as caught:
            cli.main()
        streams = capsys.readouterr()
        return subprocess.CompletedProcess(words, caught.value.code, streams.out, streams.err)

    return call


def start(*words: str) -> Fork:
    return Fork("-m", "ecorl.cli", *words, merged=True)


def warned(caplog: Any) -> list[str]:
    """What the command has warned of; a test's own handler takes it in place of the command's."""
    return [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]


def wait_for(condition, timeout_s: float = 240.0) -> None:
    limit = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < limit, "the run did not get that far"
        time.sleep(0.01)


def has_text(file: Path) -> bool:
    return file.exists() and file.stat().st_size > 0


def weights(run_dir: Path) -> dict[str, Any]:
    return load_file(run_dir / "model" / "model.safetensors")


def assert_same_weights(one: Path, other: Path) -> None:
    mine, theirs = weights(one), weights(other)
    assert mine.keys() == theirs.keys()
    for name in mine:
        assert (mine[name] == theirs[name]).all(), name


def cut_off(finished: Path, run_dir: Path) -> Path:
    """A copy of a run as if it had been killed between the last checkpoint and its end."""
    shutil.copytree(finished, run_dir)
    shutil.rmtree(run_dir / "model")
    with contextlib.closing(sqlite3.connect(run_dir / "ledger.sqlite")) as ledger:
        ledger.execute("DELETE FROM event WHERE kind = 'finish'")
        ledger.commit()
    return run_dir


@pytest.fixture(scope="module")
def unbroken(tiny, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("unbroken")
    done = ecorl("run", "--config", str(config_writer(tiny, folder)("unbroken")))
    assert done.returncode == 0, done.stderr
    return folder / "unbroken"


@pytest.mark.slow
def test_killed_at_any_moment_and_resumed_is_the_unbroken_run(
    unbroken, here, write_config, tmp_path
):
    config = write_config("killed")
    run_dir = tmp_path / "killed"
    words: tuple[str, ...] = ("run", "--config", str(config))
    # Killed early (before any checkpoint) and close to the end.
    for step in (1, 10):
        process = start(*words)

        def reached(step: int = step, process: Fork = process) -> bool:
            assert process.poll() is None, process.output()
            if not (run_dir / "ledger.sqlite").exists():
                return False
            with contextlib.closing(LedgerReader(run_dir)) as reader:
                # The record is readable while it is written.
                return any(m.iteration >= step for m in reader.metrics("loss"))

        wait_for(reached)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert here("report", str(run_dir)).returncode == 0
        words = ("run", "--resume", str(run_dir))
    done = here(*words)
    assert done.returncode == 0, done.stderr
    assert_same_weights(unbroken, run_dir)
    with contextlib.closing(LedgerReader(run_dir)) as reader:
        assert len(reader.attempts()) == 3
        assert any(row.superseded for row in reader.executions())
        steps = [m.iteration for m in reader.metrics("loss") if not m.superseded]
        assert sorted(set(steps)) == list(range(1, STEPS + 1))
    again = here("run", "--resume", str(run_dir))
    assert again.returncode == 2
    assert "has finished" in again.stderr


@pytest.mark.slow
def test_sigterm_saves_the_step_and_resume_goes_on(here, unbroken, write_config, tmp_path):
    config = write_config("stopped")
    run_dir = tmp_path / "stopped"
    process = start("run", "--config", str(config))

    def training() -> bool:
        assert process.poll() is None, process.output()
        return (run_dir / "checkpoints" / "checkpoint-3").exists()

    wait_for(training)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=240)
    assert process.returncode == 130, output
    assert f"ecorl run --resume {run_dir}" in output
    assert here("run", "--resume", str(run_dir)).returncode == 0
    assert_same_weights(unbroken, run_dir)


def test_cut_off_after_the_last_step_takes_no_further_step(here, unbroken, tmp_path):
    run_dir = cut_off(unbroken, tmp_path / "cut")
    done = here("run", "--resume", str(run_dir))
    assert done.returncode == 0, done.stderr
    assert_same_weights(unbroken, run_dir)
    with contextlib.closing(LedgerReader(run_dir)) as reader:
        assert max(m.iteration for m in reader.metrics("loss")) == STEPS


def test_a_run_without_a_checkpoint_begins_again_and_says_so(here, unbroken, tmp_path):
    run_dir = cut_off(unbroken, tmp_path / "early")
    shutil.rmtree(run_dir / "checkpoints")
    done = here("run", "--resume", str(run_dir))
    assert done.returncode == 0, done.stderr
    told = (
        f"there is no checkpoint: beginning again from step 0 of {STEPS}; what was recorded before "
        "counts as superseded"
    )
    assert told in done.stdout
    assert_same_weights(unbroken, run_dir)
    with contextlib.closing(LedgerReader(run_dir)) as reader:
        # But for the evaluation before the first step, which is not made again.
        steps = [r for r in reader.executions() if r.attempt == 1 and r.result.iteration > 0]
    assert steps
    assert all(row.superseded for row in steps)


def test_ctrl_c_names_the_command_that_goes_on_before_training_and_while_a_resume_prepares(
    write_config, tmp_path, here
):
    """To the whole group, as a terminal sends it; the folder has a name that a shell would part."""
    run_dir = tmp_path / "my run"
    config = write_config("early")
    words: tuple[str, ...] = ("run", "--config", str(config), "--set", f'run_dir="{run_dir}"')
    ledger = run_dir / "ledger.sqlite"
    for _ in range(2):
        process = Fork("-m", "ecorl.cli", *words, new_session=True)
        # Its record is opened before its models are loaded, or just before its first evaluation.
        # The config is written last: without it a run is none yet, and goes again.
        wait_for(lambda: has_text(run_dir / "config.toml") and is_being_written(ledger))
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=240)
        assert process.returncode == 130, err
        told = f"ecorl: stopped from the keyboard; go on with: ecorl run --resume '{run_dir}'"
        assert err.splitlines() == [told]
        words = ("run", "--resume", str(run_dir))
    again = here("run", "--config", str(config), "--set", f'run_dir="{run_dir}"')
    assert again.returncode == 2
    both = f"go on with `ecorl run --resume '{run_dir}'`, or choose another with --set run_dir"
    assert both in again.stderr


def test_a_resume_goes_by_the_recorded_config_and_leaves_a_living_run_alone(
    here, unbroken, tmp_path
):
    run_dir = cut_off(unbroken, tmp_path / "cut")
    (run_dir / "config.toml").write_text("steps = nonsense")
    half = run_dir / "checkpoints" / "checkpoint-99"
    half.mkdir()
    code = (
        "import sys; from pathlib import Path; from ecorl.ledger import Ledger;"
        "ledger = Ledger.open_for_resume(Path(sys.argv[1]), from_step=int(sys.argv[2]));"
        "print('open', flush=True); sys.stdin.read(); ledger.close()"
    )
    command = [sys.executable, "-c", code, str(run_dir / "ledger.sqlite"), str(STEPS)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as alive:
        assert alive.stdout.readline() == "open\n"
        done = here("run", "--resume", str(run_dir))
        alive.stdin.close()
        alive.wait()
    assert done.returncode != 0
    assert "another process is writing this run" in done.stderr
    assert half.is_dir()
    done = here("run", "--resume", str(run_dir))
    assert done.returncode == 0, done.stderr
    assert not half.exists()
    assert_same_weights(unbroken, run_dir)


@pytest.mark.slow
def test_the_keyboard_stops_a_run_after_its_step_and_says_so(
    here, unbroken, write_config, tmp_path
):
    run_dir = tmp_path / "keyboard"
    process = start("run", "--config", str(write_config("keyboard")))

    def training() -> bool:
        assert process.poll() is None, process.output()
        return (run_dir / "checkpoints" / "checkpoint-3").exists()

    wait_for(training)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=240)
    assert process.returncode == 130, output
    assert "stopping after this step" in output
    with contextlib.closing(LedgerReader(run_dir)) as reader:
        assert [e.kind for e in reader.events()].count("stop") == 1
    assert here("run", "--resume", str(run_dir)).returncode == 0
    assert_same_weights(unbroken, run_dir)


def test_a_folder_that_cannot_be_written_gets_one_line_before_anything_is_prepared(
    here, write_config, tmp_path
):
    config = write_config("bad")
    file = tmp_path / "file"
    file.write_text("")
    for wrong in ("/proc/x", str(file), f"{file}/below"):
        done = here("run", "--config", str(config), "--set", f"run_dir={wrong}")
        assert done.returncode == 2
        assert len(done.stderr.strip().splitlines()) == 1, done.stderr
        assert "run_dir" in done.stderr
        assert wrong in done.stderr


def test_a_finished_run_leaves_everything_behind(unbroken, here):
    for name in ("config.toml", "ledger.sqlite", "report.html", "report.json"):
        assert (unbroken / name).stat().st_size > 0
    with contextlib.closing(LedgerReader(unbroken)) as reader:
        phases = {(e.name, e.phase) for e in reader.evaluations()}
        actions = {row.placement.action for row in reader.placements()}
        offloaded = [r.result for r in reader.executions() if r.result.action is Action.CONCURRENT]
    assert phases >= {
        ("reward", "before"),
        ("reward", "after"),
        ("correct", "before"),
        ("correct", "after"),
        ("rank_flip", "held_out"),
    }
    assert actions == {Action.GPU, Action.CONCURRENT}
    assert {r.iteration for r in offloaded} == {2, *range(4, STEPS + 1)}
    again = here("run", "--config", str(unbroken / "config.toml"))
    assert again.returncode == 2
    told = f"holds a run already, which has finished: see `ecorl report {unbroken}`, or choose"
    assert told in again.stderr


def test_held_out_evaluations_are_recorded_with_what_they_took(unbroken):
    with contextlib.closing(LedgerReader(unbroken)) as reader:
        own = [e.result for e in reader.executions() if e.result.role == EVALUATION_ROLE]
        (values, _) = [e.values for e in reader.evaluations() if e.name == "reward"]
    assert len(own) == 2
    for r in own:
        assert r.n_sequences == len(values)
        assert r.n_output_tokens >= len(values)
        assert r.time_s > 0
        assert r.energy.energy_j > 0  # the first one too: it waits for the first power reading


def test_an_exception_outside_of_training_is_in_the_record(
    here, write_config, tmp_path, monkeypatch
):
    class OwnError(Exception):
        pass

    def fails(*_: Any) -> None:
        raise OwnError("no answers today\nnor tomorrow")

    monkeypatch.setattr("roll_adapters.trl.attempt.evaluate", fails)
    with pytest.raises(OwnError):
        here("run", "--config", str(write_config("broken")))
    with contextlib.closing(LedgerReader(tmp_path / "broken")) as reader:
        ended = [e for e in reader.events() if e.kind in ("stop", "failure", "finish")]
    assert [(e.kind, e.detail) for e in ended] == [("failure", "OwnError: no answers today")]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"policy": '"/nowhere"'}, ["/nowhere", "the policy"]),
        ({"prompts": '"/nowhere.jsonl"'}, ["/nowhere.jsonl (task.prompts)", "cannot be read"]),
        ({"pairs": '"/nowhere.jsonl"'}, ["/nowhere.jsonl (task.pairs)", "cannot be read"]),
    ],
)
def test_missing_inputs_get_one_clear_line(here, write_config, tmp_path, changes, words):
    done = here("run", "--config", str(write_config("bad", **changes)))
    assert done.returncode == 2
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    for word in words:
        assert word in lines[0]
    assert not (tmp_path / "bad").exists()


def test_broken_checkpoint_and_prompt_line_are_named(here, write_config, tiny, tmp_path):
    broken = tmp_path / "broken"
    broken.mkdir()
    for file in tiny.policy.iterdir():
        data = file.read_bytes()
        half = len(data) // 2 if file.suffix == ".safetensors" else len(data)
        (broken / file.name).write_bytes(data[:half])
    done = here("run", "--config", str(write_config("bad", policy=f'"{broken}"')))
    assert done.returncode == 2
    assert str(broken) in done.stderr
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "1"}\n{"prompt": 2}\n')
    done = here("run", "--config", str(write_config("bad", prompts=f'"{prompts}"')))
    assert done.returncode == 2
    assert f"{prompts}:2" in done.stderr
    assert not (tmp_path / "bad").exists()


def test_a_plan_without_an_algorithm_is_for_those_that_trl_trains():
    from ecorl.operate.plan.job import RUN_ALGORITHMS
    from roll_adapters.trl.trainer import TRAINERS

    assert set(RUN_ALGORITHMS) == set(TRAINERS)


def test_an_algorithm_that_trl_lacks_is_refused_before_anything_is_written(
    here, write_config, tmp_path
):
    config = write_config("bad")
    for algorithm in ("ppo", "reinforce++", "dapo"):
        done = here("run", "--config", str(config), "--set", f'algorithm="{algorithm}"')
        assert done.returncode == 2
        line = f"algorithm = '{algorithm}': allowed is 'grpo' or 'rloo' with adapter = 'trl'"
        assert done.stderr.strip().endswith(line), done.stderr
        assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert not (tmp_path / "bad").exists()


def test_a_reward_model_of_two_labels_is_refused_in_one_line(here, write_config, tiny, tmp_path):
    from transformers import AutoConfig, AutoModelForSequenceClassification

    two = tmp_path / "two"
    shutil.copytree(tiny.reward, two)
    config = AutoConfig.from_pretrained(tiny.reward, num_labels=2)
    AutoModelForSequenceClassification.from_config(config).save_pretrained(two)
    done = here("run", "--config", str(write_config("bad", reward=f'"{two}"')))
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert "has 2 labels, and `ecorl run` needs one scalar head" in done.stderr
    assert not (tmp_path / "bad").exists()


def test_a_model_that_the_engine_cannot_run_is_told_once_and_the_run_goes_on(
    here, write_config, tiny, tmp_path, caplog
):
    odd = tmp_path / "odd"
    shutil.copytree(tiny.reward, odd)
    text = (odd / "config.json").read_text()
    assert '"silu"' in text
    (odd / "config.json").write_text(text.replace('"silu"', '"gelu"'))
    config = write_config("odd", reward=f'"{odd}"')
    done = here("run", "--config", str(config), "--set", "trainer.steps=1")
    assert done.returncode == 0, done.stderr
    reason = (
        "stays on the host: the INT8 engine cannot run a model with hidden_act = 'gelu'; it wants "
        "silu"
    )
    assert [w for w in warned(caplog) if "stays" in w] == [f"the reward model (odd) {reason}"]
    with contextlib.closing(LedgerReader(tmp_path / "odd")) as reader:
        rows = [row.placement for row in reader.placements()]
    told = {(p.action, p.reason) for p in rows if p.stage is Stage.REWARD}
    assert told == {(Action.GPU, reason)}


def test_kernels_that_cannot_be_compiled_cost_the_offloading_alone(
    write_config, tmp_path, here, monkeypatch, caplog
):
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setenv("ECORL_CACHE", str(tmp_path / "cache"))  # nor are they there from before
    done = here("run", "--config", str(write_config("bare")), "--set", "trainer.steps=1")
    assert done.returncode == 0, done.stderr
    why = "stays on the host: its engine did not start (no-such-compiler is not on this machine; "
    told = [w for w in warned(caplog) if "stays" in w]
    assert [w[: w.index("the C-simulation")] for w in told] == [
        f"the reward model (reward) {why}",
        f"the reference model (policy) {why}",
    ]


def test_a_bitstream_that_is_not_there_is_told_as_it_was_typed(write_config, here, caplog):
    config = write_config("none")
    offload = 'engine.offload={type = "fpga", bitstream = "no.xclbin"}'
    done = here("run", "--config", str(config), "--set", "trainer.steps=1", "--set", offload)
    assert done.returncode == 0, done.stderr
    assert [w for w in warned(caplog) if "xclbin" in w] == [
        "engine.offload.bitstream = 'no.xclbin': there is no such file; nothing is offloaded, all "
        "stages stay on the host"
    ]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_an_output_that_cannot_be_written_does_not_end_the_training(
    unbroken, write_config, tmp_path
):
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "ecorl.cli", "run", "--config", str(write_config("silent"))],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=240,
            check=False,
        )
    assert done.returncode == 1
    assert "the output cannot be written" in done.stderr
    run_dir = tmp_path / "silent"
    assert_same_weights(run_dir, unbroken)
    assert (run_dir / "report.html").is_file()
