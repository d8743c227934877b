"""Rewards of texts under load, asked as OpenRLHF asks: one sample and one connection a request.

What 32 such clients get together over what one gets alone says how much of the service's micro-
batches is left when no client ever sends more than one row.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
from dataclasses import dataclass
from http import HTTPStatus
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from benchmarks.studies.peers import ModelSize, make_reward_checkpoint
from benchmarks.studies.serving import Clients, service
from ecorl.bench.rounds import round_ratios, timed_rounds
from ecorl.bench.stats import median, spread_of

ID = "openrlhf_remote_reward_ratio"

_PATH = "/openrlhf"
_START, _END = "<|im_start|>", "<|im_end|>"
_WORDS = (resources.files(__package__) / "words.txt").read_text("utf-8").split()

_SIZE = ModelSize(256, 4, 688, 4, 4, 1000)


@dataclass(frozen=True, slots=True)
class TextLoad:
    """The texts of a pass and the model that scores them.

    Attributes:
        size: of the model; its vocabulary is the size at which the tokenizer stops to grow.
        n_requests: texts of a pass.
        words: fewest and most words of a text, about 1.5 tokens each.
        clients: of the arm with many.
        n_rounds: passes of each arm at most.
        box_s: time for the timed passes, s; six of each arm are made however long they take.
        batch_delay_ms: of the service; the command's default.
        seed: of the weights and the texts.
    """

    size: ModelSize = _SIZE
    n_requests: int = 64
    words: tuple[int, int] = (16, 80)
    clients: int = 32
    n_rounds: int = 12
    box_s: float = 6.0
    batch_delay_ms: float = 3.0
    seed: int = 0


def measure_text_ratio(load: TextLoad | None = None) -> dict[str, Any]:
    """Measure tokens/s of many clients that ask for rewards of texts over those of one client.

    Both arms ask the same service for the same texts, in turns. Each client opens a connection for
    each request. The lone client waits out the batch delay with each request, for nobody.

    Args:
        load: what is asked; the default is made for about 15 s on two cores that are free.

    Returns:
        The median ratio under `ID`, and its ``spread``. The ratio is None when a request was lost:
        the passes then did not do the same work.
    """
    load = load or TextLoad()
    with tempfile.TemporaryDirectory(prefix="ecorl-bench-texts-") as folder:
        checkpoint = Path(folder) / "model"
        bodies = [_body(text) for text in _prepared(load, checkpoint)]
        options = ("--threads", "1", "--batch-delay-ms", str(load.batch_delay_ms))
        with contextlib.ExitStack() as stack:
            url = stack.enter_context(service(checkpoint, Path(folder) / "log", *options))
            arms = {n: Clients(url, bodies, n, _PATH, keep=False) for n in (load.clients, 1)}
            for clients in arms.values():
                stack.callback(clients.close)
            calls = {"many": arms[load.clients].send_all, "one": arms[1].send_all}
            times = timed_rounds(calls, load.n_rounds, load.box_s)
    answers = [one for clients in arms.values() for passed in clients.answers for one in passed]
    ratios = round_ratios(times["one"], times["many"])
    is_whole = all(answer.status == HTTPStatus.OK for answer in answers)
    return {ID: median(ratios) if is_whole else None, "spread": spread_of(ratios)}


def _prepared(load: TextLoad, checkpoint: Path) -> list[str]:
    """Write a model with a tokenizer; returns chats."""
    rng = np.random.default_rng(load.seed)
    tokenizer = _tokenizer(load.size.vocab_size, rng)
    texts = [_chat(rng, load.words) for _ in range(load.n_requests)]
    longest = max(len(tokenizer.encode(text, add_special_tokens=False).ids) for text in texts)
    make_reward_checkpoint(checkpoint, load.size, longest, load.seed)
    tokenizer.save(str(checkpoint / "tokenizer.json"))
    return texts


def _tokenizer(vocab_size: int, rng: np.random.Generator) -> Any:
    """A byte-level tokenizer with the special tokens of a chat, as those of Qwen are."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[_START, _END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator([_sentence(rng, 40) for _ in range(200)], trainer)
    return made


def _sentence(rng: np.random.Generator, n_words: int) -> str:
    """Words by Zipf's law, which natural texts roughly follow."""
    weights = 1.0 / np.arange(1, len(_WORDS) + 1)
    return " ".join(rng.choice(_WORDS, n_words, p=weights / weights.sum()))


def _chat(rng: np.random.Generator, words: tuple[int, int]) -> str:
    n_words = int(rng.integers(words[0], words[1] + 1))
    asked = max(1, n_words // 4)
    question, answer = _sentence(rng, asked), _sentence(rng, max(1, n_words - asked))
    return f"{_START}user\n{question}{_END}\n{_START}assistant\n{answer}{_END}"


def _body(text: str) -> bytes:
    """What OpenRLHF's client sends for one sample."""
    prompt = text.partition(_END)[0]
    return json.dumps({"query": [text], "prompts": [prompt], "labels": [None]}).encode("ascii")
