"""Supervised training of a run's policy on reference answers, measured as a run of its own.

The rows of a step, the learning rate, the seed and the prompts are those of the RL run. Loss is
taken on the tokens of the answers alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from rich.console import Console

import ecorl
from ecorl.config import Config
from ecorl.errors import DataError
from ecorl.loop import MeasuredLoop
from ecorl.records import EvaluationPhase
from ecorl.runtime.adapters import ALL_TOKENS
from roll_adapters.trl.evaluate import Evaluation, evaluate
from roll_adapters.trl.inputs.quiet import quiet
from roll_adapters.trl.inputs.rows import PROMPT_KEYS, read_rows
from roll_adapters.trl.task import TaskFiles, resolve_task
from roll_adapters.trl.trainer import load_models

_IGNORED = -100
"""Label of a token on which no loss is taken, as transformers has it."""

_LARGEST_NORM = 1.0
"""Of a step's gradient; the RL trainer's own default."""


def train_on_answers(config: Config, run_dir: Path, console: Console) -> None:
    """Train the policy of a run on its reference answers, and leave a record.

    Args:
        config: the run's; its trainer's steps, rows a step, learning rate and seed count.
        run_dir: folder of the record.
        console: where a line is shown at the end.

    Raises:
        DataError: when the prompts have no answers.
        CheckpointError: when a model cannot be used.
    """
    with quiet():
        files = resolve_task(config, console)
        answers = _answers(files)
        torch.set_num_threads(config.trainer.num_threads)
        torch.manual_seed(config.seed)
        policy, tokenizer, reward, reward_tokenizer = load_models(files)
        on_gpu = torch.cuda.is_available()
        if on_gpu:
            policy, reward = policy.cuda(), reward.cuda()
        if tokenizer.pad_token is None:
            tokenizer.pad_token = tokenizer.eos_token
        student = _Student(policy, tokenizer, config)
        judge = SimpleNamespace(
            model=policy,
            processing_class=tokenizer,
            reward_funcs=[reward],
            reward_processing_classes=[reward_tokenizer],
            max_completion_length=config.trainer.max_completion_length,
        )
        held_out = (
            None if files.eval_prompts is None else read_rows(files.eval_prompts, PROMPT_KEYS)
        )
        before = None if held_out is None else evaluate(judge, held_out)
        steps = config.trainer.steps
        with ecorl.measure(config, run_dir=run_dir, total_steps=steps, handle_signals=True) as run:
            _record(run, before, EvaluationPhase.BEFORE)
            for batch in student.batches(answers, steps):
                loss, n_answer, n_all = student.learn(batch)
                figures = {"loss": loss, ALL_TOKENS: n_all}
                if not run.step(n_samples=len(batch), n_tokens=n_answer, **figures):
                    break
            if held_out is not None and run.n_steps >= steps:
                _record(run, evaluate(judge, held_out), EvaluationPhase.AFTER)
        console.print(f"supervised training: {run.n_steps} of {steps} steps", highlight=False)


@dataclass(frozen=True, slots=True)
class _AnsweredPrompt:
    """A prompt and its reference answer."""

    prompt: str
    answer: str


def _answers(files: TaskFiles) -> list[_AnsweredPrompt]:
    rows = read_rows(files.prompts, PROMPT_KEYS)
    if not all(isinstance(row.get("answer"), str) and row["answer"] for row in rows):
        raise DataError(
            f'{files.prompts}: not every prompt has an "answer", a text to train on; without them '
            "there is no supervised training to compare with"
        )
    return [_AnsweredPrompt(row["prompt"], row["answer"]) for row in rows]


def _record(run: MeasuredLoop, found: Evaluation | None, phase: EvaluationPhase) -> None:
    if found is None:
        return
    run.evaluation("reward", found.reward, phase)
    if found.correct is not None:
        run.evaluation("correct", found.correct, phase)


class _Student:
    """A policy that learns reference answers."""

    def __init__(self, policy: Any, tokenizer: Any, config: Config) -> None:
        self._policy, self._tokenizer, self._config = policy, tokenizer, config
        self._optimizer = torch.optim.AdamW(
            policy.parameters(), lr=config.trainer.learning_rate, weight_decay=0.0
        )
        self._on_gpu = policy.device.type == "cuda"

    def batches(self, rows: Sequence[_AnsweredPrompt], n: int) -> Iterator[list[_AnsweredPrompt]]:
        """Batches of rows, epoch by epoch in an order that the seed decides.

        Args:
            rows: all of them.
            n: how many batches.
        """
        generator = torch.Generator().manual_seed(self._config.seed)
        order: list[int] = []
        for _ in range(n):
            while len(order) < self._config.trainer.per_device_batch_size:
                order += torch.randperm(len(rows), generator=generator).tolist()
            taken = order[: self._config.trainer.per_device_batch_size]
            del order[: len(taken)]
            yield [rows[i] for i in taken]

    def learn(self, batch: Sequence[_AnsweredPrompt]) -> tuple[float, int, int]:
        """Take an optimizer step.

        Args:
            batch: rows.

        Returns:
            The loss, and the tokens of the answers and of all of it.
        """
        self._policy.train()
        ids, mask, labels = self._encode(batch)
        precision: Any = nullcontext()
        if self._on_gpu:  # as the RL trainer computes there
            precision = torch.autocast("cuda", torch.bfloat16)
        with precision:
            loss = self._policy(input_ids=ids, attention_mask=mask, labels=labels).loss
        self._optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self._policy.parameters(), _LARGEST_NORM)
        self._optimizer.step()
        return loss.item(), int((labels != _IGNORED).sum()), int(mask.sum())

    def _encode(
        self, batch: Sequence[_AnsweredPrompt]
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Right-padded ids, mask and labels, each ``[n, longest] int64``."""
        t = self._tokenizer
        prompts = t(text=[row.prompt for row in batch])["input_ids"]
        answers = t(text=[row.answer for row in batch], add_special_tokens=False)["input_ids"]
        end = [] if t.eos_token_id is None else [t.eos_token_id]
        rows = [(p, a + end) for p, a in zip(prompts, answers, strict=True)]
        longest = max(len(p) + len(a) for p, a in rows)
        ids = torch.full((len(rows), longest), t.pad_token_id, dtype=torch.long)
        mask, labels = torch.zeros_like(ids), torch.full_like(ids, _IGNORED)
        for i, (p, a) in enumerate(rows):
            ids[i, : len(p) + len(a)] = torch.tensor(p + a)
            mask[i, : len(p) + len(a)] = 1
            labels[i, len(p) : len(p) + len(a)] = torch.tensor(a)
        device = self._policy.device
        return ids.to(device), mask.to(device), labels.to(device)
