"""How many tokens a micro-batch may have, and which trainers' rows can be packed at all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt
from torch import nn
from trl import GRPOTrainer, RLOOTrainer

from ecorl.config import Config
from ecorl.engines.packing import automatic_budget
from ecorl.engines.torch.padding import follows_batch_length
from ecorl.errors import ConfigError
from roll_adapters.trl.processes import REPLICATED
from roll_adapters.trl.reward import RewardModelCall

_FIXED_TOKENS = {"cpu": 128}
_FIXED_TOKENS_ELSEWHERE = 1024
"""Tokens that are computed in the time that a pass takes whatever its size, by the kind of device.
On one processor core passes forward and backward of models with 0.1 to 20 million weights took as
long more as 23 to 96 of their tokens (measured), and the loss is taken anew for each part. The
other figure is invented: a GPU waits for its kernels to be launched, some ten milliseconds in which
models of one to seven billion weights compute about a thousand tokens."""

_DROPOUTS = ("attention_dropout", "dropout", "dropout_p", "attn_pdrop")
_JITTERS = ("jitter_noise", "router_jitter_noise")
"""Numbers of a layer that say how much it drops, or blurs at random, in training."""


_STEPS_BACKWARD = ("lomo", "layerwise")
"""Words in the names of optimizers that step while gradients are computed."""

_OF_THE_LOSS = ("compute_loss", "_compute_loss", "_get_per_token_logps_and_entropies")
"""Methods of a trainer that make its loss. Those of TRL are known to be a sum over rows; whatever
another one adds (a penalty on the weights, say) would go backward once for each part of the
rows."""


@dataclass(frozen=True, slots=True)
class PackingRule:
    """How many tokens a micro-batch may have.

    Attributes:
        tokens: padded tokens at most; None: chosen for each batch.
        fixed_tokens: tokens that are computed in the time that a pass takes whatever its size.
    """

    tokens: int | None
    fixed_tokens: int

    @classmethod
    def of(cls, trainer: Any, config: Config) -> PackingRule:
        """Take it from a config.

        Args:
            trainer: the TRL trainer.
            config: the run's.
        """
        device = trainer.accelerator.device.type
        fixed = _FIXED_TOKENS.get(device, _FIXED_TOKENS_ELSEWHERE)
        return cls(config.trainer.micro_batch_tokens, fixed)

    def budget(self, lengths: npt.ArrayLike, most: int) -> int:
        """Tell how many tokens a micro-batch of some rows may have.

        Args:
            lengths: of the rows, as for `ecorl.engines.packing.pack`.
            most: padded tokens of the framework's own forward pass: no more where none are given.
        """
        if self.tokens is not None:
            # The framework's own pass is known to fit into the device's memory.
            return min(self.tokens, max(1, most))
        return automatic_budget(lengths, max(1, most), self.fixed_tokens)


def check_packing(trainer: Any, config: Config) -> None:
    """Refuse to pack rows of a trainer whose numbers would then differ by more than rounding.

    Args:
        trainer: the TRL trainer.
        config: the run's.

    Raises:
        ConfigError: for the first reason.
    """
    if not config.trainer.adaptive_micro_batch:
        return
    why = next(_objections(trainer), None)
    if why is not None:
        raise ConfigError("trainer.adaptive_micro_batch", True, f"false: {why}")


def _objections(trainer: Any) -> Iterator[str]:
    args, policy = trainer.args, trainer.accelerator.unwrap_model(trainer.model)
    foreign = [name for name in _OF_THE_LOSS if not _is_trl_s(trainer, name)]
    if foreign:
        yield (
            f"{' and '.join(foreign)} of this {type(trainer).__name__} is not TRL's own, and what "
            "it adds to the loss would count once for each micro-batch"
        )
    if str(getattr(trainer.accelerator, "mixed_precision", "")) == "fp8":
        yield "in FP8 a value's scale follows all rows of its micro-batch"
    if int(getattr(trainer, "pad_to_multiple_of", None) or 1) > 1:
        yield f"micro-batches keep to no pad_to_multiple_of={trainer.pad_to_multiple_of}"
    kind = str(trainer.accelerator.distributed_type).rpartition(".")[2]
    if kind not in REPLICATED:
        yield f"the trainer shards its model ({kind}), and its processes pack rows of their own"
    if int(args.n_gpu) > 1:
        yield f"one process spreads its batches over {args.n_gpu} GPUs (start one a GPU)"
    optimizer = str(getattr(args.optim, "value", args.optim))
    if any(word in optimizer for word in _STEPS_BACKWARD):
        yield f"the optimizer {optimizer} steps within each backward pass"
    if args.torch_compile:
        yield "with torch_compile each new length of a micro-batch would compile the model anew"
    if getattr(trainer, "_is_vlm", False):
        yield "the policy reads images, whose patches are no rows"
    if getattr(trainer, "aux_loss_enabled", False):
        yield (
            "the auxiliary loss of the experts is not a sum over rows (router_aux_loss_coef=0 in "
            "the trainer's arguments)"
        )
    if getattr(trainer, "top_entropy_quantile", 1.0) < 1.0:
        yield "with top_entropy_quantile a token's loss depends on all other rows of its batch"
    if args.neftune_noise_alpha or _is_random(policy):
        yield (
            "in training the policy draws random numbers, which would fall on other tokens "
            "(disable_dropout=True in the trainer's arguments, no dropout in an adapter, no "
            "neftune_noise_alpha)"
        )
    models = {"the policy": policy, "the reference": trainer.ref_model}
    models |= {f"the model of {own.role}": own.model for own in RewardModelCall.find_all(trainer)}
    for name, model in models.items():
        scaling = None if model is None else follows_batch_length(model)
        if scaling is not None:
            yield f"positions of {name} are scaled by the length of a batch ({scaling})"


def _is_trl_s(trainer: Any, name: str) -> bool:
    """Whether a method is that of TRL's trainer: not a subclass's, nor one put in its place.

    Args:
        trainer: the TRL trainer.
        name: of the method.
    """
    if name in vars(trainer):
        return False
    found = getattr(type(trainer), name, None)
    # One that another package has put into TRL's class knows the names of its own module.
    home = str(getattr(found, "__globals__", {}).get("__name__", ""))
    own = [vars(kind).get(name) for kind in (GRPOTrainer, RLOOTrainer)]
    return home.partition(".")[0] == "trl" and any(found is method for method in own)


def _is_random(model: nn.Module) -> bool:
    """Whether a model in training draws random numbers in its forward pass."""
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0:
            return True
        drawn = (vars(module).get(name) for name in (*_DROPOUTS, *_JITTERS))
        if any(isinstance(p, float) and p > 0 for p in drawn):
            return True
    return False
