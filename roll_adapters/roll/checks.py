"""Refuses a config that cannot work, before anything of the job starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ecorl.config import PluginEngineConfig, StaticPolicyConfig
from ecorl.engines.models.text_tokenizer import TOKENIZER_FILE, survives_text
from ecorl.engines.registry import engine_spec
from ecorl.errors import ConfigError
from ecorl.records import Action, Stage, stage_of
from ecorl.runtime.control.governor import check_budget
from ecorl.runtime.equipment.hardware import stays_on_gpu
from ecorl.runtime.ray.cluster import check_accelerators, nodes
from roll_adapters.ray_jobs.models import local_folder
from roll_adapters.roll.config.settings import RollConfig
from roll_adapters.roll.description import ModelRole, references_of, uses_lora
from roll_adapters.roll.gears.formats import check_gears

ENGINE = "roll"
"""Name of the engine that computes with ROLL's own classes."""

_ON_ONE_PROCESS = ("hf_infer", "fsdp2_infer")
"""Strategies that ROLL can run in one process without a GPU."""


def check(
    read: RollConfig, pipeline_config: Any, movable: Sequence[ModelRole], *, moves: bool
) -> None:
    """Check a config against what ROLL made of it.

    Args:
        read: the config as it was read.
        pipeline_config: ROLL's, made of it.
        movable: roles that the policy may send to an engine.
        moves: whether the pipeline lets stages leave their GPUs.

    Raises:
        ConfigError: for the first setting that cannot work.
    """
    _check_budget(read)
    _check_micro_batches(read)
    _check_moves(read, pipeline_config, moves=moves)
    _check_overlap(read, pipeline_config)
    _check_card_roles(read, movable)
    _check_models(read, movable)
    _check_tokenizers(read, pipeline_config, movable)
    check_gears(read, pipeline_config, moves=moves)
    _check_width(read)


def check_cluster(read: RollConfig, movable: Sequence[ModelRole], patience_s: float) -> None:
    """Check that the cluster has the cards that the config asks for.

    Args:
        read: the config as it was read.
        movable: roles that the policy may send to an engine.
        patience_s: longest wait for its nodes, s.

    Raises:
        ConfigError: when it has not.
    """
    named = [card for cards in read.cards.values() for card in cards]
    n_unnamed = sum(not read.cards.get(own.key) for own in movable)
    if named or n_unnamed:
        # Nodes of a cluster come up one after the other.
        n_cards = max([*(card + 1 for card in named), len(set(named)) + n_unnamed])
        try:
            check_accelerators(n_cards, patience_s)
        except ConfigError:
            n_there = int(sum(node.n_fpgas for node in nodes()))
            for key, cards in read.cards.items():
                if any(card >= n_there for card in cards):
                    has = f"cards that the cluster has: {_range(n_there)}"
                    value = ", ".join(f"fpga:{card}" for card in cards)
                    raise read.error(f"{key}.device_mapping", value, has) from None
            raise


def _range(n: int) -> str:
    if n == 0:
        return "none (ray start --resources '{\"FPGA\": 1}' on a node says that it has one)"
    return "fpga:0" if n == 1 else f"fpga:0 to fpga:{n - 1}"


def _check_budget(read: RollConfig) -> None:
    """Refuse to promise a stop that ROLL's pipelines cannot be asked for."""
    try:
        check_budget(read.config)
    except ConfigError as error:
        raise read.error(f"ecorl.{error.key}", error.value, error.allowed) from None


def _check_micro_batches(read: RollConfig) -> None:
    """Refuse to pack rows: ROLL packs them itself."""
    if read.config.trainer.adaptive_micro_batch:
        allowed = (
            "false: ROLL packs rows itself, with use_dynamic_batching_in_train and "
            "use_dynamic_batching_in_infer of a role"
        )
        raise read.error("ecorl.trainer.adaptive_micro_batch", True, allowed)


def _check_width(read: RollConfig) -> None:
    """Refuse to change the width by save and restart.

    ROLL 0.3 reads a checkpoint into an optimizer that has taken no step yet, and so reads none of
    its moments: AdamW begins anew. A training that is interrupted anyway has to live with it; one
    that is only to save energy has not.
    """
    widths = read.config.trainer.widths
    if len(widths) > 1:
        allowed = "one: going on from a checkpoint, ROLL begins the optimizer's moments anew"
        raise read.error("ecorl.trainer.widths", list(widths), allowed)


