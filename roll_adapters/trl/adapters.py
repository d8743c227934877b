"""Policies with a PEFT adapter: TRL's reference is then the same model without the adapter."""

from __future__ import annotations

from typing import Any

from ecorl.config import Config, StaticPolicyConfig
from ecorl.errors import ConfigError
from ecorl.records import Action

REFERENCE_ADAPTER = "ref"
"""TRL's name of the copy that it keeps of an adapter which was trained before."""


OWN_REFERENCE = "the reference is the policy without its adapter, whose weights train"
"""Why such a reference is computed by the trainer itself, for the record."""


def no_reference(trainer: Any) -> str | None:
    """Why the reference is no stage of the run; None where it is one.

    Args:
        trainer: the TRL trainer.
    """
    if float(trainer.beta) == 0.0:
        return "no reference: the trainer's beta is 0, so it computes none"
    policy = trainer.accelerator.unwrap_model(trainer.model)
    if is_own_reference(trainer) and answers_for_reference(policy) is None:
        return (
            "no reference: it is computed by the policy itself, and when that answers for it "
            "cannot be told; its time and energy lie beside the stages"
        )
    return None


def is_own_reference(trainer: Any) -> bool:
    """Whether the trainer's policy is its own reference, by leaving its adapter out.

    Args:
        trainer: the TRL trainer.
    """
    return trainer.ref_model is None and float(trainer.beta) != 0.0


def answers_for_reference(model: Any) -> bool | None:
    """Whether a PEFT model computes as the reference just now, and not as the policy.

    It does while its adapters are disabled or TRL's copy is the active one. The two calls of TRL
    have the same arguments: only the model's state tells them apart.

    Args:
        model: the policy, unwrapped.

    Returns:
        None where it cannot be told: the model has no adapters that are known here.
    """
    layer = next(filter(_is_adapter_layer, model.modules()), None)
    if layer is not None:
        return bool(layer.disable_adapters) or REFERENCE_ADAPTER in layer.active_adapters
    # Learned prompts have no layers; the model itself notes that they are left out.
    disabled = getattr(model, "_adapters_disabled", None)
    return None if disabled is None else bool(disabled)


def _is_adapter_layer(module: Any) -> bool:
    """Whether a module is one of PEFT's layers, told without PEFT: it may not be installed.

    Models of transformers have methods of the same names; in a layer they are properties.
    """
    kind = type(module)
    names = ("disable_adapters", "active_adapters")
    return all(isinstance(getattr(kind, name, None), property) for name in names)


def check_reference(trainer: Any, config: Config) -> None:
    """Refuse a fixed placement of a reference that is no model of its own.

    Args:
        trainer: the TRL trainer.
        config: the run's configuration.

    Raises:
        ConfigError: when the policy sends the reference to an engine.
    """
    policy = config.placement.policy
    if not is_own_reference(trainer) or not isinstance(policy, StaticPolicyConfig):
        return
    if policy.reference is not Action.GPU:
        allowed = (
            "gpu: the reference of this trainer is its policy without the adapter, not a model of "
            "its own that an engine could load"
        )
        raise ConfigError("placement.policy.reference", str(policy.reference), allowed)
