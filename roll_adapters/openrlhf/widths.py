"""Widths of OpenRLHF's actor: a job is saved, ended, and started again with other GPUs for it.

Possible without ZeRO: there DeepSpeed's checkpoint holds the whole of weights and optimizer. With
ZeRO it refuses another number of processes: "The checkpoint being loaded used a DP world size of 1
but the current world size is 2. Automatic adjustment of ZeRO's optimizer state partitioning with a
new world size is not currently supported."
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ecorl.config import Config
from ecorl.errors import ConfigError
from roll_adapters.openrlhf.flags import value_of

_N = "num_gpus_per_node"
GPUS = f"actor.{_N}"
_DEFAULT = 8
"""OpenRLHF's own number of GPUs a node."""
LOAD = "ckpt.load_enable"


def check_widths(config: Config, args: Any) -> None:
    """Check ``trainer.widths`` against OpenRLHF's flags; one width is the job's own.

    Args:
        config: the run's configuration.
        args: OpenRLHF's flags, nested.

    Raises:
        ConfigError: for the first setting that cannot work.
    """
    widths = config.trainer.widths
    if len(widths) < 2:
        return
    why = _why_not(widths, args)
    if why is not None:
        raise ConfigError("trainer.widths", list(widths), why)


def _why_not(widths: Sequence[int], args: Any) -> str | None:
    zero = int(value_of(args, "ds.zero_stage", 2))
    if zero:
        return (
            f"one with --ds.zero_stage {zero}: DeepSpeed loads a checkpoint of ZeRO's with as many "
            "processes as saved it (--ds.zero_stage 0 has no such limit)"
        )
    for flag in (
        "train.async_enable", "train.colocate_all", "train.colocate_actor_ref", "ckpt.disable_ds",
        "train.dynamic_batch_enable",
    ):  # fmt: skip
        if value_of(args, flag, False):
            return f"one with --{flag}"
    for flag in ("ds.ring_attn_size", "ds.tensor_parallel_size", "actor.num_nodes"):
        if int(value_of(args, flag, 1)) > 1:
            return f"one with --{flag} above 1"
    every = float(value_of(args, "ckpt.save_steps", -1))
    if not 0 < every < float("inf"):
        return "one without --ckpt.save_steps: the width changes behind a checkpoint"
    now = int(value_of(args, GPUS, _DEFAULT))
    if now not in widths:
        return f"a list with --{GPUS}, which is {now}"
    return _why_not_even(widths, args)


def _why_not_even(widths: Sequence[int], args: Any) -> str | None:
    """Why a batch cannot be cut into as many equal parts as there are processes, or None."""
    train = int(value_of(args, "train.batch_size")) // int(
        value_of(args, "train.micro_batch_size", 1)
    )
    rows = int(value_of(args, "rollout.batch_size")) * int(
        value_of(args, "rollout.n_samples_per_prompt", 1)
    )
    rollout = rows // int(value_of(args, "rollout.micro_batch_size", 1))
    odd = [width for width in widths if train % width or rollout % width]
    if not odd:
        return None
    return (
        f"divisors of {train} and {rollout}: the micro-batches of --train.batch_size and of a "
        "rollout, each process having as many as the others"
    )


def check_gpus(config: Config, args: Any, n_gpus: float) -> None:
    """Check that the cluster has the GPUs of the widest job, for which OpenRLHF would wait.

    Args:
        config: the run's configuration.
        args: OpenRLHF's flags, nested.
        n_gpus: of the cluster.

    Raises:
        ConfigError: when it has not.
    """
    roles = ["critic"] if value_of(args, "critic.model_name_or_path") else []
    if not value_of(args, "reward.remote_url") and not (
        roles and value_of(args, "train.colocate_critic_reward", False)
    ):
        roles.append("reward")
    if float(value_of(args, "algo.kl.init_coef", 0.0)) > 0:
        roles.append("ref")
    others = sum(
        int(value_of(args, f"{role}.num_nodes", 1)) * int(value_of(args, f"{role}.{_N}", _DEFAULT))
        for role in roles
    )
    others += int(value_of(args, "vllm.num_engines", 0) or 0) * int(
        value_of(args, "vllm.tensor_parallel_size", 1)
    )
    widest = config.trainer.widths[-1]
    if widest + others > n_gpus:
        allowed = (
            f"at most {max(0, int(n_gpus) - others)}: of the cluster's {n_gpus:g} GPUs the other "
            f"roles take {others}"
        )
        raise ConfigError("trainer.widths", list(config.trainer.widths), allowed)


def width_of(flags: Sequence[str]) -> int:
    """The number of the actor's GPUs in a command line; OpenRLHF's own where it names none.

    Args:
        flags: of a job; OpenRLHF has yet to check them.
    """
    for flag, following in zip(flags, [*flags[1:], ""], strict=True):
        name, equals, value = flag.removeprefix("--").partition("=")
        told = value if equals else following
        if flag.startswith("--") and name == GPUS and told.isdigit():
            return int(told)
    return _DEFAULT


def flags_for(flags: Sequence[str], width: int) -> list[str]:
    """The command line of a job that goes on with another number of processes.

    Args:
        flags: of the job before, with ecorl's own.
        width: number of the actor's GPUs.
    """
    found, skips = [], False
    for flag in flags:
        name = flag.removeprefix("--").partition("=")[0]
        if skips:
            skips = False
        elif flag.startswith("--") and name == GPUS:
            skips = "=" not in flag
        elif flag != f"--{LOAD}":
            found.append(flag)
    return [*found, f"--{GPUS}", str(width), f"--{LOAD}"]
