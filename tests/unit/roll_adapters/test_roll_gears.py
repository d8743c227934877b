"""ROLL's training steps in a gear, over layers whose weights FSDP2 gathers around each forward."""

from __future__ import annotations

import copy
import math
from types import SimpleNamespace

import pytest

pytest.importorskip("ray")
pytest.importorskip("torch")
pytest.importorskip("torchao")
pytest.importorskip("transformers")
pytest.importorskip("hydra")

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from transformers import LlamaConfig, LlamaForCausalLM

from ecorl.control import Gear
from roll_adapters.ray_jobs.gears.orders import GearOrder, StepEnd
from roll_adapters.ray_jobs.gears.worker import ATTRIBUTE, evaluating, shift, take_report
from roll_adapters.roll.gears.worker import prepare

N_STEPS = 3
SHAPE = {
    "vocab_size": 32, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": 2, "attention_dropout": 0.1,
}  # fmt: skip


@pytest.fixture(scope="module")
def mesh():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


class Rows:
    """The part of ROLL's ``DataProto`` that is looked at."""

    def __init__(self, ids):
        mask = torch.ones_like(ids)
        self.batch = {"input_ids": ids, "response_mask": mask}
        self.meta_info = {}


class Strategy:
    """Trains as ROLL's FSDP2 strategy does: a gradient that is not finite is not taken."""

    def __init__(self, worker, mesh, dtype):
        torch.manual_seed(3)
        model = LlamaForCausalLM(LlamaConfig(**SHAPE, attn_implementation="eager"))
        policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
        for layer in (*model.model.layers, model):
            fully_shard(layer, mesh=mesh, mp_policy=policy, reshard_after_forward=True)
        self.worker, self.model = worker, model
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        self.scheduler = torch.optim.lr_scheduler.LinearLR(self.optimizer, 1.0, 0.1, 10)
        self.scaler = None

    def train_step(self, batch, loss_func):
        self.model.train()
        ids = batch.batch["input_ids"]
        loss = loss_func(batch, self.model(input_ids=ids, labels=ids).loss)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0).full_tensor()
        if norm.isfinite():
            self.optimizer.step()
        self.scheduler.step()
        self.optimizer.zero_grad()
        return {"actor_train/grad_norm": norm.item(), "actor/loss": loss.item()}

    @torch.no_grad()
    def forward_step(self, batch, forward_func):
        assert batch.meta_info["micro_batch_size"] == 2
        return forward_func(batch, self.model(input_ids=batch.batch["input_ids"]).logits)[1]


class Worker:
    """ROLL's worker, as far as its training goes."""

    def __init__(self, mesh, dtype="float32"):
        config = {"param_dtype": dtype}
        self.worker_config = SimpleNamespace(
            name="actor_train",
            infer_batch_size=2,
            strategy_args=SimpleNamespace(strategy_config=config),
        )
        self.strategy = Strategy(self, mesh, getattr(torch, dtype))
        self._logprobs_cache = {}
        self.seen = []

    def loss(self, batch, found):
        # As where old log-probs are those of a row's first forward pass.
        first = self._logprobs_cache.setdefault("a row", found.detach())
        self.seen.append(float(first))
        return found

    def forward_func_log_probs(self, batch, logits):
        shares = torch.log_softmax(logits[:, :-1].float(), -1)
        own = shares.gather(-1, batch.batch["input_ids"][:, 1:, None])[..., 0]
        return torch.tensor(0.0), {"log_probs": own}

    @property
    def weights(self):
        return [p.full_tensor().detach().clone() for p in self.strategy.model.parameters()]


def poison(module, _given, output):
    return output * math.nan if type(module).__name__ == "Float8Linear" else output


def trained(mesh, gears, *, broken=None, dtype="float32", due=()):
    """Train a worker in a gear a step; FP8 layers give no numbers in one of them."""
    worker = Worker(mesh, dtype)
    if gears is not None:
        order = GearOrder((Gear.FP32, Gear.BF16, Gear.FP8), simulate_fp8=True)
        made = prepare(worker, order)
        assert made.why_not is None, made
        assert (made.simulated, made.optimizer) == ((Gear.FP8,), "AdamW")
    draw, reports = torch.Generator().manual_seed(5), []
    torch.manual_seed(9)
    for step in range(N_STEPS):
        if gears is not None:
            shift(worker, gears[step], Gear.BF16, due)
        rows = Rows(torch.randint(32, (2, 8), generator=draw))
        if due:
            logits = worker.strategy.model.eval()(input_ids=rows.batch["input_ids"]).logits
            rows.batch["old_log_probs"] = worker.forward_func_log_probs(rows, logits.detach())[1][
                "log_probs"
            ]
        hook = None
        if step == broken:
            hook = torch.nn.modules.module.register_module_forward_hook(poison)
        metrics = worker.strategy.train_step(batch=rows, loss_func=worker.loss)
        if hook is not None:
            hook.remove()
        worker._logprobs_cache.clear()
        assert math.isfinite(metrics["actor/loss"])
        if gears is not None:
            reports.append(take_report(worker))
    return worker, reports


