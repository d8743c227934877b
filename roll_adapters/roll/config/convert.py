"""Turns a config of ROLL's into one that ecorl takes part in.

What changes is little: reward models get the class that can move, and a block ``ecorl:`` is added.
Everything else of the text stays, and what cannot be converted is said.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any, Literal

from ecorl.errors import ConfigError
from ecorl.records import Action
from roll_adapters.roll.config.yaml_text import line_of, load, scalar_at, with_block, with_value

Kind = Literal["rlvr", "agentic", "dpo", "distill", "sft"]

ROLLS_MODEL = "roll.pipeline.base_worker.RewardWorker"
"""ROLL's worker of a scalar reward model."""
MOVABLE_MODEL = "roll_adapters.roll.workers.RewardModelWorker"
"""The worker of a scalar reward model that can move."""

_OF_IMAGES = ("roll.pipeline.rlvr.rewards.detection_", "roll.pipeline.rlvr.rewards.video_")
"""ROLL's rewards for what a model saw."""

_INIT_KL_COEF = 0.2
"""ROLL's default of ``init_kl_coef``; above 0 it starts a reference."""

_KINDS: Mapping[Kind, str] = {
    "rlvr": "RLVR",
    "agentic": "agentic training",
    "dpo": "DPO",
    "distill": "distillation",
    "sft": "supervised fine-tuning",
}

_NAME = re.compile(r"[A-Za-z0-9._-]+")
_REFERS = re.compile(r"\$\{([A-Za-z_][\w-]*(?:\.[\w-]+)*)\}")
"""A value that is another key's, with its whole path."""


class _Unseen:
    """Stands for a value that this file alone does not tell."""


_UNSEEN = _Unseen()


@dataclass(frozen=True, slots=True)
class Conversion:
    """A converted config.

    Attributes:
        text: the new config.
        changes: what was changed, a sentence each.
        left: what could not be converted or stays where it is, and why, a sentence each.
    """

    text: str
    changes: tuple[str, ...]
    left: tuple[str, ...]


def convert(text: str, name: str) -> Conversion:
    """Convert a config of ROLL's.

    Args:
        text: YAML, as ROLL reads it.
        name: the file that it comes from.

    Raises:
        ConfigError: when it is no YAML, no config, or one with a block ``ecorl:`` already.
    """
    config = load(text, name)
    if not isinstance(config, Mapping):
        found = "a list" if isinstance(config, list) else config
        raise ConfigError("(config)", found, "a mapping of ROLL's settings", name)
    if "ecorl" in config:
        line = line_of(text, ["ecorl"])
        raise ConfigError("ecorl", "a block", "a config without one", name, line)
    kind = kind_of(config)
    rewards = _Rewards(text, name, config)
    if kind == "rlvr":
        rewards.convert()
    stays = _why_reference_stays(config, kind)
    changes, left = rewards.changes, rewards.left
    changes.append(
        "The block ecorl at the end has the settings of ecorl."
        if stays
        else "The block ecorl at the end has the settings of ecorl; the reference keeps its class, "
        "and may move."
    )
    if stays:
        left.append(stays)
    reference = Action.GPU if stays else Action.CONCURRENT
    reward = Action.CONCURRENT if rewards.n_movable else None
    new = with_block(rewards.text, _block(_run_name(text, config, name), reference, reward), name)
    if not new.startswith(rewards.text):
        changes.append("The last text of the file is marked |- now, since it has no line end.")
    return Conversion(new, tuple(changes), tuple(left))


def difference(old: str, new: str, old_name: str, new_name: str) -> str:
    """Compare two texts, as ``diff -u`` does.

    Args:
        old: the one text.
        new: the other.
        old_name: of its file.
        new_name: of its file.

    Returns:
        The unified diff; nothing when they are equal.
    """
    lines = difflib.unified_diff(_lines(old), _lines(new), old_name, new_name)
    no_end = "\n\\ No newline at end of file\n"
    return "".join(line if line.endswith("\n") else line + no_end for line in lines)


def kind_of(config: Mapping[Any, Any]) -> Kind | None:
    """Tell by its keys which of ROLL's pipelines a config is for.

    Args:
        config: as plain data.

    Returns:
        The pipeline; None where no key tells it.
    """
    if "sft_train" in config:
        return "sft"
    if "student" in config:
        return "distill"
    agentic = {"custom_envs", "train_env_manager", "val_env_manager"}
    if agentic & set(config) or config.get("pure_opd_pipeline_type") == "agentic":
        return "agentic"
    # With student_train a teacher takes the place of the reference, in the pipeline of RLVR.
    if "rewards" in config or "student_train" in config:
        return "rlvr"
    if {"chosen_key", "rejected_key"} & set(config) or {"beta", "reference"} <= set(config):
        return "dpo"
    return None


