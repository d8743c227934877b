"""Does the learned policy keep up with the best fixed placement in a real training, live?

TRL GRPO with the second device being the torch engine on the machine's other core, which another
process takes half of in some steps of each block, and a profile of it that is wrong on purpose.
Policies train side by side, in blocks of steps that alternate; each has its own record, engines and
models. The best fixed placement is chosen in blocks of its own.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    PreTrainedTokenizerFast,
    TrainerCallback,
)
from trl.trainer.utils import add_fused_lm_head

from benchmarks.harness import Figure, run_benchmark
from benchmarks.studies.placement import live
from benchmarks.studies.placement.busy_core import BusyCore
from benchmarks.studies.placement.turns import Turns
from ecorl.bench.rounds import TimeBox
from ecorl.bench.stats import median
from ecorl.config import Config, validate_config
from roll_adapters.demo import arithmetic
from roll_adapters.trl.inputs.quiet import quiet
from roll_adapters.trl.task import resolve_task
from roll_adapters.trl.trainer import build_trainer
from roll_adapters.trl_hooks import attach

FLAGS = {"--full": "policies are trained twice, and for longer"}
"""Options without a value, and what the help says of them."""

N_PROFILING = 8
"""Batches in which a policy that learns sees both sides; they are among the steps before all
blocks."""

N_TUNING = 2
"""Rounds in which the best fixed placement is chosen."""

LIFE_S = 900.0
"""Longest life of the process that takes the engine's core, s."""

N_ROWS = 12

SIZES = {
    "policy": {"hidden_size": 128, "num_hidden_layers": 2},
    "reference": {"hidden_size": 256, "num_hidden_layers": 3},
    "reward": {"hidden_size": 256, "num_hidden_layers": 4},
}
"""Scoring is to be most of a step, so the frozen models are larger than the policy. Beside the
reference on the host the reward is worth sending away, unless the other core is taken."""


class _Begins(TrainerCallback):  # type: ignore[misc]  # transformers is untyped here
    """Tells where a step begins, and ends the training when its turns are over."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        """A step begins, the one before it is over."""
        if not self._turns.step_begins():
            control.should_training_stop = True
        return control


def measure(options: argparse.Namespace) -> tuple[dict[str, object], list[Figure]]:
    """Train with each policy in turn."""
    why = live.cores_gap()
    if why is not None:
        return {}, live.missing_figures(why)
    n_rounds, n_steps = 100, 12 if options.full else 8
    if options.quick:
        n_rounds, n_steps = 2, 4
    policies = live.arms_of(again=options.full)
    with tempfile.TemporaryDirectory(prefix="ecorl-bench-live-") as text, _own_affinity():
        folder, (trainer_core, engine_core) = Path(text), live.own_cores()
        with (
            contextlib.closing(BusyCore(engine_core, LIFE_S)) as busy,
            quiet(),
            _arms(folder, policies) as arms,
        ):
            n_engines = live.take_cores(trainer_core, engine_core)
            bench = live.LiveBench(arms, n_steps, busy)
            bench.warm_up(N_PROFILING + 4)
            blocks = bench.measure(
                n_rounds, N_TUNING, TimeBox(options.box_s or (240.0 if options.full else 30.0))
            )
        shares = {name: live.offloaded_shares(folder / name) for name in policies}
    config: dict[str, object] = {
        "policies": {name: dict(table) for name, table in policies.items()},
        "best_static": blocks.best,
        "claim": live.CLAIM,
        "steps_per_block": n_steps,
        "rounds": len(blocks.step_s[live.LEARNED]),
        "order": "ABBA",
        "engine_processes": n_engines,
        "tuning_step_s": dict(blocks.tuning_s),
        "step_s": dict(blocks.step_s),
        "quiet_step_s": {name: median(found) for name, found in blocks.quiet_s.items()},
        "contended_step_s": {name: median(found) for name, found in blocks.contended_s.items()},
        "offloaded_share": shares,
    }
    return config, live.live_figures(blocks)


@contextlib.contextmanager
def _own_affinity() -> Iterator[None]:
    """Give this thread its cores back at the end."""
    cores = os.sched_getaffinity(0)
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


@contextlib.contextmanager
def _arms(folder: Path, policies: Mapping[str, Mapping[str, object]]) -> Iterator[dict[str, Turns]]:
    """A training for each policy, attached and ready for its first turn; all end with the block."""
    _write_task(folder)
    live.write_wrong_profile(folder / "second_core.toml")
    with contextlib.ExitStack() as stack:
        # All are made before the first one trains: what they do at once is not safe in threads.
        trainers = {
            name: _trainer(_config(folder, name, policy), folder / name, stack)
            for name, policy in policies.items()
        }
        arms = {name: Turns(partial(_train, trainer)) for name, trainer in trainers.items()}
        for turns in arms.values():
            stack.callback(turns.end)
        yield arms


def _trainer(config: Config, run_dir: Path, stack: contextlib.ExitStack) -> Any:
    files = resolve_task(config, Console(file=sys.stderr))
    trainer = build_trainer(config, files, run_dir / "checkpoints")
    # TRL's own would be the untrained policy, which is too small here.
    reference = LlamaForCausalLM.from_pretrained(files.policy.with_name("reference"))
    add_fused_lm_head(reference, temperature=config.trainer.temperature)  # as TRL does its own
    trainer.ref_model = reference.eval()
    stack.callback(attach(trainer, config, run_dir=run_dir).detach)
    return trainer


def _train(trainer: Any, turns: Turns) -> None:
    torch.set_num_threads(1)
    trainer.add_callback(_Begins(turns))
    trainer.train()


def _config(folder: Path, name: str, policy: Mapping[str, object]) -> Config:
    config = tomllib.loads(Path(live.__file__).with_suffix(".toml").read_text("utf-8"))
    config |= {"name": name, "run_dir": str(folder / name)}
    for key in ("policy", "reward", "prompts.jsonl"):
        config["task"][key.split(".")[0]] = str(folder / key)
    config["trainer"]["per_device_batch_size"] = N_ROWS
    config["placement"] |= {
        "policy": dict(policy),
        "n_profiling": N_PROFILING,
        "profile_both_paths": policy["type"] != "static",
    }
    config["devices"] = {"accelerator": str(folder / "second_core.toml")}
    return validate_config(config)


def _write_task(folder: Path) -> None:
    """Write models with random weights and prompts of 40 characters."""
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=arithmetic.build_tokenizer(),
        pad_token=arithmetic.PAD,
        bos_token=arithmetic.BOS,
        eos_token=arithmetic.EOS,
        padding_side="left",
    )
    torch.manual_seed(0)
    for name, size in SIZES.items():
        config = LlamaConfig(
            **size,
            num_labels=1,
            vocab_size=len(tokenizer),
            intermediate_size=4 * size["hidden_size"],
            num_attention_heads=4,
            num_key_value_heads=4,
            max_position_embeddings=128,
            pad_token_id=tokenizer.pad_token_id,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
        )
        kind = LlamaForSequenceClassification if name == "reward" else LlamaForCausalLM
        kind(config).save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    prompts = [{"prompt": f"{number:040d}="} for number in range(64)]
    lines = "".join(f"{json.dumps(prompt)}\n" for prompt in prompts)
    (folder / "prompts.jsonl").write_text(lines, "utf-8")


if __name__ == "__main__":
    sys.exit(run_benchmark("placement_live", measure, flags=FLAGS))
