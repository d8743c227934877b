"""The folder of `ecorl demo models`: whole or not there, and usable as it stands."""

from __future__ import annotations

import functools
import io
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from ecorl.config import load_config
from ecorl.errors import ConfigError
from ecorl.ledger import LEDGER_FILE, LedgerReader
from tests.conftest import demand

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from roll_adapters.demo import folder as module  # noqa: E402
from roll_adapters.demo import prepare as making  # noqa: E402

ROOT = Path(__file__).parents[3]
SHORT = {
    "warm_start_target": 2.0,  # cannot be reached: the limit of steps ends it
    "warm_start_max_steps": 2,
    "warm_start_batch": 8,
    "reward_steps": 2,
    "reward_batch": 8,
    "n_sampled": 24,
    "n_pairs": 40,
}
FILES = {
    "attach.toml",
    "demo.json",
    "ecorl.toml",
    "eval.jsonl",
    "pairs.jsonl",
    "prompts.jsonl",
    "train.py",
    *(
        f"{model}/{name}"
        for model in ("policy", "reward")
        for name in ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
    ),
    "policy/generation_config.json",
}


@pytest.fixture(autouse=True)
def short_recipe(monkeypatch):
    monkeypatch.setattr(making, "Recipe", functools.partial(making.Recipe, **SHORT))


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def make(cache):
    def make(folder, seed=1):
        return module.make_demo_folder(folder, seed, cache, Console(file=io.StringIO()))

    return make


def everything(folder):
    return {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}


# ---------------------------------------------------------------- what is written


def test_a_new_folder_has_all_files_and_nothing_lies_beside_it(make, tmp_path):
    written = make(tmp_path / "a" / "demo")
    assert set(written) == everything(tmp_path / "a" / "demo") == FILES
    assert [p.name for p in (tmp_path / "a").iterdir()] == ["demo"]


def test_the_files_can_be_read_by_others_as_any_that_a_user_writes(make, tmp_path):
    (tmp_path / "mine").write_text("")
    make(tmp_path / "demo")
    usual = (tmp_path / "mine").stat().st_mode
    assert all((tmp_path / "demo" / name).stat().st_mode == usual for name in FILES)


def test_an_empty_folder_is_filled_and_stays_the_same_folder(make, tmp_path):
    before = tmp_path.stat().st_ino
    assert set(make(tmp_path)) == everything(tmp_path) == FILES
    assert tmp_path.stat().st_ino == before


def test_the_config_reads_from_any_folder_and_names_what_is_there(make, tmp_path, monkeypatch):
    folder = tmp_path / 'a "b" {c}'
    monkeypatch.chdir(tmp_path)
    make(Path(folder.name), seed=3)
    monkeypatch.chdir("/")
    config = load_config(str(folder / "ecorl.toml"))
    assert (config.task.type, config.seed, config.trainer.steps) == ("files", 3, 60)
    for name in ("policy", "reward", "prompts", "eval_prompts", "pairs"):
        path = getattr(config.task, name)
        assert path.is_absolute()
        assert path.exists(), name


def test_the_pairs_are_what_validation_takes(make, tmp_path):
    from ecorl.engines.fpga.validation.scoring import read_pairs

    make(tmp_path / "demo")
    reward = tmp_path / "demo" / "reward"
    n_tokens = json.loads((reward / "config.json").read_text())["vocab_size"]
    found = read_pairs(tmp_path / "demo" / "pairs.jsonl", reward, n_tokens, None)
    assert len(found.pairs) + found.n_repeated == SHORT["n_pairs"]


def test_rows_longer_than_the_task_s_fit_the_models(make, tmp_path):
    make(tmp_path / "demo")
    for model in ("policy", "reward"):
        config = json.loads((tmp_path / "demo" / model / "config.json").read_text())
        assert config["max_position_embeddings"] == 512


