"""The stages of RLHF as loads on a GPU, with a Llama of random weights and random tokens.

- generation: prompts, then all new tokens with a cache (`decode` without the prompts)
- reward: a forward pass, and one score a row
- reference: a forward pass, and the log-probability of each completion token
- training: forward, backward and an AdamW step, all in BF16

Rows are all of one length. Half of a row is its completion, except in generation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.gpu.loads.generation import Generator
from benchmarks.gpu.loads.llama import Llama
from ecorl.policy.calibration.stages import NEW_TOKENS, PROMPT_TOKENS
from ecorl.records import ModelShape, Stage, StageWork

TOKENS_AT_ONCE = 8192
"""Tokens of one backward pass; a step of more accumulates gradients."""


@dataclass(frozen=True, slots=True)
class Workload:
    """A load whose energy is measured.

    Attributes:
        name: of its figures, e.g. ``generation.b32``.
        work: of one call: stage, rows, tokens.
        how: what exactly is computed, in words.
        n_counted: tokens of a call by which its energy is divided: new ones of generation, else
            all.
    """

    name: str
    work: StageWork
    how: str
    n_counted: int


@dataclass(frozen=True, slots=True)
class Shapes:
    """The batches that are measured.

    Attributes:
        generation: rows of a batch.
        eager: rows of a batch whose steps are launched operation by operation.
        prompt: tokens of a prompt.
        new: tokens that are generated.
        scoring: rows and length of a batch.
        training: rows and length of a step.
    """

    generation: tuple[int, ...]
    eager: tuple[int, ...]
    prompt: int
    new: int
    scoring: tuple[tuple[int, int], ...]
    training: tuple[tuple[int, int], ...]

    @property
    def longest(self) -> int:
        """Most tokens of any row."""
        rows = [length for _, length in (*self.scoring, *self.training)]
        return max((self.prompt + self.new, *rows))


FULL = Shapes(
    (1, 8, 32, 128, 512), (8, 128), PROMPT_TOKENS, NEW_TOKENS,
    ((8, 512), (32, 512), (64, 1024), (8, 2048)), ((8, 512), (16, 1024)),
)  # fmt: skip
"""Those of the full pass."""

QUICK = Shapes((32,), (32,), 64, 65, ((8, 512),), ((8, 512),))
"""Those of a quick pass: one of each."""


def random_tokens(model: Llama, n_rows: int, length: int, seed: int = 0) -> Tensor:
    """Draw tokens of the model's vocabulary, ``[n_rows, length] int64``.

    Args:
        model: for which they are.
        n_rows: rows.
        length: tokens of a row.
        seed: of the draw.
    """
    generator = torch.Generator(model.device).manual_seed(seed)
    sizes = (n_rows, length)
    return torch.randint(model.shape.vocab_size, sizes, generator=generator, device=model.device)


def generation_loads(
    model: Llama, shapes: Shapes, *, graphs: bool
) -> Iterator[tuple[Workload, Callable[[], None]]]:
    """Yield each load of generation with its call; what it holds is freed by the next.

    Args:
        model: that is sampled from.
        shapes: the batches.
        graphs: whether steps may be captured as CUDA graphs; without, all are launched eagerly.
    """
    arms = [(n, True) for n in shapes.generation] + [(n, False) for n in shapes.eager]
    for n_rows, is_graph in arms:
        prompts = random_tokens(model, n_rows, shapes.prompt)
        generator = Generator(model, prompts, shapes.new, graphs=graphs and is_graph)
        n_new, n_all = n_rows * shapes.new, n_rows * (shapes.prompt + shapes.new)
        length = shapes.prompt + shapes.new
        work = StageWork(Stage.GENERATION, n_rows, n_all, n_new, length, model.shape)
        launched = "a CUDA graph a step, pieces fused" if is_graph else "eager"
        how = f"{n_rows} rows, prompt {shapes.prompt}, {shapes.new} new tokens, {launched}"
        suffix = f"b{n_rows}" if is_graph else f"b{n_rows}_eager"
        yield Workload(f"generation.{suffix}", work, how, n_new), generator.generate
        if is_graph:
            n_decoded = generator.n_decoded
            decoded = replace(work, n_tokens=n_decoded, n_output_tokens=n_decoded)
            generator.prefill()
            how = f"{how}; the prompts lie in the cache"
            yield Workload(f"decode.{suffix}", decoded, how, n_decoded), generator.decode
        del generator


def scoring_loads(model: Llama, shapes: Shapes) -> Iterator[tuple[Workload, Callable[[], None]]]:
    """Yield the loads of reward and reference with their calls.

    Args:
        model: that scores.
        shapes: the batches.
    """
    for n_rows, length in shapes.scoring:
        tokens = random_tokens(model, n_rows, length)
        n_prompt = length // 2
        n_all, n_out = n_rows * length, n_rows * (length - n_prompt)

        @torch.inference_mode()
        def reward(tokens: Tensor = tokens) -> None:
            model.rewards(tokens)

        @torch.inference_mode()
        def reference(tokens: Tensor = tokens, n_prompt: int = n_prompt) -> None:
            model.log_probs(tokens, n_prompt)

        for stage, call, result in (
            (Stage.REWARD, reward, "one score a row"),
            (Stage.REFERENCE, reference, "log-probabilities of the second half"),
        ):
            work = StageWork(stage, n_rows, n_all, n_out, length, model.shape)
            how = f"{n_rows} rows of {length} tokens, {result}; eager, BF16"
            yield Workload(f"{stage.value}.b{n_rows}x{length}", work, how, n_all), call


def adamw(model: Llama) -> torch.optim.Optimizer:
    """Make the optimizer of a model's weights, in one kernel where the device has it.

    Args:
        model: that is trained.
    """
    is_fused = model.device.type == "cuda"
    return torch.optim.AdamW(model.parameters(), lr=1e-6, fused=is_fused)


class TrainingStep:
    """One step of training: forward, backward, AdamW.

    Args:
        model: that is trained; its weights are those of the optimizer.
        n_rows: rows of a step.
        length: tokens of each.
        optimizer: of all its weights; None: one of its own.
    """

    def __init__(
        self,
        model: Llama,
        n_rows: int,
        length: int,
        optimizer: torch.optim.Optimizer | None = None,
    ) -> None:
        self._model = model
        self._rows = random_tokens(model, n_rows, length + 1, seed=1)
        self._at_once = max(1, TOKENS_AT_ONCE // length)
        self._optimizer = adamw(model) if optimizer is None else optimizer
        self.n_tokens = n_rows * length

    def gradients(self) -> Tensor:
        """Forward and backward over all micro-batches; returns the mean loss, nats."""
        total = torch.zeros((), device=self._model.device)
        for part in torch.split(self._rows, self._at_once):
            scores = self._model(part[:, :-1])
            targets = part[:, 1:].flatten()
            loss = F.cross_entropy(scores.flatten(0, 1).float(), targets)
            (loss * (len(part) / len(self._rows))).backward()  # type: ignore[no-untyped-call]
            total += loss.detach() * (len(part) / len(self._rows))
        return total

    def __call__(self) -> Tensor:
        """Take a step; returns its loss, nats, on the device."""
        loss = self.gradients()
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        return loss


def training_work(shape: ModelShape, n_rows: int, length: int) -> StageWork:
    """The work of a training step whose rows' second half is their completion.

    Args:
        shape: of the model.
        n_rows: rows of a step.
        length: tokens of each.
    """
    n_out = n_rows * (length - length // 2)
    return StageWork(Stage.ACTOR_TRAIN, n_rows, n_rows * length, n_out, length, shape)


def training_loads(model: Llama, shapes: Shapes) -> Iterator[tuple[Workload, Callable[[], object]]]:
    """Yield the training steps, each with its call.

    Args:
        model: that is trained, in BF16.
        shapes: the batches.
    """
    for n_rows, length in shapes.training:
        step = TrainingStep(model, n_rows, length)
        how = f"{n_rows} rows of {length} tokens, weights, gradients and AdamW in BF16; eager"
        work = training_work(model.shape, n_rows, length)
        yield Workload(f"actor_train.b{n_rows}x{length}", work, how, step.n_tokens), step
