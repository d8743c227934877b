"""Tiny checkpoints, batches, and a plug-in engine that needs no torch and so starts fast."""

from __future__ import annotations

import functools
import os
import textwrap

import numpy as np
import psutil
import pytest
from int8_models import saved_model

from ecorl.engines.protocol import ScoreBatch

TINY_VOCAB = 64

TOY_ENGINE = '''
import os, time
import numpy as np
from ecorl.engines.protocol import EngineReport, LogprobResult, ScoreResult
from ecorl.errors import CheckpointError, ConfigError, EngineError
from ecorl.records import ModelShape, Provenance

RAISE, HANG, EXIT, LOSE, OWN = 9001, 9002, 9003, 9004, 9005


class Lost(BaseException):
    """Nothing that a caller could foresee."""


class ToyEngine:
    """reward = sum of the tokens / 100; log-prob of token t = -(t + 1) / 100; magic tokens."""

    name = "toy"
    row_invariant = True

    def __init__(self, checkpoint, stage, device, *, load="ok", closed_marker=None, close="ok",
                 card_bytes=None):
        print("the toy engine prints on standard output")
        if load == "config":
            raise ConfigError("toy.load", [1, 2], "something else", "toy.toml", 3)
        if load == "checkpoint":
            raise CheckpointError(f"{checkpoint} is broken")
        if load == "exit":
            os._exit(3)
        if load == "hang":
            time.sleep(600)
        if load == "error":
            raise RuntimeError("the toy is broken")
        self.stage, self.device = stage, device
        self.model = ModelShape(1, 2, 3, 1, 1, 2, 10000, 7, 5)
        if card_bytes is not None:
            self.card_bytes = card_bytes
        self._marker, self._close = closed_marker, close
        self._closed = False

    def _check(self, batch):
        if self._closed:
            raise EngineError("the toy is closed")
        tokens = {int(t) for row in batch.token_ids for t in row}
        if RAISE in tokens:
            raise ValueError("a raising token")
        if HANG in tokens:
            time.sleep(600)
        if EXIT in tokens:
            os._exit(5)
        if LOSE in tokens:
            raise Lost("lost")
        if OWN in tokens:
            raise EngineError("the toy says no")

    def score(self, batch):
        self._check(batch)
        values = np.array([row.sum() / 100 for row in batch.token_ids], dtype=np.float32)
        return ScoreResult(batch.sample_ids, values, self._report())

    def logprobs(self, batch):
        self._check(batch)
        values = tuple(
            (-(row[len(row) - n:] + 1) / 100).astype(np.float32)
            for row, n in zip(batch.token_ids, batch.n_completion)
        )
        return LogprobResult(batch.sample_ids, values, self._report())

    def _report(self):
        return EngineReport(0.5, None, Provenance.MODELLED, 0.25)

    def close(self):
        self._closed = True
        if self._close == "hang":
            time.sleep(600)
        if self._marker:
            open(self._marker, "w").close()


def not_an_engine(checkpoint, stage, device):
    return object()
'''


@pytest.fixture(scope="session")
def toy_folder(tmp_path_factory):
    """A folder that, on ``sys.path``, is an installed package with engine plug-ins."""
    folder = tmp_path_factory.mktemp("toy")
    (folder / "toy_engine.py").write_text(TOY_ENGINE)
    info = folder / "toy_engine-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-engine\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        textwrap.dedent(
            """\
            [ecorl.engines]
            toy = toy_engine:ToyEngine
            toy_broken = toy_engine:not_an_engine
            """
        )
    )
    return folder


@pytest.fixture
def toy_path(toy_folder, monkeypatch):
    """The toy plug-ins are installed for the length of a test."""
    monkeypatch.syspath_prepend(str(toy_folder))
    return toy_folder


def llama_config(**changes):
    from transformers import LlamaConfig

    fields = {
        "vocab_size": TINY_VOCAB,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
        "initializer_range": 0.15,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
        "tie_word_embeddings": False,
    }
    return LlamaConfig(**(fields | changes))


@pytest.fixture(scope="session")
def tiny_tokenizer():
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from transformers import PreTrainedTokenizerFast

    words = {"<pad>": 0, "<bos>": 1, "<eos>": 2, "<unk>": 3}
    words |= {f"w{index}": index for index in range(4, TINY_VOCAB)}
    core = Tokenizer(WordLevel(words, unk_token="<unk>"))
    core.pre_tokenizer = Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>"
    )


@pytest.fixture(scope="session")
def tiny_policy(tmp_path_factory, tiny_tokenizer):
    """Checkpoint folder of a causal language model with random weights."""
    import torch
    from transformers import LlamaForCausalLM

    folder = tmp_path_factory.mktemp("tiny") / "policy"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        LlamaForCausalLM(llama_config()).save_pretrained(folder)
    tiny_tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_reward(tmp_path_factory, tiny_tokenizer):
    """Checkpoint folder of a reward model with random weights."""
    import torch
    from transformers import LlamaForSequenceClassification

    folder = tmp_path_factory.mktemp("tiny") / "reward"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        LlamaForSequenceClassification(llama_config(num_labels=1)).save_pretrained(folder)
    tiny_tokenizer.save_pretrained(folder)
    return folder


def random_batch(n_rows=6, seed=0, **fields):
    """Rows of different lengths; the last token of the first is the pad token."""
    rng = np.random.default_rng(seed)
    rows, n_completion = [], []
    for _ in range(n_rows):
        n_prompt, n_new = int(rng.integers(2, 9)), int(rng.integers(1, 7))
        rows.append(rng.integers(3, TINY_VOCAB, n_prompt + n_new).astype(np.int64))
        n_completion.append(n_new)
    if rows:
        rows[0][-1] = 0
    ids = tuple(f"s{seed}-{index}" for index in range(n_rows))
    return ScoreBatch(ids, tuple(rows), tuple(n_completion), **fields)


def batch_of(*rows, n_completion=1):
    """A batch of given token rows."""
    return ScoreBatch(
        tuple(f"r{index}" for index in range(len(rows))),
        tuple(np.array(row, dtype=np.int64) for row in rows),
        (n_completion,) * len(rows),
    )


@pytest.fixture
def make_batch():
    return random_batch


@pytest.fixture
def make_rows():
    return batch_of


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    """Makes each model of `int8_models.MODELS` once: name -> (folder, float torch model)."""
    if "torch" not in os.environ.get("ECORL_REQUIRE", "").split(","):
        pytest.importorskip("torch")
        pytest.importorskip("transformers")
    import torch

    torch.set_num_threads(1)
    return functools.partial(saved_model, tmp_path_factory.mktemp("models"))


@pytest.fixture
def no_process_left():
    before = {child.pid for child in psutil.Process().children()}
    yield
    left = [child for child in psutil.Process().children() if child.pid not in before]
    assert not left, f"engine processes left behind, zombies included: {left}"