def _check_moves(read: RollConfig, pipeline_config: Any, *, moves: bool) -> None:
    """Refuse a policy that moves what cannot move here."""
    policy = read.config.placement.policy
    if not isinstance(policy, StaticPolicyConfig):
        return
    for stage in (Stage.REWARD, Stage.REFERENCE):
        if stays_on_gpu(policy, stage):
            continue
        action, key = getattr(policy, str(stage)), f"ecorl.placement.policy.{stage}"
        if not moves:
            why = "gpu: in this pipeline stages are measured and do not move"
            raise read.error(key, str(action), why)
        if stage is Stage.REFERENCE and uses_lora(pipeline_config):
            why = (
                "gpu: with actor_train.model_args.lora_target it is the policy without its adapter"
            )
            raise read.error(key, str(action), why)
        if stage is Stage.REFERENCE and not references_of(pipeline_config):
            raise read.error(key, str(action), "gpu: the job has no reference of its own")
        rewards = read.data.get("rewards") or {}
        if stage is Stage.REWARD and not any(
            _is_movable_reward(read, domain) for domain in rewards
        ):
            why = (
                "gpu: no domain under rewards has worker_cls: "
                "roll_adapters.roll.workers.RewardModelWorker, and rules stay where they are"
            )
            raise read.error(key, str(action), why)


def _is_movable_reward(read: RollConfig, domain: str) -> bool:
    worker = read.role(f"rewards.{domain}").get("worker_cls")
    return str(worker).startswith("roll_adapters.")


def _check_overlap(read: RollConfig, pipeline_config: Any) -> None:
    """Refuse two stages at once on the same GPUs: ROLL loads and unloads their states in turns."""
    if not read.own.overlap_reference:
        return
    key = "ecorl.roll.overlap_reference"
    references = references_of(pipeline_config)
    if not references:
        raise read.error(key, True, "false: the job has no reference of its own")
    for name, reference in references.items():
        own = set(getattr(reference, "device_mapping", None) or ())
        for other in ("actor_train", "critic"):
            settings = getattr(pipeline_config, other, None)
            shared = own & set(getattr(settings, "device_mapping", None) or ())
            if shared:
                which = "reference" if len(references) == 1 else f"reference {name!r}"
                why = f"false: {which} and {other} share the GPUs {sorted(shared)}"
                raise read.error(key, True, why)


def _check_card_roles(read: RollConfig, movable: Sequence[ModelRole]) -> None:
    """Refuse cards that nothing would use, or more of them than a role can."""
    keys = {own.key for own in movable}
    for key, cards in read.cards.items():
        value = ", ".join(f"fpga:{card}" for card in cards)
        where = f"{key}.device_mapping"
        if key in keys and len(cards) > 1:
            raise read.error(where, value, "one card: a role's engine computes on one")
        stage = "reward" if key.startswith("rewards.") else key
        is_own = stage == "reward" and not _is_movable_reward(read, key.partition(".")[2])
        if (
            key not in keys
            and not is_own
            and stage in ("reference", "reward")
            and _moves_nothing(read, key)
        ):
            why = f"GPUs alone: ecorl.placement.policy keeps {stage} there"
            raise read.error(where, value, why)
        if key not in keys and read.role(key).get("worker_cls") is None:
            why = "GPUs alone, or worker_cls: a class that computes on cards"
            raise read.error(where, value, why)
        if key not in keys and read.role(key).get("device_mapping") is not None:
            allowed = "GPUs or cards: a class of your own is given the one or the other"
            raise read.error(where, f"{read.role(key)['device_mapping']}, {value}", allowed)
        strategy = (read.role(key).get("strategy_args") or {}).get("strategy_name")
        has_ranks = read.role(key).get("device_mapping") is not None
        if key in keys and not has_ranks and strategy not in (None, *_ON_ONE_PROCESS):
            allowed = (
                f"hf_infer where the role has no GPU: {value} computes, and a CPU what it misses"
            )
            raise read.error(f"{key}.strategy_args.strategy_name", strategy, allowed)
        role = next((str(own.role) for own in movable if own.key == key), "")
        place = read.config.place(role) if role else None
        if place is not None and place.node is not None:
            named_by = role if role in read.config.places else role.partition(":")[0]
            allowed = f"no node where {where} names {value}"
            raise read.error(f"ecorl.places.{named_by}.node", place.node, allowed)
    named = [card for cards in read.cards.values() for card in cards]
    for key, cards in read.cards.items():
        twice = [card for card in cards if named.count(card) > 1]
        if twice:
            value = f"fpga:{twice[0]}"
            raise read.error(f"{key}.device_mapping", value, "each card for one role")


def _moves_nothing(read: RollConfig, key: str) -> bool:
    stage = Stage.REWARD if key.startswith("rewards.") else Stage.REFERENCE
    return stays_on_gpu(read.config.placement.policy, stage)


