"""What is done for one prompt, unless a config names another loop."""

from __future__ import annotations

import asyncio
import uuid
from typing import TYPE_CHECKING

from roll.distributed.scheduler.protocol import DataProto
from roll.utils.functionals import postprocess_generate

if TYPE_CHECKING:
    from roll.distributed.scheduler.generate_scheduler import RolloutContext


class UserDefinedRolloutLoop:
    async def process_new_prompt(self, context: RolloutContext) -> DataProto | None:
        """Generate and reward the samples of a prompt; None drops it."""
        req, domain = context.get_request_data(context.meta_info)
        config = context.pipeline_config
        n = config.num_return_sequences_in_group
        requests = [req]
        if config.is_num_return_sequences_expand and n > 1:
            # Each sequence is a request of its own, which has its reward by itself.
            requests = req.repeat(n).chunk(n)
            for i, request in enumerate(requests):
                asked = {**req.meta_info["generation_config"], "num_return_sequences": 1}
                request.meta_info |= {"generation_config": asked, "sequence": i}
        async with context.do_generate_and_reward(max_concurrency=n):
            parts = await asyncio.gather(*(self._sample(context, r, domain) for r in requests))
        return DataProto.concat(list(parts))

    async def _sample(self, context: RolloutContext, req: DataProto, domain: str) -> DataProto:
        answer = (await context.generate(req=req, domain=domain)).meta_info
        samples = postprocess_generate(
            req,
            answer["output_token_ids"],
            answer["output_logprobs"],
            context.pipeline_config.sequence_length,
        )
        n = len(samples)
        columns = {k: [array[0]] * n for k, array in req.non_tensor_batch.items()}
        columns["rollout_id"] = [str(uuid.uuid4()) for _ in range(n)]
        columns["sample_uuid"] = [str(uuid.uuid4()) for _ in range(n)]
        samples.union(DataProto.from_dict(None, columns))
        samples.meta_info = {"global_step": req.meta_info["global_step"]}
        rewards = await context.compute_rewards(req=samples, domain=domain)
        rewards.meta_info = {}
        return samples.union(rewards)
