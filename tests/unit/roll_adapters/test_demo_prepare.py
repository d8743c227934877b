"""Making the demo's files, by a recipe so small that it takes a second."""

from __future__ import annotations

import functools
import hashlib
import io
import json
import random
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from ecorl.errors import DataError

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from roll_adapters.demo import arithmetic as task  # noqa: E402
from roll_adapters.demo import prepare as module  # noqa: E402

TINY = {
    "hidden_size": 16,
    "n_layers": 1,
    "n_heads": 2,
    "n_kv_heads": 1,
    "warm_start_target": 2.0,  # cannot be reached: the limit of steps ends it
    "warm_start_max_steps": 4,
    "warm_start_batch": 8,
    "reward_steps": 3,
    "reward_batch": 8,
    "n_sampled": 24,
    "n_pairs": 40,
}
N_EVAL = 16


@pytest.fixture(autouse=True)
def tiny_recipe(monkeypatch):
    monkeypatch.setattr(module, "Recipe", functools.partial(module.Recipe, **TINY))


def make(cache, seed=1, n_eval=N_EVAL):
    return module.prepare(cache, seed, n_eval, Console(file=io.StringIO()))


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """One making that the reading tests share."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "Recipe", functools.partial(module.Recipe, **TINY))
        return make(tmp_path_factory.mktemp("cache"))


def digest(folder):
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    return {str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


def rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


# ---------------------------------------------------------------- what is made


def test_all_files_are_there_and_load_as_a_users_would(made):
    from transformers import (
        AutoModelForCausalLM,
        AutoModelForSequenceClassification,
        AutoTokenizer,
    )

    assert AutoModelForCausalLM.from_pretrained(made.policy).config.hidden_size == 16
    reward = AutoModelForSequenceClassification.from_pretrained(made.reward)
    assert reward.config.num_labels == 1
    for folder, side in ((made.policy, "left"), (made.reward, "right")):
        tokenizer = AutoTokenizer.from_pretrained(folder)
        text = task.prompt_of(4721) + task.answer_of(4721)
        assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
        assert tokenizer.padding_side == side
        assert tokenizer.eos_token_id == reward.config.eos_token_id
    facts = json.loads((made.folder / "prepare.json").read_text())["facts"]
    assert made.facts == facts
    assert facts["warm_start_steps"] == 4
    assert 0 <= facts["reward_pair_accuracy"] <= 1


def test_prompts_and_held_out_prompts_share_no_number(made):
    prompts = [row["prompt"] for row in rows(made.prompts)]
    held_out = [row["prompt"] for row in rows(made.eval_prompts)]
    assert len(held_out) == N_EVAL
    assert len(set(prompts) | set(held_out)) == len(prompts) + len(held_out) == 8000
    assert all(row["answer"] == task.answer_to(row["prompt"]) for row in rows(made.eval_prompts))
    assert all(set(row) == {"prompt"} for row in rows(made.prompts))


def test_held_out_pairs_are_rightly_ordered_and_of_held_out_prompts(made):
    held_out = {row["prompt"] for row in rows(made.eval_prompts)}
    pairs = rows(made.pairs)
    assert len(pairs) == 40
    for pair in pairs:
        truth = task.answer_to(pair["prompt"])
        assert pair["prompt"] in held_out
        assert task.badness(truth, pair["chosen"]) < task.badness(truth, pair["rejected"])


def test_the_same_seed_makes_the_same_bytes_and_another_one_others(made, tmp_path):
    again, other = make(tmp_path), make(tmp_path, seed=2)
    assert digest(again.folder) == digest(made.folder)
    assert again.folder.name == made.folder.name
    assert digest(other.folder)["prompts.jsonl"] != digest(made.folder)["prompts.jsonl"]
    assert other.folder != again.folder


def test_another_recipe_has_another_folder(made, tmp_path):
    assert make(tmp_path, n_eval=17).folder.name != made.folder.name


# ---------------------------------------------------------------- making it once


def test_a_second_call_makes_nothing(made, monkeypatch):
    def never(*args):
        raise AssertionError("made again")

    monkeypatch.setattr(module, "_make_files", never)
    before = digest(made.folder)
    again = make(made.folder.parent)
    assert again == made
    assert digest(made.folder) == before


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError, DataError])
def test_an_interrupted_making_leaves_nothing_and_can_be_repeated(
    made, tmp_path, monkeypatch, error
):
    def stop(*args):
        raise error("in the middle")

    with monkeypatch.context() as patch:
        patch.setattr(module, "_train_reward", stop)
        with pytest.raises(error):
            make(tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert digest(make(tmp_path).folder) == digest(made.folder)
    assert len(list(tmp_path.iterdir())) == 1


def test_an_incomplete_folder_is_made_anew(made, tmp_path):
    folder = tmp_path / made.folder.name
    folder.mkdir()
    (folder / "policy").mkdir()
    (folder / "stale.txt").write_text("left behind")
    assert digest(make(tmp_path).folder) == digest(made.folder)


def test_what_another_process_made_meanwhile_is_left_as_it_is(made, tmp_path, monkeypatch):
    folder = tmp_path / made.folder.name
    original = module._make_files

    def slow(*args):
        facts = original(*args)
        shutil.copytree(made.folder, folder)
        (folder / "in use").write_text("by the other process")
        return facts

    monkeypatch.setattr(module, "_make_files", slow)
    assert make(tmp_path).facts == made.facts
    assert (folder / "in use").exists()
    assert list(tmp_path.iterdir()) == [folder]


def test_a_cache_that_cannot_be_written_is_a_user_error_in_one_line(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"task\.cache_dir: ") as caught:
        make(tmp_path / "file" / "cache")
    assert "\n" not in str(caught.value)

    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "_write_lines", full)
    with pytest.raises(DataError, match="No space left on device"):
        make(tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


# ---------------------------------------------------------------- the caller's state


@pytest.mark.parametrize("fails", [False, True])
def test_the_callers_randomness_and_threads_are_untouched(tmp_path, monkeypatch, fails):
    def stop(*args):
        raise RuntimeError

    if fails:
        monkeypatch.setattr(module, "_train_reward", stop)
    n_threads, n_running = torch.get_num_threads(), threading.active_count()
    torch.set_num_threads(2)
    torch.manual_seed(123)
    np.random.seed(5)  # noqa: NPY002
    random.seed(6)
    before = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()  # noqa: NPY002
    try:
        if fails:
            with pytest.raises(RuntimeError):
                make(tmp_path)
        else:
            make(tmp_path)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(n_threads)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (np.random.get_state()[1] == before[1]).all()  # noqa: NPY002
    assert random.getstate() == before[2]
    assert torch.is_grad_enabled()
    assert threading.active_count() <= n_running


# ---------------------------------------------------------------- what the reward model learns from


def test_the_reward_model_learns_from_comparisons_alone(tmp_path, monkeypatch):
    """While it trains, the truth is known within `ranked_pairs` only, which is the annotator."""
    inside = {"training": False, "annotator": False}
    seen = {"questions": 0, "texts": set()}

    def guarded(name):
        original = getattr(task, name)

        def call(*args):
            assert inside["annotator"] or not inside["training"], f"{name} while training"
            return original(*args)

        return call

    def entering(original, flag):
        def call(*args):
            inside[flag] = True
            try:
                return original(*args)
            finally:
                inside[flag] = False

        return call

    def annotate(*args, _original=task.ranked_pairs):
        pairs = _original(*args)
        if inside["training"]:
            assert args[2] == pytest.approx(0.03)  # the noise of the recipe
            seen["questions"] += 1
            for pair in pairs:
                seen["texts"] |= {pair.prompt + pair.chosen, pair.prompt + pair.rejected}
        return pairs

    original_encode = module._encode

    def encode(tokenizer, texts, end):
        if inside["training"]:
            assert set(texts) <= seen["texts"]  # the model reads what was compared, nothing else
        return original_encode(tokenizer, texts, end)

    for name in ("badness", "answer_of", "answer_to"):
        monkeypatch.setattr(task, name, guarded(name))
    monkeypatch.setattr(task, "ranked_pairs", entering(annotate, "annotator"))
    monkeypatch.setattr(module, "_encode", encode)
    monkeypatch.setattr(module, "_train_reward", entering(module._train_reward, "training"))
    made = make(tmp_path)
    assert seen["questions"] == TINY["reward_steps"] * TINY["reward_batch"]
    assert Path(made.reward).is_dir()