def test_the_script_trains_as_it_stands(make, tmp_path):
    for tool in ("trl", "gxx"):
        demand(tool)
    make(tmp_path / "demo")
    done = subprocess.run(
        [sys.executable, "demo/train.py", "2"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    (run,) = (tmp_path / "runs").iterdir()
    assert f"ecorl report runs/{run.name}" in done.stderr
    assert (run / LEDGER_FILE).is_file()
    with LedgerReader(run) as reader:
        assert {str(row.result.stage) for row in reader.executions()} >= {
            "generation",
            "reward",
            "reference",
        }
    assert everything(tmp_path / "demo") == FILES


# ---------------------------------------------------------------- a folder that holds something


def test_made_a_second_time_nothing_is_written_and_nothing_prepared(make, tmp_path, monkeypatch):
    make(tmp_path / "demo")
    (tmp_path / "demo" / "ecorl.toml").write_text('name = "changed"\n')
    (tmp_path / "demo" / "mine.txt").write_text("mine")
    monkeypatch.setattr(making, "prepare", None)
    assert make(tmp_path / "demo") == []
    assert (tmp_path / "demo" / "ecorl.toml").read_text() == 'name = "changed"\n'


def test_what_is_missing_is_put_back_and_the_rest_stays(make, tmp_path):
    folder = tmp_path / "demo"
    make(folder)
    shutil.rmtree(folder / "reward")
    (folder / "train.py").unlink()
    (folder / "ecorl.toml").write_text('name = "changed"\n')
    written = make(folder)
    assert set(written) == {name for name in FILES if name.startswith("reward/")} | {"train.py"}
    assert everything(folder) == FILES
    assert (folder / "ecorl.toml").read_text() == 'name = "changed"\n'


def refused(make, folder, seed=1):
    before = everything(folder) if folder.is_dir() else None
    with pytest.raises(ConfigError) as caught:
        make(folder, seed)
    assert before is None or everything(folder) == before
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_another_s_folder_is_refused_untouched(make, tmp_path, snapshot):
    (tmp_path / "notes.txt").write_text("mine")
    line = refused(make, tmp_path)
    (tmp_path / "demo.json").write_text('{"origin": 3, "files": null}')
    assert refused(make, tmp_path) == line
    snapshot(f"{line}\n{refused(make, tmp_path / 'notes.txt')}")


def test_a_demo_of_another_seed_or_release_is_refused(make, tmp_path, monkeypatch, snapshot):
    make(tmp_path / "demo")
    line = refused(make, tmp_path / "demo", seed=2)
    monkeypatch.setattr(making, "Recipe", functools.partial(making.Recipe, version=999))
    snapshot(f"{line}\n{refused(make, tmp_path / 'demo')}")


def test_where_nothing_can_be_written_nothing_is_prepared(make, tmp_path, monkeypatch):
    monkeypatch.setattr(making, "prepare", None)
    assert "/proc/none/demo" in refused(make, Path("/proc/none/demo"))


# ---------------------------------------------------------------- interrupted


def test_sigterm_leaves_nothing(make, tmp_path, monkeypatch):
    def ended(*args):
        os.kill(os.getpid(), signal.SIGTERM)
        signal.sigtimedwait([], 5)  # until the handler has run
        raise AssertionError("SIGTERM did not end it")

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(making, "prepare", ended)
    with pytest.raises(KeyboardInterrupt):
        make(tmp_path / "a" / "b" / "demo")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "empty").mkdir()
    with pytest.raises(KeyboardInterrupt):
        make(tmp_path / "empty")
    assert list(tmp_path.rglob("*")) == [tmp_path / "empty"]
    assert signal.getsignal(signal.SIGTERM) is before


def test_ended_between_two_files_an_empty_folder_is_empty_again(make, tmp_path, monkeypatch):
    moves = []
    replace = Path.replace

    def ending(self, target):
        if Path(target).is_relative_to(tmp_path):
            moves.append(target)
            if len(moves) == 4:
                raise KeyboardInterrupt
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", ending)
    with pytest.raises(KeyboardInterrupt):
        make(tmp_path)
    assert len(moves) == 4
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_left_does_no_harm(make, tmp_path):
    (tmp_path / ".making-x" / "demo").mkdir(parents=True)
    (tmp_path / ".making-x" / "demo" / "train.py").write_text("half")
    assert set(make(tmp_path)) == FILES
