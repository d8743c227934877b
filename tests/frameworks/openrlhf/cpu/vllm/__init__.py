"""In place of vLLM: the part of its interface that OpenRLHF 0.11.2 uses, over transformers.

OpenRLHF's rollout actors, the agents in them and its broadcast of the weights run as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__version__ = "0.29.0"


@dataclass
class SamplingParams:
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    max_tokens: int | None = 16
    min_tokens: int = 0
    skip_special_tokens: bool = True
    logprobs: int | None = None


class AsyncEngineArgs:
    def __init__(self, model: str, **options: Any) -> None:
        self.model, self.options = model, options


class AsyncLLMEngine:
    @staticmethod
    def from_engine_args(args: AsyncEngineArgs) -> Any:
        # Late, as the driver imports this package too and generates nothing.
        from vllm.engine import Engine

        return Engine(args.model, args.options)
