"""Makes the demo's checkpoints and data files, once, and keeps them in a cache.

    policy/         Llama, warm-started until it answers 20 % of held-out prompts right
    reward/         Llama with a scalar head, trained on preference pairs (Bradley-Terry)
    prompts.jsonl   training prompts
    eval.jsonl      held-out prompts with answers
    pairs.jsonl     held-out preference pairs, for rank flips of INT8 against float

All are written as Hugging Face checkpoints (safetensors) and JSON lines, and are loaded from
there as a user's would be. A prepared folder appears under its final name only when complete.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    PreTrainedTokenizerFast,
)
from transformers.utils import logging as hf_logging

from ecorl.errors import DataError
from ecorl.runtime.progress import progress
from roll_adapters.demo import arithmetic as task

RECORD = "prepare.json"
"""Says of a prepared folder by which recipe and seed it was made, and what was seen."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """All that decides what the prepared files hold; its hash names the cache folder."""

    version: int = 6
    hidden_size: int = 128
    n_layers: int = 2
    n_heads: int = 4
    n_kv_heads: int = 2
    max_positions: int = 512  # many more than the task takes: what longer rows cost can be asked
    warm_start_target: float = 0.2
    warm_start_max_steps: int = 400
    warm_start_batch: int = 128
    warm_start_lr: float = 2e-3
    reward_steps: int = 400
    reward_batch: int = 26  # questions
    reward_lr: float = 1.5e-3
    reward_decay_from: float = 0.5
    annotator_noise: float = 0.03
    n_sampled: int = 4000
    n_pairs: int = 2048
    n_eval: int = 256


@dataclass(frozen=True, slots=True)
class PreparedTask:
    """Where the prepared files are, and what was seen while making them."""

    folder: Path
    policy: Path
    reward: Path
    prompts: Path
    eval_prompts: Path
    pairs: Path
    facts: dict[str, float]


def prepare(cache_dir: Path, seed: int, n_eval: int, console: Console) -> PreparedTask:
    """The prepared task for a seed, made now if the cache does not hold it.

    Raises:
        DataError: when the cache folder cannot be written.
    """
    recipe = Recipe(n_eval=n_eval)
    key = hashlib.sha256(json.dumps(asdict(recipe), sort_keys=True).encode()).hexdigest()[:10]
    folder = cache_dir.expanduser() / f"arithmetic-{key}-seed{seed}"
    if not (folder / RECORD).is_file():
        _make(folder, recipe, seed, console)
    facts = json.loads((folder / RECORD).read_text("utf-8"))["facts"]
    return PreparedTask(
        folder=folder,
        policy=folder / "policy",
        reward=folder / "reward",
        prompts=folder / "prompts.jsonl",
        eval_prompts=folder / "eval.jsonl",
        pairs=folder / "pairs.jsonl",
        facts=facts,
    )


def _make(folder: Path, recipe: Recipe, seed: int, console: Console) -> None:
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=".making-", dir=folder.parent))
    except OSError as error:
        raise DataError(f"task.cache_dir: {folder.parent} cannot be written ({error})") from error
    try:
        with _own_randomness(seed), _without_bars():
            facts = _make_files(temporary, recipe, seed, console)
        record = {"recipe": asdict(recipe), "seed": seed, "facts": facts}
        (temporary / RECORD).write_text(json.dumps(record, indent=1), "utf-8")
        if (folder / RECORD).is_file():
            return  # another process was quicker; what it made is the same and may be in use
        if folder.exists():  # a file of it was removed
            shutil.rmtree(folder)
        temporary.replace(folder)
    except OSError as error:
        raise DataError(f"task.cache_dir: {folder} cannot be written ({error})") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def _own_randomness(seed: int) -> Iterator[None]:
    """Seeded and single-threaded inside, the caller's state restored after."""
    n_threads = torch.get_num_threads()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(n_threads)


@contextmanager
def _without_bars() -> Iterator[None]:
    """Silence the bars of transformers inside: what is made has a line of its own."""
    shown = hf_logging.is_progress_bar_enabled()
    hf_logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            hf_logging.enable_progress_bar()