def reads_images(config: Mapping[Any, Any]) -> bool:
    """Tell whether a config of RLVR is for images, videos or sound: ROLL has a pipeline for them.

    Args:
        config: as plain data. Not every config tells; then the rows do.
    """
    trained, rewards = config.get(_trained_role(config)), config.get("rewards")
    data = trained.get("data_args") if isinstance(trained, Mapping) else None
    keys = data if isinstance(data, Mapping) else ()
    if any(str(key).startswith(("image_", "video_", "audio_")) for key in keys):
        return True
    classes = [
        str(settings.get("worker_cls"))
        for settings in (rewards.values() if isinstance(rewards, Mapping) else ())
        if isinstance(settings, Mapping)
    ]
    return any(cls.startswith(_OF_IMAGES) for cls in classes)


def _trained_role(config: Mapping[Any, Any]) -> str:
    return "student_train" if "student_train" in config else "actor_train"


# ---------------------------------------------------------------- the rewards


@dataclass(slots=True)
class _Rewards:
    """The rewards of a config, being converted."""

    text: str
    name: str
    config: Mapping[Any, Any]
    changes: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    n_movable: int = 0

    def convert(self) -> None:
        """Give each reward model the class that can move, and say what the other rewards are."""
        rewards, others = self.config.get("rewards"), _other_files(self.config)
        if isinstance(rewards, Mapping):
            for domain, settings in rewards.items():
                self._convert_domain(str(domain), settings)
        elif rewards is not None:
            self.left.append(f"rewards is {rewards}, which does not stand in this file.")
        elif others:
            where = f"in another file of the defaults list ({others})"
            self.left.append(f"The rewards stand {where}, or nowhere: they are not converted.")
        if self.config.get("reward_model"):
            self.left.append("reward_model writes text for judges, and stays where it is.")

    def _convert_domain(self, domain: str, settings: Any) -> None:
        key = f"rewards.{domain}"
        if not isinstance(settings, Mapping):
            where = f"is {settings}" if isinstance(settings, str) else "has no settings"
            self.left.append(f"{key} {where}: its class does not stand in this file.")
            return
        written = settings.get("worker_cls")
        found = _resolved(self.config, written)
        if found == ROLLS_MODEL:
            parts = ["rewards", domain, "worker_cls"]
            # The new text of an anchor has reached its aliases already.
            if scalar_at(self.text, parts) != MOVABLE_MODEL:
                self.text = with_value(self.text, parts, MOVABLE_MODEL, self.name)
            now = f"{key}.worker_cls is {MOVABLE_MODEL}"
            self.changes.append(f"{now} in place of {ROLLS_MODEL}: this model may move.")
        if found in (ROLLS_MODEL, MOVABLE_MODEL):
            self.n_movable += 1
        else:
            self.left.append(f"{key}{_why_reward_stays(written, found)}.")


def _why_reward_stays(written: Any, found: Any) -> str:
    if isinstance(found, _Unseen):
        return (
            f".worker_cls is {written}, which this file does not tell: it moves when it is a "
            "RewardModelWorker"
        )
    if not isinstance(found, str):
        return " has no worker_cls in this file"
    if not found.startswith("roll."):
        return (
            f" has {found}, a class of your own; it is measured, and moves when it is a "
            "RewardModelWorker"
        )
    module, _, cls = found.rpartition(".")
    if "llm_judge" in module:
        return f" has {cls}, an LLM that judges; it is measured where it is"
    if "rule" in module:
        return f" has {cls}, a rule; it is measured where it is"
    return f" has {cls}, which is no scalar reward model; it is measured where it is"


# ---------------------------------------------------------------- the reference


def _why_reference_stays(config: Mapping[Any, Any], kind: Kind | None) -> str | None:
    """Say in a sentence why the reference cannot move; None when it can."""
    others = _other_files(config)
    if kind is None:
        unknown = "No key tells which of ROLL's pipelines this config is for"
        where = f" (the rewards, say, may stand in another file: {others})" if others else ""
        return f"{unknown}{where}: nothing moves."
    if kind == "distill":
        return "The teacher stays on its GPUs: the student is given its logits directly."
    if not (config.get("reference") or config.get("teacher")):
        if others and kind == "rlvr":
            where = f"in another file of the defaults list ({others})"
            return f"The reference stands {where}, or nowhere: it stays on its GPUs."
        return "There is no reference that could move."
    if kind != "rlvr":
        return f"The reference stays on its GPUs: in {_KINDS[kind]} it does not move, only in RLVR."
    return _why_rlvr_reference_stays(config, others)


