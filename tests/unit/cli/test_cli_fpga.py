"""``ecorl fpga`` as its user meets it, on models of a few thousand weights."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys

import numpy as np
import pytest

from benchmarks.studies.peers import ModelSize, make_reward_checkpoint
from ecorl import cli
from ecorl.engines.fpga.engine import FpgaEngine
from ecorl.engines.fpga.verdict import VERDICT_FILE
from ecorl.errors import CheckpointError
from ecorl.records import Stage

VOCAB = 60
POSITIONS = 48


@pytest.fixture(autouse=True)
def _needs(require_tool):
    for tool in ("torch", "gxx"):
        require_tool(tool)


@pytest.fixture
def command(monkeypatch, capsys):
    """Run the command in this process: exit code and both streams."""

    def call(*args):
        monkeypatch.setattr(sys, "argv", ["ecorl", *map(str, args)])
        # The command sets defaults for the libraries of its own process.
        for name in ("HF_HUB_OFFLINE", "TOKENIZERS_PARALLELISM"):
            monkeypatch.setenv(name, os.environ.get(name, "1"))
        with pytest.raises(SystemExit) as caught:
            cli.main()
        streams = capsys.readouterr()
        return caught.value.code, streams.out, streams.err

    return call


def the_line(outcome):
    """The one line on standard error of a user's mistake."""
    code, out, err = outcome
    assert (code, out) == (2, "")
    (line,) = err.splitlines()
    assert line.startswith("ecorl: ")
    return line


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fpga") / "reward"
    make_reward_checkpoint(folder, ModelSize(64, 2, 112, 4, 2, VOCAB), POSITIONS, seed=3)
    return folder


@pytest.fixture
def model(made, tmp_path):
    """A reward model of one's own."""
    shutil.copytree(made, tmp_path / "reward")
    return tmp_path / "reward"


def spoil(model):
    """An outlier that only the activations have: one channel is large for every token.

    In float32 nothing is lost; in INT8 all other channels vanish behind it, and no factor between
    two weights would show or mend that.
    """
    from safetensors.numpy import load_file, save_file

    tensors = load_file(model / "model.safetensors")
    tensors["model.embed_tokens.weight"][:, 5] = 40
    save_file(tensors, model / "model.safetensors", metadata={"format": "pt"})
    return model


def pairs_file(folder, n=60, lengths=(3, 30), extra=()):
    rng = np.random.default_rng(1)
    rows = [
        {
            f"{side}_ids": rng.integers(1, VOCAB, rng.integers(*lengths)).tolist()
            for side in ("chosen", "rejected")
        }
        for _ in range(n)
    ]
    path = folder / "pairs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in (*rows, *extra)))
    return path


def validate(command, model, pairs, *options):
    return command("fpga", "validate", "--model", model, "--pairs", pairs, "--threads", 1, *options)


def words(lines):
    """What is told of a validation without its figures: a machine may round otherwise."""
    figure = r"\b\d+(?:[.,]\d+)*(?:e-?\d+)?"
    return re.sub(r" +", " ", re.sub(figure, "#", "\n".join(lines)))


def listing(folder):
    return {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}


# ---------------------------------------------------------------- verdicts


def test_a_model_that_keeps_its_order_is_accepted(command, model, tmp_path):
    code, out, err = validate(command, model, pairs_file(tmp_path))
    assert code == 0
    assert out.splitlines()[-1] == f"verdict: {model / VERDICT_FILE}"
    assert err.startswith("scoring: 480/480")
    verdict = json.loads((model / VERDICT_FILE).read_text())
    assert verdict["accepted"] is True
    assert verdict["rank_flip_share"] <= verdict["budget"] == 0.03
    assert (verdict["n_pairs"], verdict["provenance"]) == (60, "emulated")
    FpgaEngine(model, Stage.REWARD).close()


def test_a_model_that_loses_its_order_is_refused_from_then_on(command, model, tmp_path, snapshot):
    pairs = pairs_file(tmp_path)
    code, out, _ = validate(command, spoil(model), pairs)
    assert code == 1
    snapshot(words(out.splitlines()[-3:-1]))
    verdict = json.loads((model / VERDICT_FILE).read_text())
    assert verdict["accepted"] is False
    assert verdict["rank_flip_share"] > 0.1
    fp16 = verdict["figures"]["precisions"][0]
    assert (fp16["name"], fp16["flips"]["n_pairs"]) == ("FP16", 60)
    assert fp16["flips"]["share"] < verdict["rank_flip_share"] / 3
    with pytest.raises(CheckpointError, match=VERDICT_FILE):
        FpgaEngine(model, Stage.REWARD)
    # judged anew by another budget, in spite of the refusal
    assert validate(command, model, pairs, "--budget", 1)[0] == 0
    FpgaEngine(model, Stage.REWARD).close()