def _make_files(folder: Path, recipe: Recipe, seed: int, console: Console) -> dict[str, float]:
    rng = np.random.default_rng(seed)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=task.build_tokenizer(),
        pad_token=task.PAD,
        bos_token=task.BOS,
        eos_token=task.EOS,
        padding_side="left",
    )
    numbers = task.all_numbers(rng)
    held_out, train = numbers[: recipe.n_eval], numbers[recipe.n_eval :]
    policy, facts = _warm_start(recipe, tokenizer, train, held_out, rng, console)
    policy.save_pretrained(folder / "policy")
    tokenizer.save_pretrained(folder / "policy")

    samples = _sample_answers(policy, tokenizer, train[: recipe.n_sampled])
    held_samples = _sample_answers(policy, tokenizer, held_out)
    reward, accuracy = _train_reward(recipe, policy, tokenizer, samples, rng, console)
    facts["warm_start_sampled_correct"] = float(
        np.mean([task.answer_of(n) == answers[0] for n, answers in samples.items()])
    )
    reward.save_pretrained(folder / "reward")
    tokenizer.padding_side = "right"
    tokenizer.save_pretrained(folder / "reward")
    pairs = []
    for n in rng.choice(held_out, size=recipe.n_pairs):
        of_one = task.ranked_pairs(int(n), held_samples[int(n)], 0.0, rng)
        pairs.append(of_one[rng.integers(len(of_one))])
    facts["reward_pair_accuracy"] = _pair_accuracy(reward, tokenizer, pairs)
    facts["reward_train_accuracy"] = accuracy
    _write_lines(folder / "prompts.jsonl", [{"prompt": task.prompt_of(n)} for n in train])
    _write_lines(
        folder / "eval.jsonl",
        [{"prompt": task.prompt_of(n), "answer": task.answer_of(n)} for n in held_out],
    )
    _write_lines(folder / "pairs.jsonl", [asdict(p) for p in pairs])
    return facts