def _why_rlvr_reference_stays(config: Mapping[Any, Any], others: str) -> str | None:
    role = _trained_role(config)
    trained = config.get(role)
    if not isinstance(trained, Mapping):
        where = f"in another file of the defaults list ({others})" if others else "elsewhere"
        unknown = f"{role} stands {where}, and with LoRA the reference cannot move"
        return f"The reference stays on its GPUs: {unknown}."
    key = f"{role}.model_args.lora_target"
    model = _resolved(config, trained.get("model_args"))
    lora = _resolved(config, model.get("lora_target")) if isinstance(model, Mapping) else model
    if isinstance(lora, _Unseen):
        unknown = f"this file does not tell {key}, and with LoRA the reference cannot move"
        return f"The reference stays on its GPUs: {unknown}."
    if lora is not None:
        return f"The reference is the policy without its adapter ({key}), and stays on its GPUs."
    enabled = _enables_reference(config)
    if isinstance(enabled, _Unseen):
        unknown = "this file does not tell whether it is on (use_kl_loss, init_kl_coef)"
        return f"The reference stays on its GPUs: {unknown}."
    if not enabled:
        return "There is no reference that could move: enable_reference is not on, and no KL is."
    if reads_images(config):
        return "The reference stays on its GPUs: it reads more than text, and only text moves."
    return None


def _enables_reference(config: Mapping[Any, Any]) -> bool | _Unseen:
    """Tell whether ROLL starts a reference, which a KL term does as well."""
    found = [
        _resolved(config, config.get(key, False))
        for key in ("enable_reference", "use_kl_loss", "use_opd", "student_train")
    ]
    coefficient = _resolved(config, config.get("init_kl_coef", _INIT_KL_COEF))
    if not isinstance(coefficient, _Unseen):
        try:
            coefficient = float(coefficient) > 0  # 1e-3 is a text for PyYAML
        except (TypeError, ValueError):
            coefficient = False
    found.append(coefficient)
    seen = [value for value in found if not isinstance(value, _Unseen)]
    return any(seen) or (_UNSEEN if len(seen) < len(found) else False)


# ---------------------------------------------------------------- the block, and what the file says

_MOVES = "fpga: ROLL waits meanwhile; gpu: it stays where it is"


def _block(name: str, reference: Action, reward: Action | None) -> str:
    policy = {"type": "static", "reference": str(reference)}
    if reward is not None:
        policy["reward"] = str(reward)
    notes = {
        "type": "lookahead or learned decide by modelled energy and time",
        "reference": _MOVES if reference is not Action.GPU else "it stays where it is",
        "reward": _MOVES,
    }
    lines = [f"      {f'{key}: {value}':<29} # {notes[key]}" for key, value in policy.items()]
    # ROLL has no class of its own that rewards a response by a model.
    exact = (
        "# type: plugin                # with name: roll, ROLL's own classes on the workers, exact"
        if reward is None
        else "# type: torch                 # the checkpoints' own weights on the workers, exact"
    )
    return f"""\
# ecorl measures the stages of this training, and moves what the policy says.
# `ecorl report runs/{name}` shows the run.
ecorl:
  name: "{name}"
  run_dir: "runs/{name}"
  runtime:
    type: ray
    address: auto                   # the cluster that this machine is part of
  placement:
    deadline_s: 60.0                # then the rows that have not arrived are ROLL's own
    policy:
{chr(10).join(lines)}
  engine:
    offload:
      type: fpga                    # C-simulation where no card and no bitstream are named
      {exact}
"""


def _run_name(text: str, config: Mapping[Any, Any], name: str) -> str:
    """The name of the experiment where it is a plain one, else that of the file."""
    written = scalar_at(text, ["exp_name"])
    if config.get("exp_name") is not None and written and _NAME.fullmatch(written):
        found = written
    else:
        found = re.sub(r"[^A-Za-z0-9._-]+", "-", PurePath(name).stem).strip("-")
    # runs/.. would be another folder.
    return found if found.strip(".") else "roll"


def _other_files(config: Mapping[Any, Any]) -> str:
    """The files that hydra adds to this one, for words."""
    defaults = config.get("defaults")
    names = []
    for item in defaults if isinstance(defaults, list) else ():
        if isinstance(item, Mapping):
            names += [f"{group}/{option}" for group, option in item.items()]
        elif item != "_self_":
            names.append(str(item).partition("@")[0])
    return ", ".join(names)


def _resolved(config: Mapping[Any, Any], value: Any, depth: int = 8) -> Any:
    """Follow references to other keys of the file.

    Args:
        config: the whole file, as plain data.
        value: what stands there.
        depth: how many references to follow.

    Returns:
        The value; `_UNSEEN` where the file alone does not tell it.
    """
    if not isinstance(value, str) or "${" not in value:
        return value
    refers = _REFERS.fullmatch(value)
    found: Any = config if refers and depth else _UNSEEN
    for part in refers[1].split(".") if refers else ():
        found = found.get(part, _UNSEEN) if isinstance(found, Mapping) else _UNSEEN
        found = _resolved(config, found, depth - 1)
    return found


def _lines(text: str) -> list[str]:
    return re.findall(r"[^\n]*\n|[^\n]+", text)
