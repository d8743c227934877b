"""The stages of RLHF as loads on a GPU, with a Llama of random weights and random tokens.

- generation: prompts, then all new tokens with a cache (`decode` without the prompts)
- reward: a forward pass, and one score a row
- reference: a forward pass, and the log-probability of each completion token
- training: forward, backward and an AdamW step, all in BF16

Rows are all of one length. Half of a row is its completion, except in generation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
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


Loads = Iterator[tuple[Workload, Callable[[], object]]]
"""Loads, each with its call; what a load holds is freed by the next."""


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch that is measured.

    Attributes:
        kind: ``generation``, ``scoring`` (reward and reference) or ``training``.
        n_rows: its rows.
        length: tokens of a row before generation.
        n_new: tokens that generation adds to a row.
        is_eager: whether steps of generation are launched operation by operation.
    """

    kind: str
    n_rows: int
    length: int
    n_new: int = 0
    is_eager: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """Of its workloads."""
        if self.kind == "generation":
            stem = f"generation.b{self.n_rows}"
            return (f"{stem}_eager",) if self.is_eager else (stem, f"decode.b{self.n_rows}")
        stages = ("reward", "reference") if self.kind == "scoring" else ("actor_train",)
        return tuple(f"{stage}.b{self.n_rows}x{self.length}" for stage in stages)

    def loads(self, model: Llama, *, graphs: bool) -> Loads:
        """Yield its loads.

        Args:
            model: that computes them; its weights are changed by training.
            graphs: whether steps of generation may be captured as CUDA graphs.
        """
        if self.kind == "generation":
            return _generation_loads(model, self, graphs=graphs)
        return (
            _scoring_loads(model, self) if self.kind == "scoring" else _training_load(model, self)
        )


def generated(n_rows: int, *, is_eager: bool = False) -> Batch:
    """A batch of generation with the prompts and completions of a calibration.

    Args:
        n_rows: its rows.
        is_eager: whether steps are launched operation by operation.
    """
    return Batch("generation", n_rows, PROMPT_TOKENS, NEW_TOKENS, is_eager)


FULL = (
    *(generated(n) for n in (1, 8, 32, 128, 512)),
    *(generated(n, is_eager=True) for n in (8, 128)),
    *(Batch("scoring", *size) for size in ((8, 512), (32, 512), (64, 1024), (8, 2048))),
    *(Batch("training", *size) for size in ((8, 512), (16, 1024))),
)
"""Those of the full pass."""

QUICK = (
    Batch("generation", 32, 64, 65), Batch("generation", 32, 64, 65, is_eager=True),
    Batch("scoring", 8, 512), Batch("training", 8, 512),
)  # fmt: skip
"""Those of a quick pass: one of each."""


def longest(batches: Sequence[Batch]) -> int:
    """Most tokens of any row.

    Args:
        batches: that are measured.
    """
    return max(batch.length + batch.n_new for batch in batches)


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


def half_new(stage: Stage, shape: ModelShape, n_rows: int, length: int) -> StageWork:
    """The work of a stage on rows whose second half is their completion.

    Args:
        stage: that computes them.
        shape: of the model.
        n_rows: rows.
        length: tokens of each.
    """
    n_out = n_rows * (length - length // 2)
    return StageWork(stage, n_rows, n_rows * length, n_out, length, shape)


def _generation_loads(model: Llama, batch: Batch, *, graphs: bool) -> Loads:
    n_rows, n_new = batch.n_rows, batch.n_rows * batch.n_new
    prompts, length = random_tokens(model, n_rows, batch.length), batch.length + batch.n_new
    generator = Generator(model, prompts, batch.n_new, graphs=graphs and not batch.is_eager)
    work = StageWork(Stage.GENERATION, n_rows, n_rows * length, n_new, length, model.shape)
    launched = "eager" if batch.is_eager else "a CUDA graph a step, pieces fused"
    how = f"{n_rows} rows, prompt {batch.length}, {batch.n_new} new tokens, {launched}"
    yield Workload(batch.names[0], work, how, n_new), generator.generate
    if not batch.is_eager:
        n_decoded = generator.n_decoded
        decoded = replace(work, n_tokens=n_decoded, n_output_tokens=n_decoded)
        generator.prefill()
        how = f"{how}; the prompts lie in the cache"
        yield Workload(batch.names[1], decoded, how, n_decoded), generator.decode


def _scoring_loads(model: Llama, batch: Batch) -> Loads:
    n_rows, length = batch.n_rows, batch.length
    tokens = random_tokens(model, n_rows, length)

    @torch.inference_mode()
    def reward() -> None:
        model.rewards(tokens)

    @torch.inference_mode()
    def reference() -> None:
        model.log_probs(tokens, length // 2)

    for name, stage, call, result in zip(
        batch.names, (Stage.REWARD, Stage.REFERENCE), (reward, reference),
        ("one score a row", "log-probabilities of the second half"), strict=True,
    ):  # fmt: skip
        how = f"{n_rows} rows of {length} tokens, {result}; eager, BF16"
        work = half_new(stage, model.shape, n_rows, length)
        yield Workload(name, work, how, work.n_tokens), call


def _training_load(model: Llama, batch: Batch) -> Loads:
    n_rows, length = batch.n_rows, batch.length
    how = f"{n_rows} rows of {length} tokens, weights, gradients and AdamW in BF16; eager"
    work = half_new(Stage.ACTOR_TRAIN, model.shape, n_rows, length)
    yield Workload(batch.names[0], work, how, work.n_tokens), TrainingStep(model, n_rows, length)


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
        self, model: Llama, n_rows: int, length: int, optimizer: torch.optim.Optimizer | None = None
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