def _check_models(read: RollConfig, movable: Sequence[ModelRole]) -> None:
    """Refuse a model that an engine could not load, and an exact engine for another role."""
    config = read.config
    offload = config.engine.offload
    for own in movable:
        folder = local_folder(own.model)
        if folder is None:
            allowed = "a checkpoint folder, or a model of the hub that is in this machine's cache"
            raise read.error(f"{own.key}.model_args.model_name_or_path", own.model, allowed)
        stage = stage_of(own.role)
        try:
            engine_spec(config.engine, folder, stage, config.devices.accelerator, dtype=own.dtype)
        except ConfigError as error:
            raise read.error(f"ecorl.{error.key}", error.value, error.allowed) from error
        if (
            stage is Stage.REWARD
            and isinstance(offload, PluginEngineConfig)
            and offload.name == ENGINE
        ):
            allowed = "torch: ROLL has no class that rewards a response by a model"
            raise read.error("ecorl.engine.offload.name", offload.name, allowed)


def _check_tokenizers(read: RollConfig, pipeline_config: Any, movable: Sequence[ModelRole]) -> None:
    """Refuse a model that would read other tokens than the policy wrote: it is given its ids."""
    actor = getattr(pipeline_config, "actor_train", None)
    name = getattr(getattr(actor, "model_args", None), "model_name_or_path", None)
    policy = local_folder(str(name)) if name else None
    if policy is None:
        return
    for own in movable:
        folder = local_folder(own.model)
        # Many a model comes without a tokenizer: then nothing can be told.
        if folder in (None, policy) or not (folder / TOKENIZER_FILE).is_file():
            continue
        why = survives_text(policy, folder)
        if why is not None:
            allowed = f"a model that reads the policy's tokens as they are ({why})"
            raise read.error(f"{own.key}.model_args.model_name_or_path", own.model, allowed)


_OTHER_ROWS = "; ROLL itself hands its values to other rows when old log-probs are recomputed"
"""Said because a user who compares numbers must know; ecorl leaves it as it is."""


def what_happens(
    read: RollConfig,
    pipeline_config: Any,
    roles: Sequence[ModelRole],
    movable: Sequence[ModelRole],
    *,
    moves: bool,
) -> list[tuple[str, str]]:
    """Say of each role what will be measured, what can be moved, and why not.

    Args:
        read: the config as it was read.
        pipeline_config: ROLL's.
        roles: of the job.
        movable: roles that the policy may send to an engine.
        moves: whether the pipeline lets stages leave their GPUs.

    Returns:
        Role and sentence, in the order of a step.
    """
    by_role: Mapping[str, ModelRole] = {own.role: own for own in movable}
    found = []
    for own in roles:
        stage = stage_of(own.role)
        if own.role in by_role:
            found.append((own.role, _moved(read, own)))
        elif stage is Stage.REFERENCE and moves:
            kept = "measured; stays on its GPUs: ecorl.placement.policy.reference is gpu"
            if read.own.overlap_reference:
                kept += "; runs there beside values and old log-probs"
            found.append((own.role, kept))
        elif stage is Stage.REWARD and moves:
            found.append((own.role, _kept_reward(read, own)))
        elif stage is Stage.GENERATION and not moves:
            found.append((own.role, "not measured: this pipeline's rollouts are not seen"))
        else:
            why = "its weights change" if moves else "in this pipeline nothing moves"
            recomputes = getattr(pipeline_config, "enable_old_logprobs_recompute", False)
            if stage is Stage.CRITIC and moves and recomputes:
                why += _OTHER_ROWS
            found.append((own.role, f"measured; does not move: {why}"))
    return found


def _moved(read: RollConfig, own: ModelRole) -> str:
    policy = read.config.placement.policy
    if isinstance(policy, StaticPolicyConfig):
        action = getattr(policy, str(stage_of(own.role)))
        how = "beside the GPUs" if action is Action.CONCURRENT else "while the GPUs wait"
        told = f"moves to a card, {how}"
    else:
        told = f"moves to a card when the policy ({policy.type}) decides so"
    cards = read.cards.get(own.key, ())
    named = f" ({', '.join(f'fpga:{card}' for card in cards)})" if cards else ""
    has_gpus = read.role(own.key).get("device_mapping") is not None
    exact = "on its own GPUs" if has_gpus else "on a CPU, which is slow"
    return f"measured; {told}{named}; rows that fail are computed {exact}"


def _kept_reward(read: RollConfig, own: ModelRole) -> str:
    if _is_movable_reward(read, own.role.partition(":")[2]):
        return "measured; stays where it is: ecorl.placement.policy.reward is gpu"
    settings = read.role(own.key)
    worker = str(settings.get("worker_cls"))
    if settings.get("judge_model_type") is not None or "judge" in worker.lower():
        return "measured, with its judge's time; does not move: it is no scalar reward model"
    return "measured; does not move: it is a rule or a class of its own"
