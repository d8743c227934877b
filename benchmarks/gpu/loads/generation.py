"""Sampling completions with a cache of fixed size; on a GPU each step is a replayed CUDA graph.

A step samples by temperature 1 from the whole vocabulary, as a rollout does, and every row runs to
the full length: what ends early in a real rollout would leave the batch.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor

from benchmarks.gpu.loads.llama import EAGER, Llama, Pieces, fused
from ecorl.errors import DriverTimeout

BUCKET = 64
"""Tokens by which the part of the cache that a step reads grows: one graph for each."""

PATIENCE_S = 20.0
"""Longest time, s, that work is waited for: on a part of the processors a kernel that counts on
all of them could stand still."""


def wait_patiently() -> None:
    """Wait for all work of the current stream.

    Raises:
        DriverTimeout: when it has not ended within `PATIENCE_S`.
    """
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record()
    until_s = time.monotonic() + PATIENCE_S
    while not event.query():  # type: ignore[no-untyped-call]
        if time.monotonic() > until_s:
            raise DriverTimeout(f"work on the GPU has not ended within {PATIENCE_S:g} s")
        time.sleep(5e-5)


def captured(call: Callable[[], object], stream: torch.cuda.Stream | None) -> Callable[[], None]:
    """Capture a call as a CUDA graph; returns what replays it on the stream that is current then.

    Args:
        call: launches what is captured; it is called thrice.
        stream: on which it is captured: its kernels run on this stream's processors; None: any.

    Raises:
        DriverTimeout: when the call does not end.
    """
    if stream is None:
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):  # libraries set themselves up at the first call
            call()
        wait_patiently()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        call()
    return graph.replay


class Generator:
    """Generates a batch again and again from the same prompts.

    Args:
        model: that is sampled from.
        prompts: ``[n_rows, n_prompt] int64``.
        n_new: tokens that each row gets.
        graphs: whether a step is captured as a CUDA graph, with what lies between its matrix
            products fused; else each operation is launched by itself.
        noise: whether the cache holds noise in place of the prompts. Filling it costs no pass over
            them, so that the largest batches are measured too, and its numbers are of the size
            that keys and values of random weights have.
        stream: on which steps are captured, and are to be replayed; None: any.

    Attributes:
        output: the tokens of the last batch, ``[n_rows, n_new] int64``.
    """

    def __init__(
        self,
        model: Llama,
        prompts: Tensor,
        n_new: int,
        *,
        graphs: bool,
        noise: bool = False,
        stream: torch.cuda.Stream | None = None,
    ) -> None:
        self._model, self._prompts, self._n_new, self._noise = model, prompts, n_new, noise
        n_rows, self._n_prompt = prompts.shape
        # Attention with a mask wants lengths that are multiples of 8.
        length = -(-(self._n_prompt + n_new) // BUCKET) * BUCKET
        self._cache = model.new_cache(n_rows, length)
        device = prompts.device
        self._tokens = torch.zeros(n_rows, dtype=torch.int64, device=device)
        self._position = torch.zeros(1, dtype=torch.int64, device=device)
        self._slot = torch.zeros(1, dtype=torch.int64, device=device)
        self.output = torch.zeros(n_rows, n_new, dtype=torch.int64, device=device)
        self._steps: dict[int, Callable[[], None]] = {}
        with torch.inference_mode():
            self.prefill()
            for seen in range(BUCKET, length + 1, BUCKET):
                if seen > self._n_prompt:
                    step = self._step(seen, fused() if graphs else EAGER)
                    self._position.fill_(self._n_prompt)
                    self._slot.fill_(0)
                    self._steps[seen] = captured(step, stream) if graphs else step

    @property
    def n_decoded(self) -> int:
        """Tokens of one `decode`: the first token of each row comes from the prompt."""
        return self.output.shape[0] * (self._n_new - 1)

    def generate(self) -> None:
        """Compute the prompts and all new tokens."""
        self.prefill()
        self.decode()

    @torch.inference_mode()
    def prefill(self) -> None:
        """Compute the prompts and sample the first token of each row."""
        if self._noise:
            self._cache.normal_()
            first = self._prompts[:, -1]
        else:
            first = _sampled(self._model.prefill(self._prompts, self._cache))
            self.output[:, 0] = first
        self._tokens.copy_(first)

    @torch.inference_mode()
    def decode(self, n_steps: int | None = None) -> None:
        """Sample tokens after the first, on the prompts that are in the cache.

        Args:
            n_steps: tokens of each row; None: all.
        """
        self._position.fill_(self._n_prompt)
        self._slot.fill_(1)
        n_steps = self._n_new - 1 if n_steps is None else n_steps
        for position in range(self._n_prompt, self._n_prompt + n_steps):
            self._steps[(position // BUCKET + 1) * BUCKET]()

    def _step(self, seen: int, pieces: Pieces) -> Callable[[], None]:
        def step() -> None:
            found = self._model.step(self._tokens, self._position, seen, self._cache, pieces)
            following = _sampled(found)
            self._tokens.copy_(following)
            self.output.index_copy_(1, self._slot, following[:, None])
            self._position.add_(1)
            self._slot.add_(1)

        return step


@torch.inference_mode()
def step_error(model: Llama, tokens: Tensor, pieces: Pieces) -> float:
    """How far a step on a cache is from the same token in a whole pass: norm of the difference.

    Args:
        model: that is checked.
        tokens: ``[n_rows, length] int64``, of which the last is the step.
        pieces: of the step.

    Returns:
        The norm of the scores' difference over the norm of the scores.
    """
    n_rows, length = tokens.shape
    whole = model.hidden(tokens)[:, -1]
    expected = model.head(whole).float()
    cached = -(-length // BUCKET) * BUCKET
    cache = model.new_cache(n_rows, cached)
    model.prefill(tokens[:, :-1], cache)
    position = torch.tensor([length - 1], device=tokens.device)
    found = model.step(tokens[:, -1], position, cached, cache, pieces).float()
    return float((found - expected).norm() / expected.norm())


def _sampled(scores: Tensor) -> Tensor:
    """Draw a token of each row by temperature 1, ``[n_rows]``.

    The largest of probabilities over exponential noise is a draw from them, and needs no wait for
    the GPU.
    """
    chances = scores.float().softmax(-1)
    return (chances / torch.empty_like(chances).exponential_()).argmax(-1)
