"""ecorl inside TRL's GRPO and RLOO trainers.

    from roll_adapters.trl_hooks import attach
    attach(trainer, "ecorl.toml")
    trainer.train()

`attach` wraps methods of this one trainer object and changes nothing in TRL. What happens
within a step:

    _generate                                     generation, timed; rewards are submitted
    _get_per_token_logps_and_entropies(ref_model) reference is submitted; an unfilled tensor goes on
    _calculate_rewards                            completion barrier: both are joined by sample id,
                                                  the tensor is filled, advantages follow
    compute_loss .. optimizer step                actor_train, timed
    log                                           energy, power and placement join the trainer's own
                                                  figures (keys: `ecorl.runtime.energy.log_figures`)

TRL asks for the reference before the rewards and for advantages right after them, so within one
step the reference can only run beside the rewards. A stage placed on the GPU runs TRL's own code
with TRL's own arguments in TRL's own thread: bit for bit what plain TRL does.
"""

from roll_adapters.trl.attach import attach
from roll_adapters.trl.attachment import TrlAttachment

__all__ = ["TrlAttachment", "attach"]