def test_the_verdict_can_go_elsewhere_and_the_pairs_be_fewer(command, model, tmp_path):
    path = tmp_path / "sub" / "verdict.json"
    code, out, _ = validate(command, model, pairs_file(tmp_path), "--out", path, "--limit", 12)
    assert code == 0
    assert re.search(r"\b12 pairs, 2\b", out)
    assert json.loads(path.read_text())["n_pairs"] == 12
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    assert not (model / VERDICT_FILE).exists()


def test_texts_without_an_answer_are_named(command, model, tmp_path, snapshot):
    long = {"chosen_ids": [1] * (POSITIONS + 1), "rejected_ids": [2, 3]}
    other = long | {"rejected_ids": [4]}
    code, out, _ = validate(command, model, pairs_file(tmp_path, extra=[long, other, long]))
    assert code == 0
    assert re.search(r"^INT8 .*\bline 61 chosen, line 62 chosen\b", out, re.M)
    int8 = json.loads((model / VERDICT_FILE).read_text())["figures"]["precisions"][1]
    assert (int8["name"], int8["flips"]["n_pairs"]) == ("INT8", 60)
    snapshot(words(out.splitlines()[:-1]))
    (tmp_path / "pairs.jsonl").write_text(json.dumps(long) + "\n")
    code, out, _ = validate(command, model, tmp_path / "pairs.jsonl")
    assert code == 1
    snapshot(words(out.splitlines()[-3:-2]), "none answered")
    assert json.loads((model / VERDICT_FILE).read_text())["rank_flip_share"] is None


def test_pairs_of_text(command, model, tmp_path):
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(WordLevel({f"w{i}": i for i in range(VOCAB)}, unk_token="w1"))
    core.pre_tokenizer = Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=core).save_pretrained(model)
    numbers = np.random.default_rng(2).integers(1, VOCAB, (2, 20, 8))
    texts = [[" ".join(f"w{i}" for i in row) for row in side] for side in numbers]
    words, ids = tmp_path / "words.jsonl", tmp_path / "ids.jsonl"
    words.write_text("".join(
        json.dumps({"chosen": c, "rejected": r}) + "\n" for c, r in zip(*texts, strict=True)
    ))  # fmt: skip
    ids.write_text("".join(
        json.dumps({"chosen_ids": c.tolist(), "rejected_ids": r.tolist()}) + "\n"
        for c, r in zip(*numbers, strict=True)
    ))  # fmt: skip
    one, other = (validate(command, model, path, "--budget", 1) for path in (words, ids))
    assert one[0] == other[0] == 0
    assert one[1] == other[1]


# ---------------------------------------------------------------- mistakes


def test_a_bad_line_is_one_line_and_leaves_nothing(command, model, tmp_path, snapshot):
    pairs, lines = pairs_file(tmp_path), []
    good = pairs.read_text()
    for line in (
        "{",
        '{"chosen_ids": [1], "rejected_ids": [60]}',
        '{"chosen": "a", "rejected": "b"}',
    ):
        pairs.write_text(f"{good}{line}\n")
        before = listing(tmp_path)
        lines.append(the_line(validate(command, model, pairs)))
        assert listing(tmp_path) == before
    snapshot("\n".join(lines))


def test_options_with_mistakes(command, model, tmp_path, snapshot):
    pairs, lines = pairs_file(tmp_path, n=3), []
    before = listing(tmp_path)
    for options in (
        ("--budget", 3),
        ("--budget", "nan"),
        ("--limit", 0),
        ("--card", "u99"),
        ("--out", model),
        ("--pairs", model / "none.jsonl"),
        ("--model", model / "none"),
    ):
        lines.append(the_line(validate(command, model, pairs, *options)))
        assert listing(tmp_path) == before
    snapshot("\n".join(lines))


def test_a_language_model_has_no_pairs_to_order(command, tmp_path, capsys):
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=VOCAB, hidden_size=32, intermediate_size=64, num_hidden_layers=1,
        num_attention_heads=2,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(tmp_path / "lm")
    capsys.readouterr()  # the library's progress bar
    told = the_line(validate(command, tmp_path / "lm", pairs_file(tmp_path, n=3)))
    assert "ForSequenceClassification" in told


def test_the_group_says_what_it_can_do(command):
    code, out, _ = command("fpga")
    assert code == 2
    assert "validate" in out