def _write_lines(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")


def _encode(
    tokenizer: PreTrainedTokenizerFast, texts: Sequence[str], end: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Right-padded ids and mask, ``[n, longest] int64``."""
    suffix = [tokenizer.eos_token_id] if end else []
    rows = [ids + suffix for ids in tokenizer(list(texts))["input_ids"]]
    longest = max(map(len, rows))
    ids = torch.full((len(rows), longest), tokenizer.pad_token_id, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for i, row in enumerate(rows):
        ids[i, : len(row)] = torch.tensor(row)
        mask[i, : len(row)] = 1
    return ids, mask


def _llama_config(recipe: Recipe, tokenizer: PreTrainedTokenizerFast, **extra: Any) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=recipe.hidden_size,
        intermediate_size=2 * recipe.hidden_size,
        num_hidden_layers=recipe.n_layers,
        num_attention_heads=recipe.n_heads,
        num_key_value_heads=recipe.n_kv_heads,
        max_position_embeddings=recipe.max_positions,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        tie_word_embeddings=False,
        **extra,
    )


def _warm_start(
    recipe: Recipe,
    tokenizer: PreTrainedTokenizerFast,
    train: np.ndarray,
    held_out: np.ndarray,
    rng: np.random.Generator,
    console: Console,
) -> tuple[LlamaForCausalLM, dict[str, float]]:
    """Supervised steps until the share of right greedy answers reaches the target."""
    model = LlamaForCausalLM(_llama_config(recipe, tokenizer))
    teach = _Teacher(model, recipe, tokenizer, train, rng)
    correct, step = 0.0, 0
    with progress("warm start of the policy", recipe.warm_start_max_steps, console) as bar:
        while correct < recipe.warm_start_target and step < recipe.warm_start_max_steps:
            teach.steps(1)  # one at a time: the share of right answers rises steeply here
            step += 1
            correct = _greedy_correct(model, tokenizer, held_out)
            bar.advance(1, f"{100 * correct:.0f} % right on held-out prompts")
        bar.finish(f"{100 * correct:.0f} % right: warm enough")
    return model, {"warm_start_steps": float(step), "warm_start_correct": correct}


class _Teacher:
    """Supervised steps on right answers."""

    def __init__(
        self,
        model: LlamaForCausalLM,
        recipe: Recipe,
        tokenizer: PreTrainedTokenizerFast,
        train: np.ndarray,
        rng: np.random.Generator,
    ) -> None:
        self._model, self._recipe, self._tokenizer = model, recipe, tokenizer
        self._train, self._rng = train, rng
        self._n_prompt = len(task.prompt_of(int(train[0])))
        self._n_steps = 0
        self._optimizer = torch.optim.AdamW(
            model.parameters(), lr=recipe.warm_start_lr, betas=(0.9, 0.98), weight_decay=0.01
        )

    def steps(self, n: int) -> None:
        """Take `n` optimizer steps."""
        self._model.train()
        for _ in range(n):
            self._n_steps += 1
            batch = self._train[
                self._rng.integers(len(self._train), size=self._recipe.warm_start_batch)
            ]
            texts = [task.prompt_of(n) + task.answer_of(n) for n in batch]
            ids, mask = _encode(self._tokenizer, texts, end=True)
            labels = ids.masked_fill(mask == 0, -100)
            labels[:, : self._n_prompt] = -100
            loss = self._model(input_ids=ids, attention_mask=mask, labels=labels).loss
            lr = self._recipe.warm_start_lr * min(1.0, self._n_steps / 20)
            _step(self._optimizer, self._model, loss, lr)
        self._model.eval()


def _step(
    optimizer: torch.optim.Optimizer, model: torch.nn.Module, loss: torch.Tensor, lr: float
) -> None:
    for group in optimizer.param_groups:
        group["lr"] = lr
    optimizer.zero_grad()
    torch.autograd.backward(loss)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


@torch.no_grad()
def _greedy_correct(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, numbers: np.ndarray
) -> float:
    """Share of right greedy answers.

    Teacher-forced: an answer is right exactly when each of its tokens is the arg-max given the
    right ones before it.
    """
    texts = [task.prompt_of(n) + task.answer_of(n) for n in numbers]
    ids, mask = _encode(tokenizer, texts, end=True)
    n_prompt = len(task.prompt_of(int(numbers[0])))
    guess = model(input_ids=ids, attention_mask=mask).logits.argmax(-1)[:, n_prompt - 1 : -1]
    return float((guess == ids[:, n_prompt:]).all(1).float().mean())


@torch.no_grad()
def _sample_answers(
    policy: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, numbers: np.ndarray
) -> dict[int, list[str]]:
    """Answers of the policy at temperature 1 and 1.5, by number."""
    answers: dict[int, list[str]] = {int(n): [] for n in numbers}
    ids, mask = _encode(tokenizer, [task.prompt_of(n) for n in numbers], end=False)
    for temperature in (1.0, 1.5):
        out = policy.generate(
            input_ids=ids,
            attention_mask=mask,
            do_sample=True,
            temperature=temperature,
            top_k=0,
            max_new_tokens=2 * task.N_DIGITS,
        )
        texts = tokenizer.batch_decode(out[:, ids.shape[1] :], skip_special_tokens=True)
        for number, text in zip(numbers, texts, strict=True):
            answers[int(number)].append(text)
    return answers


def _train_reward(
    recipe: Recipe,
    policy: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    samples: dict[int, list[str]],
    rng: np.random.Generator,
    console: Console,
) -> tuple[LlamaForSequenceClassification, float]:
    """Train a Bradley-Terry model on annotated pairs, from the policy's body.

    A batch holds few questions with about ten comparisons each. The learning rate stays up until
    the order of well-formed answers is learned, which comes late and all at once, and falls then:
    stopped before that, the model puts some wrong answers above the right one, and what GRPO finds
    are those answers.

    Returns:
        The model, and its share of rightly ordered pairs over the last 20 batches.
    """
    model = LlamaForSequenceClassification(_llama_config(recipe, tokenizer, num_labels=1))
    model.model.load_state_dict(policy.model.state_dict())
    torch.nn.init.normal_(model.score.weight, std=0.02)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=recipe.reward_lr, betas=(0.9, 0.98), weight_decay=0.01
    )
    numbers = np.array(list(samples))
    recent: list[float] = []
    with progress("reward model on preference pairs", recipe.reward_steps, console) as bar:
        for step in range(recipe.reward_steps):
            batch = numbers[rng.integers(len(numbers), size=recipe.reward_batch)]
            pairs = [
                pair
                for n in batch
                for pair in task.ranked_pairs(int(n), samples[int(n)], recipe.annotator_noise, rng)
            ]
            margin = _margins(model, tokenizer, pairs)
            loss = -torch.nn.functional.logsigmoid(margin).mean()
            done = step / recipe.reward_steps
            decay = min(1.0, (1.0 - done) / (1.0 - recipe.reward_decay_from))
            _step(optimizer, model, loss, recipe.reward_lr * min(1.0, (step + 1) / 10) * decay)
            recent = [*recent[-19:], float((margin > 0).float().mean())]
            bar.advance(1, f"{100 * float(np.mean(recent)):.0f} % of pairs in order")
    model.eval()
    return model, float(np.mean(recent))


def _margins(
    model: LlamaForSequenceClassification,
    tokenizer: PreTrainedTokenizerFast,
    pairs: Sequence[task.Pair],
) -> torch.Tensor:
    """Score of the chosen less that of the rejected answer, ``[n] float32``."""
    chosen = [p.prompt + p.chosen for p in pairs]
    rejected = [p.prompt + p.rejected for p in pairs]
    # Each answer stands in several pairs and is scored once.
    row_of = {text: row for row, text in enumerate(dict.fromkeys([*chosen, *rejected]))}
    ids, mask = _encode(tokenizer, list(row_of), end=False)
    scores: torch.Tensor = model(input_ids=ids, attention_mask=mask).logits[:, 0]
    return scores[[row_of[t] for t in chosen]] - scores[[row_of[t] for t in rejected]]


@torch.no_grad()
def _pair_accuracy(
    model: LlamaForSequenceClassification,
    tokenizer: PreTrainedTokenizerFast,
    pairs: Sequence[task.Pair],
) -> float:
    """Share of held-out pairs that the reward model puts in the annotator's order."""
    right = [
        (_margins(model, tokenizer, pairs[i : i + 512]) > 0).float().mean().item()
        for i in range(0, len(pairs), 512)
    ]
    return float(np.mean(right))
