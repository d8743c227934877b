"""Held-out evaluation: greedy answers, and rank flips of INT8 against float."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ecorl.engines.protocol import InferenceEngine, ScoreBatch
from ecorl.trainer.gears.random_state import undisturbed
from roll_adapters.trl.reward import rows_to_score

Float32 = npt.NDArray[np.float32]
BATCH = 256
"""Texts in one forward pass of an evaluation; invented."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Greedy answers to held-out prompts.

    Attributes:
        reward: score by the exact float reward model, one a prompt.
        correct: 1.0 or 0.0 a prompt, or None when the file holds no answers.
        prompts: tokens of each prompt.
        completions: tokens of each answer, its end among them.
    """

    reward: list[float]
    correct: list[float] | None
    prompts: list[int]
    completions: list[int]


@torch.no_grad()
def evaluate(trainer: Any, rows: Sequence[dict[str, Any]]) -> Evaluation:
    """Answer held-out prompts greedily and score the answers on the exact path.

    Args:
        trainer: a TRL trainer, not training just now; its mode and random state are kept.
        rows: ``prompt`` and, where it is known, ``answer``.
    """
    tokenizer, model = trainer.processing_class, trainer.model
    was_training = model.training
    model.eval()
    prompts = [row["prompt"] for row in rows]
    answers: list[str] = []
    n_prompt: list[int] = []
    n_answer: list[int] = []
    try:
        # Generation may draw random numbers: training must go on as if nothing was evaluated.
        with undisturbed(model.device):
            for i in range(0, len(prompts), BATCH):
                greedy = _greedy(trainer, model, tokenizer, prompts[i : i + BATCH])
                answers += greedy.texts
                n_prompt += greedy.prompts
                n_answer += greedy.completions
    finally:
        model.train(was_training)
    texts = [p + a for p, a in zip(prompts, answers, strict=True)]
    reward = float_scores(trainer.reward_funcs[0], trainer.reward_processing_classes[0], texts)
    correct = None
    if all(isinstance(row.get("answer"), str) for row in rows):
        correct = [float(a == row["answer"]) for a, row in zip(answers, rows, strict=True)]
    return Evaluation([float(r) for r in reward], correct, n_prompt, n_answer)


@dataclass(frozen=True, slots=True)
class _Greedy:
    """Answers to some prompts, with the tokens of both."""

    texts: list[str]
    prompts: list[int]
    completions: list[int]


def _greedy(trainer: Any, model: Any, tokenizer: Any, prompts: Sequence[str]) -> _Greedy:
    inputs = tokenizer(list(prompts), return_tensors="pt", padding=True, padding_side="left").to(
        model.device
    )
    out = model.generate(
        input_ids=inputs["input_ids"],
        attention_mask=inputs["attention_mask"],
        do_sample=False,
        max_new_tokens=trainer.max_completion_length,
    )
    completions = out[:, inputs["input_ids"].shape[1] :]
    ends = torch.tensor(_end_ids(model), device=completions.device)
    # What follows the first end is padding.
    after = (torch.isin(completions, ends).cumsum(1) - torch.isin(completions, ends).int()) > 0
    return _Greedy(
        tokenizer.batch_decode(completions, skip_special_tokens=True),
        inputs["attention_mask"].sum(1).tolist(),
        (~after).sum(1).tolist(),
    )


def _end_ids(model: Any) -> list[int]:
    """Tokens that end an answer; none where the model knows none."""
    found = model.generation_config.eos_token_id
    return [] if found is None else [found] if isinstance(found, int) else list(found)


@torch.no_grad()
def float_scores(model: Any, tokenizer: Any, texts: Sequence[str]) -> Float32:
    """Score texts with the float model.

    Args:
        model: the reward model, with one output.
        tokenizer: of that model.
        texts: prompt and completion as one text each.

    Returns:
        ``[n_texts] float32``.
    """
    scores = []
    for i in range(0, len(texts), BATCH):
        inputs = tokenizer(
            text=list(texts[i : i + BATCH]),
            return_tensors="pt",
            padding=True,
            padding_side="right",
            add_special_tokens=False,
        ).to(model.device)
        scores.append(model(**inputs).logits[:, 0].float().cpu().numpy())
    return np.concatenate(scores).astype(np.float32)


def engine_scores(
    engine: InferenceEngine, model: Any, tokenizer: Any, texts: Sequence[str]
) -> Float32:
    """Score texts with an engine, each read where the float model reads it.

    Args:
        engine: of the reward stage.
        model: the float model, of the same checkpoint.
        tokenizer: of both.
        texts: prompt and completion as one text each.

    Returns:
        ``[n_texts] float32``.
    """
    rows = rows_to_score(model, tokenizer, texts)
    parts = []
    for i in range(0, len(rows), BATCH):
        chunk = rows[i : i + BATCH]
        names = tuple(f"pair.{i + j}" for j in range(len(chunk)))
        batch = ScoreBatch(names, chunk, (0,) * len(chunk), reads_last=True)
        parts.append(engine.score(batch).values)
    return np.concatenate(parts)


@dataclass(frozen=True, slots=True)
class RankCheck:
    """INT8 against float on preference pairs.

    Attributes:
        flips: 1.0 where the two models order a pair differently, else 0.0.
        score_shifts: INT8 less float, one a text (all chosen, then all rejected).
    """

    flips: list[float]
    score_shifts: list[float]


def rank_check(
    engine: InferenceEngine, model: Any, tokenizer: Any, pairs: Sequence[dict[str, Any]]
) -> RankCheck:
    """Order each held-out pair by the engine and by the float model.

    A pair counts as flipped when the sign of (chosen - rejected) differs; a tie of one model
    against an order of the other counts too.

    Args:
        engine: the INT8 engine of the reward stage.
        model: the float reward model.
        tokenizer: of both.
        pairs: ``prompt``, ``chosen`` and ``rejected`` of each pair, as texts.
    """
    texts = [p["prompt"] + p["chosen"] for p in pairs] + [
        p["prompt"] + p["rejected"] for p in pairs
    ]
    exact = float_scores(model, tokenizer, texts)
    ours = engine_scores(engine, model, tokenizer, texts)
    n = len(pairs)
    flips = np.sign(ours[:n] - ours[n:]) != np.sign(exact[:n] - exact[n:])
    return RankCheck([float(f) for f in flips], [float(s) for s in ours - exact])
