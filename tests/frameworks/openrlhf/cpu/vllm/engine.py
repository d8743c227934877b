"""Generation by transformers, one request after the other.

What a request yields depends on its prompt, on the weights and on how many requests with the same
prompt these weights have answered before, never on other prompts or on times. So two trainings
that differ only in where their frozen models run draw the same samples.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib
import os
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from transformers import AutoModelForCausalLM, AutoTokenizer


@dataclass(frozen=True)
class Logprob:
    logprob: float


@dataclass(frozen=True)
class Completion:
    token_ids: list[int]
    text: str
    finish_reason: str
    logprobs: list[dict[int, Logprob]] | None


@dataclass(frozen=True)
class RequestOutput:
    outputs: list[Completion]


class _OnCpu(TorchFunctionMode):
    """Makes tensors on the CPU that were asked for on a GPU."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if kwargs.get("device") == "cuda":
            kwargs["device"] = "cpu"
        return func(*args, **kwargs)


class _Worker:
    """What vLLM mixes the class of ``worker_extension_cls`` into."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.device = torch.device("cpu")
        self.model_config = SimpleNamespace(dtype=next(model.parameters()).dtype)
        self.model_runner = SimpleNamespace(model=SimpleNamespace(load_weights=self._load))
        self.n_loaded = 0
        self._weights = model.state_dict()

    @torch.no_grad()
    def _load(self, weights: list[tuple[str, torch.Tensor]]) -> None:
        for name, weight in weights:
            # vLLM knows none of PEFT's names, so that OpenRLHF 0.11 ends here with LoRA (its issue
            # 1349). The frozen weights are taken, for the rest of such a training to be seen.
            plain = name.removeprefix("base_model.model.").replace(".base_layer", "")
            if "lora_" not in plain:
                self._weights[plain].copy_(weight)
            self.n_loaded += 1


async def _let_through(number: int) -> None:
    """Wait while a file says that fewer requests than this are to be answered."""
    with suppress(FileNotFoundError):
        while number > int(Path(os.environ["ECORL_TEST_HOLD"]).read_text()):
            await asyncio.sleep(0.05)


class Engine:
    """An engine with one worker, in the process of the rollout actor."""

    def __init__(self, model: str, options: dict[str, Any]) -> None:
        if not torch.distributed.is_initialized():
            store = torch.distributed.HashStore()
            torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
        self._model = AutoModelForCausalLM.from_pretrained(
            model, dtype=getattr(torch, options["dtype"]), attn_implementation="eager"
        ).eval()
        self._tokenizer = AutoTokenizer.from_pretrained(model)
        module, _, name = options["worker_extension_cls"].rpartition(".")
        extension = getattr(importlib.import_module(module), name)
        self._worker = type("Worker", (_Worker, extension), {})(self._model)
        self._digest, self._digest_at = b"", -1
        self._n_asked: Counter[bytes] = Counter()
        self._n_begun = self._n_unfinished = 0
        self.output_processor = SimpleNamespace(
            get_num_unfinished_requests=lambda: self._n_unfinished
        )

    async def is_sleeping(self) -> bool:
        return False

    async def _nothing(self, *_args: Any, **_options: Any) -> None:
        return None

    reset_prefix_cache = pause_generation = resume_generation = sleep = wake_up = _nothing

    async def collective_rpc(self, method: str, args: tuple[Any, ...] = ()) -> list[Any]:
        with _OnCpu():
            return [getattr(self._worker, method)(*args)]

    async def generate(self, prompt: dict[str, Any], sampling_params: Any, request_id: str) -> Any:
        self._n_unfinished += 1
        self._n_begun += 1
        try:
            await _let_through(self._n_begun)
            completion = self._complete(list(prompt["prompt_token_ids"]), sampling_params)
        finally:
            self._n_unfinished -= 1
        yield RequestOutput([completion])

    def _seed(self, prompt: list[int]) -> int:
        if self._digest_at != self._worker.n_loaded:
            digest = hashlib.sha256()
            for name, weight in sorted(self._model.state_dict().items()):
                digest.update(name.encode())
                digest.update(weight.contiguous().view(-1).view(torch.uint8).numpy())
            self._digest, self._digest_at = digest.digest(), self._worker.n_loaded
            self._n_asked.clear()
        key = repr(prompt).encode()
        self._n_asked[key] += 1
        told = hashlib.sha256(self._digest + key + b"%d" % self._n_asked[key]).digest()
        return int.from_bytes(told[:8], "little") >> 1

    @torch.no_grad()
    def _complete(self, prompt: list[int], params: Any) -> Completion:
        if params.top_p != 1.0 or params.top_k not in (-1, 0):
            raise NotImplementedError("top_p and top_k")
        random = torch.Generator().manual_seed(self._seed(prompt))
        ends = self._model.generation_config.eos_token_id
        ends = [ends] if isinstance(ends, int) else list(ends or [])
        tokens: list[int] = []
        logprobs: list[dict[int, Logprob]] = []
        cache, inputs, reason = None, torch.tensor([prompt]), "length"
        while len(tokens) < params.max_tokens:
            out = self._model(input_ids=inputs, past_key_values=cache, use_cache=True)
            cache, logits = out.past_key_values, out.logits[0, -1].float()
            if len(tokens) < params.min_tokens:
                logits[ends] = -torch.inf
            if params.temperature > 0:
                scores = torch.log_softmax(logits / params.temperature, -1)
                token = int(torch.multinomial(scores.exp(), 1, generator=random))
            else:
                scores = torch.log_softmax(logits, -1)
                token = int(scores.argmax())
            tokens.append(token)
            logprobs.append({token: Logprob(float(scores[token]))})
            if token in ends:
                reason = "stop"
                break
            inputs = torch.tensor([[token]])
        text = self._tokenizer.decode(tokens, skip_special_tokens=params.skip_special_tokens)
        return Completion(tokens, text, reason, logprobs if params.logprobs is not None else None)
