"""What ROLL's adapter meets in the driver of a pipeline: batches, clusters, calls, configs.

Log-probs are functions of the tokens and of the reference, so that one can tell whose row it is.
"""

from __future__ import annotations

import importlib
import json
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
import yaml

from ecorl.records import Action, Stage
from ecorl.runtime.handles import Landed
from tests.fakes import openrlhf

DOUBLE = Path(__file__).parent / "roll"
OURS = ("rollouts", "resources", "workers")
"""Modules of the adapter that build on ROLL's classes."""


class Batch:
    """The part of ROLL's ``DataProto`` that the adapter looks at; selections share the facts."""

    def __init__(self, tensors, columns=None, meta_info=None):
        self.batch = dict(tensors)
        self.non_tensor_batch = dict(columns or {})
        self.meta_info = {} if meta_info is None else meta_info

    def __len__(self):
        return len(next(iter(self.batch.values())))

    def select_idxs(self, idxs):
        rows = torch.as_tensor(idxs)
        if rows.dtype == torch.bool:
            rows = torch.nonzero(rows).flatten()
        tensors = {key: tensor[rows] for key, tensor in self.batch.items()}
        columns = {key: column[rows.numpy()] for key, column in self.non_tensor_batch.items()}
        return Batch(tensors, columns, self.meta_info)

    def reorder(self, rows):
        """Give the rows another order, in place, as ROLL does to even out loads."""
        self.batch = {key: tensor[rows] for key, tensor in self.batch.items()}
        self.non_tensor_batch = {k: c[rows.numpy()] for k, c in self.non_tensor_batch.items()}

    def parts(self, *edges):
        """Rows cut into consecutive parts."""
        ends = (0, *edges, len(self))
        rows = torch.arange(len(self))
        return [self.select_idxs(rows[a:b]) for a, b in pairwise(ends)]


def step_batch(rows, order=None, n_padding=0, domains=None, **meta_info):
    """Pad some rows on the right: each a list of tokens, and which of them are the response's."""
    width = max(len(tokens) for tokens, _ in rows) + n_padding
    ids = torch.zeros((len(rows), width), dtype=torch.int64)
    attention, response = torch.zeros_like(ids), torch.zeros_like(ids)
    for i, (tokens, mask) in enumerate(rows):
        ids[i, : len(tokens)] = torch.tensor(tokens)
        attention[i, : len(tokens)] = 1
        response[i, : len(tokens)] = torch.tensor(mask, dtype=torch.int64)
    tensors = {"input_ids": ids, "attention_mask": attention, "response_mask": response}
    tensors["prompt_id"] = torch.tensor(list(range(len(rows)) if order is None else order))
    columns = {} if domains is None else {"domain": np.array(domains, dtype=object)}
    return Batch(tensors, columns, {"global_step": 0, **meta_info})


ROWS = [
    ([3, 4, 5, 6], [0, 0, 1, 1]),
    ([7, 8, 9], [0, 1, 0]),
    ([10, 11, 12, 13, 14, 15], [0, 1, 0, 0, 1, 1]),
    ([16, 17], [0, 0]),
    ([18, 19, 20, 21, 22], [0, 0, 0, 1, 1]),
    ([23, 24, 25], [0, 1, 1]),
]
"""Of several turns, without a response, and plain ones."""


def weight_of(name):
    """By which the log-probs of one of several references differ from the others'."""
    return 2.0 if name == "small" else 1.0


def own_logprobs(batch, name=""):
    """ROLL's own answer: ``[B, S - 1] float32``, 0 outside the response."""
    ids, mask = batch.batch["input_ids"], batch.batch["response_mask"]
    return ids[:, 1:].float() * (weight_of(name) / -100) * mask[:, 1:]


def cluster(name, method=None):
    """A reference's cluster, of which only a name, a batch size and one method count."""
    return SimpleNamespace(
        cluster_name=name,
        worker_config=SimpleNamespace(infer_batch_size=4),
        compute_log_probs=method or (lambda batch, blocking: None),
    )


