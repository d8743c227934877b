"""Rewards of texts under load, asked as OpenRLHF asks: one sample and one connection a request.

What 32 such clients get together over what one gets alone says how much of the service's micro-
batches is left when no client ever sends more than one row.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from benchmarks.studies.peers import ModelSize, make_reward_checkpoint
from benchmarks.studies.serving import Answered, Clients, Request, alone, mean_batch_rows, service
from ecorl.bench.rounds import round_ratios, timed_rounds
from ecorl.bench.stats import median, spread_of
from ecorl.engines.fpga.engine import FpgaEngine
from ecorl.records import Provenance, Stage

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
    each request. The lone client waits out the batch delay with each request, for nobody:
    ``ratio_without_delay`` has that time taken off.

    Args:
        load: what is asked; the default is made for about 15 s on two cores that are free.

    Returns:
        The median ratio under `ID`, its ``spread``, and what it was measured on. The ratio is None
        when a request was lost: the passes then did not do the same work.
    """
    load = load or TextLoad()
    with tempfile.TemporaryDirectory(prefix="ecorl-bench-texts-") as folder:
        checkpoint = Path(folder) / "model"
        texts, requests = _prepared(load, checkpoint)
        engine = FpgaEngine(checkpoint, Stage.REWARD)
        truth = alone(engine, requests)
        engine.close()
        options = ("--threads", "1", "--batch-delay-ms", str(load.batch_delay_ms))
        bodies = [_body(text) for text in texts]
        readings: list[str] = []
        with contextlib.ExitStack() as stack:
            url = stack.enter_context(service(checkpoint, Path(folder) / "log", *options))
            arms = {n: Clients(url, bodies, n, _PATH, keep=False) for n in (load.clients, 1)}
            for clients in arms.values():
                stack.callback(clients.close)

            def many() -> None:
                readings.append(arms[load.clients].metrics())
                arms[load.clients].send_all()
                readings.append(arms[load.clients].metrics())

            calls = {"many": many, "one": arms[1].send_all}
            times = timed_rounds(calls, load.n_rounds, load.box_s)
    answers = [answers for clients in arms.values() for answers in clients.answers]
    n_lost, n_mixed = _judged(answers, truth)
    n_tokens = sum(len(request.token_ids) for request in requests)
    return _told(load, times, n_tokens, (n_lost, n_mixed)) | {
        "rows_a_micro_batch": mean_batch_rows(*readings[-2:])
    }


def _told(
    load: TextLoad, times: dict[str, list[float]], n_tokens: int, faults: tuple[int, int]
) -> dict[str, object]:
    many, one = times["many"], times["one"]
    ratios = round_ratios(one, many)
    delay_s = load.n_requests * load.batch_delay_ms / 1e3
    undelayed = round_ratios([max(0.0, s - delay_s) for s in one], many)
    n_lost, n_mixed = faults
    return {
        ID: median(ratios) if n_lost == 0 else None,
        "unit": "1",
        "spread": spread_of(ratios),
        "ratio_without_delay": median(undelayed) if n_lost == 0 else None,
        "provenance": str(Provenance.MEASURED),
        "tokens_per_s_many": median([n_tokens / s for s in many]),
        "tokens_per_s_one": median([n_tokens / s for s in one]),
        "clients": load.clients,
        "requests_a_pass": load.n_requests,
        "tokens_a_pass": n_tokens,
        "lost_requests": n_lost,
        "mixed_answers": n_mixed,
        "note": "one sample and one connection a request, texts tokenised by the service; clients, "
        "HTTP, tokenizer and one engine thread share this host",
    }


def _prepared(load: TextLoad, checkpoint: Path) -> tuple[list[str], list[Request]]:
    """Write a model with a tokenizer; returns chats, and requests with their token ids."""
    rng = np.random.default_rng(load.seed)
    tokenizer = _tokenizer(load.size.vocab_size, rng)
    texts = [_chat(rng, load.words) for _ in range(load.n_requests)]
    ids = [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
    make_reward_checkpoint(checkpoint, load.size, max(map(len, ids)), load.seed)
    tokenizer.save(str(checkpoint / "tokenizer.json"))
    return texts, [Request(f"row-{k}", np.asarray(row, np.int64)) for k, row in enumerate(ids)]


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


def _judged(passes: Sequence[Sequence[Answered]], truth: Sequence[bytes]) -> tuple[int, int]:
    """Count answers that are lost, and those with other bits than the row's ids have alone."""
    n_lost = n_mixed = 0
    for answers in passes:
        for answer, bits in zip(answers, truth, strict=True):
            if answer.status != 200:
                n_lost += 1
                continue
            reward = np.asarray([json.loads(answer.body)["rewards"]], np.float32)
            n_mixed += reward.tobytes() != bits
    return n_lost, n_mixed
