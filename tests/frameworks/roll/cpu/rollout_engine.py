"""In place of ROLL's strategy for vLLM: completions by transformers on the CPU.

ROLL's rollout workers, its router, its scheduler and its update of the weights run as they are.
What is drawn for a prompt depends on the prompt and the weights alone, so that runs compare.
"""

from __future__ import annotations

import zlib

import torch
from roll.distributed.strategy.strategy import InferenceStrategy


def create_sampling_params_for_vllm(gen_kwargs, collect_unfinished=False):
    """See ROLL: what a request asks for, from a config's ``generating_args``."""
    return {
        "n": gen_kwargs["num_return_sequences"],
        "max_tokens": gen_kwargs["max_new_tokens"],
        "temperature": gen_kwargs["temperature"],
        "stop_token_ids": gen_kwargs["eos_token_id"],
    }


class VllmStrategy(InferenceStrategy):
    strategy_name = "vllm"

    async def initialize(self, model_provider):
        from transformers import AutoModelForCausalLM, AutoTokenizer

        folder = self.worker_config.model_args.model_name_or_path
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    async def generate_request(self, payload):
        asked, prompt = payload["sampling_params"], list(payload["input_ids"])
        draw = torch.Generator().manual_seed(zlib.crc32(repr(prompt).encode()))
        drawn = [self._complete(prompt, asked, draw) for _ in range(asked["n"])]
        tokens, logprobs, reasons = (list(column) for column in zip(*drawn, strict=True))
        # The scheduler counts on log-probs, whatever was asked for.
        return {"output_token_ids": tokens, "output_logprobs": logprobs, "finish_reasons": reasons}

    @torch.no_grad()
    def _complete(self, prompt, asked, draw):
        tokens, logprobs = [], []
        while len(tokens) < asked["max_tokens"]:
            logits = self.model(torch.tensor([prompt + tokens])).logits[0, -1].float()
            # No model writes padding, and what follows it would not count as a response.
            logits[self.tokenizer.pad_token_id] = -torch.inf
            shares = torch.softmax(logits / asked["temperature"], -1)
            tokens.append(int(torch.multinomial(shares, 1, generator=draw)))
            logprobs.append(float(torch.log(shares[tokens[-1]])))
            if tokens[-1] in asked["stop_token_ids"]:
                return tokens, logprobs, "stop"
        return tokens, logprobs, "length"

    async def update_parameter_in_bucket(self, serialized_named_tensors, is_lora=False):
        from roll.utils.cuda_ipc_utils import MultiprocessingSerializer
        from roll.utils.send_recv_utils import named_tensors_from_bucket

        bucket = MultiprocessingSerializer.deserialize(serialized_named_tensors[0])
        for name, weight in named_tensors_from_bucket(**bucket):
            self.model.get_parameter(name).data.copy_(weight)

    async def abort_requests(self, request_ids):
        pass

    async def load_states(self, *args, **kwargs):
        pass

    async def offload_states(self, *args, **kwargs):
        pass

    async def process_weights_after_loading(self, *args, **kwargs):
        pass