@dataclass
class Computed:
    """One call of ROLL's function.

    Attributes:
        rows: the ``prompt_id`` of its rows.
        names: of the references.
        facts: the batch's ``meta_info``.
        given: all arguments, as they came.
    """

    rows: list[int]
    names: tuple[str, ...]
    facts: dict
    given: dict


class Compute:
    """ROLL's function that computes references, here; it notes its calls.

    Args:
        error: what it raises.
        wait: called before it computes.
    """

    def __init__(self, error=None, wait=lambda: None):
        self.error, self.wait, self.calls = error, wait, []

    def __call__(self, **given):
        batch, references = given["batch"], given["references"]
        rows = batch.batch["prompt_id"].tolist()
        self.calls.append(Computed(rows, tuple(references), dict(batch.meta_info), given))
        self.wait()
        if self.error is not None:
            raise self.error
        teachers = given["domain_to_teacher_names"]
        for name, where in references.items():
            own = [True] * len(batch)
            if teachers is not None:
                own = [name in teachers.get(domain, ()) for domain in given["domain_values"]]
            mask = torch.tensor(own)
            if any(own):
                where.compute_log_probs(batch.select_idxs(mask), blocking=False)
            batch.batch[f"ref_log_probs_{name}"] = own_logprobs(batch, name) * mask[:, None]
            batch.batch[f"ref_log_probs_{name}_mask"] = mask
        if given["metrics_fn"] is not None:
            given["metrics_fn"]({f"{name}/rows": float(len(batch)) for name in references})
        # ROLL's driver looks at each call's settings, and takes its metrics out of them.
        batch.meta_info["computed"] = True
        merge(batch, references, teachers is not None)
        return batch


def merge(batch, references, is_routing):
    """Make one reference of several: the first one, or the first that each row has."""
    names = list(references)
    tensors = batch.batch
    if not is_routing:
        tensors["ref_log_probs"] = tensors[f"ref_log_probs_{names[0]}"]
        return
    found = torch.zeros_like(tensors[f"ref_log_probs_{names[0]}"])
    for name in reversed(names):
        mask = tensors[f"ref_log_probs_{name}_mask"]
        found[mask] = tensors[f"ref_log_probs_{name}"][mask]
    tensors["ref_log_probs"] = found


class FakeRuntime(openrlhf.FakeRuntime):
    """A runtime of dicts whose engine answers as ROLL's own function does.

    Args:
        action: where references run; or a dict of it by role.
        bad: rows that do not arrive.
        broken: names of methods that raise.
        error: what they raise.
        refuses: whether rows cannot be sent.
    """

    def __init__(self, action=Action.GPU, bad=(), broken=(), error=None, refuses=False):
        super().__init__(Action.GPU, bad, broken)
        self._actions, self._error, self._refuses = action, error, refuses

    def _note(self, name, role=""):
        try:
            super()._note(name, role)
        except RuntimeError:
            raise self._error or RuntimeError(f"{name} is broken") from None

    def on_stage_start(self, iteration, work, *, may_offload=True, starts_now=True):
        of_role = self._actions
        if isinstance(of_role, dict):
            of_role = of_role.get(work.role, Action.GPU)
        self._action = of_role
        return super().on_stage_start(
            iteration, work, may_offload=may_offload, starts_now=starts_now
        )

    def submit(self, run, batch, *, lands_here):
        return False if self._refuses else super().submit(run, batch, lands_here=lands_here)

    def land(self, run):
        found = super().land(run)
        weight = np.float32(weight_of(run.work.role_name))
        return Landed({i: v * weight for i, v in found.values.items()}, found.bad_rows)

    def on_stage_end(self, run, work=None):
        self._note("on_stage_end", run.work.role)

    def expect_totals(self):
        self._note("expect_totals")

    def of(self, stage):
        """The runs of a stage, in order."""
        return [run for run in self.runs if run.work.stage is Stage(stage)]