def same(a, b):
    return all(map(torch.equal, a.weights, b.weights))


def test_the_worker_s_own_gear_changes_no_bit_and_measuring_neither(mesh):
    plain, _ = trained(mesh, None, due=(Gear.FP8,))
    own, reports = trained(mesh, [Gear.FP32] * N_STEPS, due=(Gear.FP8,))
    assert same(plain, own)
    found = [report.mismatch[Gear.FP8] for report in reports]
    assert all(1.0 < value < 1.1 for value in found)
    assert all(report.measured_s > 0 for report in reports)


def test_measuring_evaluates_and_leaves_each_module_in_the_mode_it_had(mesh):
    """With dropout a gear would be off from the rollout by chance; the fake strategy keeps it."""
    worker = Worker(mesh)
    prepare(worker, GearOrder((Gear.FP32, Gear.BF16, Gear.FP8), simulate_fp8=True))
    model = worker.strategy.model
    model.train()
    model.model.layers[0].eval()
    modes = [module.training for module in model.modules()]
    rows = Rows(torch.randint(32, (2, 8), generator=torch.Generator().manual_seed(5)))
    with evaluating(model), torch.no_grad():
        logits = model(input_ids=rows.batch["input_ids"]).logits
    rows.batch["old_log_probs"] = worker.forward_func_log_probs(rows, logits)[1]["log_probs"]
    shift(worker, Gear.FP32, Gear.BF16, (Gear.FP32,))
    getattr(worker, ATTRIBUTE)._measure(rows)
    assert take_report(worker).mismatch == {Gear.FP32: 1.0}
    assert [module.training for module in model.modules()] == modes


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_fp8_layers_compute_with_what_fsdp2_gathers(mesh, dtype):
    bf16, _ = trained(mesh, [Gear.BF16] * N_STEPS, dtype=dtype)
    fp8, reports = trained(mesh, [Gear.FP8] * N_STEPS, dtype=dtype)
    assert not same(bf16, fp8)
    away = max(float((a - b).abs().max()) for a, b in zip(bf16.weights, fp8.weights, strict=True))
    assert away < 0.01
    assert [report.ends for report in reports] == [[StepEnd.WELL]] * N_STEPS
    # The model has its own layers again, and in them the sharded weights.
    layer = fp8.strategy.model.model.layers[0].mlp.up_proj
    assert type(layer) is torch.nn.Linear
    assert (
        layer.weight
        is dict(fp8.strategy.model.named_parameters())["model.layers.0.mlp.up_proj.weight"]
    )


def test_a_step_that_roll_skips_is_computed_anew_in_bf16(mesh):
    right, _ = trained(mesh, [Gear.BF16] * N_STEPS)
    low = [Gear.BF16, Gear.FP8, Gear.BF16]
    redone, reports = trained(mesh, low, broken=1)
    assert same(right, redone)
    assert [report.ends for report in reports] == [[StepEnd.WELL], [StepEnd.REDONE], [StepEnd.WELL]]
    assert redone.strategy.scheduler.state_dict() == right.strategy.scheduler.state_dict()
    # What the failed forward pass had left as old log-probs is forgotten with it.
    assert math.isnan(redone.seen[1])
    assert [value for value in redone.seen if not math.isnan(value)] == right.seen


def test_a_step_that_the_scaler_of_roll_drops_is_told_as_skipped(mesh):
    worker = Worker(mesh)
    prepare(worker, GearOrder((Gear.FP32, Gear.BF16, Gear.FP8), simulate_fp8=True))
    worker.strategy.scaler = object()
    rows = Rows(torch.ones(2, 8).long())
    shift(worker, Gear.FP8, Gear.BF16, ())
    worker.strategy.train_step(batch=rows, loss_func=worker.loss)
    hook = torch.nn.modules.module.register_module_forward_hook(poison)
    worker.strategy.train_step(batch=rows, loss_func=worker.loss)
    hook.remove()
    assert len(worker.seen) == 2
    assert take_report(worker).ends == [StepEnd.WELL, StepEnd.SKIPPED]


def test_a_worker_whose_model_is_no_module_of_torch_s_stays_as_it_is():
    worker = SimpleNamespace(strategy=SimpleNamespace(model=object()))
    order = GearOrder((Gear.BF16, Gear.FP8), simulate_fp8=True)
    before = copy.copy(vars(worker.strategy))
    assert "SimpleNamespace" in prepare(worker, order).why_not
    assert vars(worker.strategy) == before
    assert not hasattr(worker, ATTRIBUTE)