@contextmanager
def roll_on_path(monkeypatch):
    """Have the double of ROLL on the path; other tests see neither it nor what was built on it.

    Yields:
        A function that imports one of the adapter's modules.
    """
    ours = [f"roll_adapters.roll.{name}" for name in OURS]

    def is_of_roll(name):
        return name == "roll" or name.startswith("roll.") or name in ours

    kept = {name: module for name, module in sys.modules.items() if is_of_roll(name)}
    for name in kept:
        del sys.modules[name]
    monkeypatch.syspath_prepend(DOUBLE)
    try:
        yield importlib.import_module
    finally:
        for name in [name for name in sys.modules if is_of_roll(name)]:
            del sys.modules[name]
        sys.modules.update(kept)


# ---------------------------------------------------------------- jobs

MODEL = "roll_adapters.roll.workers.RewardModelWorker"
RULE = "roll.pipeline.rlvr.rewards.math_rule_reward_worker.MathRuleRewardWorker"


def small_decoder(folder, **more):
    """Write the config of a small decoder; gives the folder's path."""
    folder.mkdir(exist_ok=True)
    told = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 32,
        "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "vocab_size": 64, "hidden_act": "silu",
        "max_position_embeddings": 64, **more,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(told))
    return str(folder)


class Job:
    """PPO with critic, a reward model and a rule: the config, what ROLL and ecorl make of it.

    Args:
        folder: for the file and the models.
        policy: of placement.
        block: more of ecorl's settings.
        changed: settings of ROLL's by their keys, with ``__`` for the dots.
        moves: whether stages can leave their GPUs in its pipeline.
    """

    def __init__(self, folder, policy, block, changed, *, moves):
        # Here, so that who needs batches alone needs none of ROLL's packages.
        from roll_adapters.roll import description
        from roll_adapters.roll.config.settings import read

        def role(model, gpus, **more):
            arguments = {"model_name_or_path": small_decoder(folder / model), "dtype": "bf16"}
            return {"model_args": arguments, "device_mapping": gpus, **more}

        data = {
            "exp_name": "tiny", "adv_estimator": "gae", "max_steps": 5,
            "actor_train": role("actor", "[0, 1]"),
            "actor_infer": role("actor", "[0, 1]"),
            "reference": role("start", "[2]"),
            "critic": role("critic", "[3]"),
            "rewards": {
                "general": role("reward", "[4]", worker_cls=MODEL),
                "math": {"worker_cls": RULE, "world_size": 2},
            },
            "ecorl": {"placement": {"policy": policy}, **block},
        }  # fmt: skip
        for key, value in changed.items():
            *parents, last = key.split("__")
            table = data
            for part in parents:
                table = table[part]
            table[last] = value
        (folder / "job.yaml").write_text(yaml.safe_dump(data, sort_keys=False))
        self.moves, self.read = moves, read(folder, "job", [], [])
        self.settings = dataclass_of(self.read.data)
        self.settings.rewards = {
            domain: dataclass_of({**settings, "name": f"reward-{domain}"})
            for domain, settings in self.read.data["rewards"].items()
        }
        self.roles = description.model_roles(self.read, self.settings)
        self.movable = description.movable(self.read, self.settings, self.roles, moves=moves)

    def check(self):
        from roll_adapters.roll import checks

        checks.check(self.read, self.settings, self.movable, moves=self.moves)
        return self

    def happens(self):
        """What is said of each role, by role."""
        from roll_adapters.roll import checks

        told = checks.what_happens(
            self.read, self.settings, self.roles, self.movable, moves=self.moves
        )
        assert [role for role, _ in told] == [own.role for own in self.roles]
        return dict(told)


def dataclass_of(table):
    """What ROLL makes of a table: attributes, and the GPUs as it evaluates them."""
    inner = {k: dataclass_of(v) if isinstance(v, dict) else v for k, v in table.items()}
    found = SimpleNamespace(**inner)
    if isinstance(getattr(found, "device_mapping", None), str):
        found.device_mapping = eval(found.device_mapping)
    return found
