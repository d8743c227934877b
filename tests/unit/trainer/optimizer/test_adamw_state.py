"""Checkpoints both ways, copies, hooks, schedulers, scalers, and torch's AdamW taken over."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
from torch.optim import SGD, Adam, AdamW, NAdam
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, OneCycleLR
from torch.optim.optimizer import register_optimizer_step_post_hook

from ecorl.errors import ConfigError
from ecorl.trainer import PrecisionAdaptiveAdamW
from ecorl.trainer.optimizer.adamw import adapted
from tests.unit.trainer.optimizer.conftest import PATHS, assert_equal_bits

OPTIONS = {"lr": 0.02, "weight_decay": 0.1, "amsgrad": True}


def saved(optimizer):
    """A state that went through a file which only plain data can leave."""
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    return torch.load(file, weights_only=True)


# ---------------------------------------------------------------- checkpoints


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("first", "second"),
    [
        (AdamW, PrecisionAdaptiveAdamW),
        (PrecisionAdaptiveAdamW, AdamW),
        (PrecisionAdaptiveAdamW, PrecisionAdaptiveAdamW),
    ],
)
def test_a_run_goes_on_from_the_others_checkpoint_to_the_last_bit(trial, path, first, second):
    weights, optimizer = trial.trained(lambda w: first(w, **OPTIONS, **PATHS[path]), 7)
    resumed = [torch.nn.Parameter(w.detach().clone()) for w in weights]
    other = second(resumed, lr=1.0, **PATHS[path])
    other.load_state_dict(saved(optimizer))
    trial.run(other, resumed, range(7, 20))
    whole = trial.trained(lambda w: AdamW(w, **OPTIONS, **PATHS[path]), 20)
    assert_equal_bits((resumed, other), whole)


def test_a_checkpoint_keeps_the_gamma_of_each_group_and_the_form(trial):
    def make(weights):
        return PrecisionAdaptiveAdamW(
            [{"params": weights[:1], "gamma": 1.5}, {"params": weights[1:]}],
            gamma=2.0,
            form="literal",
            **OPTIONS,
        )

    weights, optimizer = trial.trained(make, 5)
    resumed = [torch.nn.Parameter(w.detach().clone()) for w in weights]
    other = PrecisionAdaptiveAdamW([{"params": resumed[:1]}, {"params": resumed[1:]}])
    other.load_state_dict(saved(optimizer))
    assert [group["gamma"] for group in other.param_groups] == [1.5, 2.0]
    assert [group["form"] for group in other.param_groups] == ["literal", "literal"]
    trial.run(optimizer, weights, range(5, 9))
    trial.run(other, resumed, range(5, 9))
    assert_equal_bits((weights, optimizer), (resumed, other))


def test_torchs_checkpoint_brings_gamma_back_to_one(trial):
    _, plain = trial.trained(lambda w: AdamW(w, **OPTIONS), 3)
    optimizer = PrecisionAdaptiveAdamW(trial.weights(), gamma=4.0)
    optimizer.load_state_dict(saved(plain))
    assert optimizer.gamma == 1.0


def test_a_checkpoint_that_would_hurry_is_refused(trial):
    _, optimizer = trial.trained(lambda w: PrecisionAdaptiveAdamW(w), 2)
    state = saved(optimizer)
    state["param_groups"][0]["gamma"] = 0.25
    with pytest.raises(ValueError, match="gamma"):
        PrecisionAdaptiveAdamW(trial.weights()).load_state_dict(state)


def test_a_group_that_joins_gets_the_gamma_in_force(trial):
    weights = trial.weights()
    optimizer = PrecisionAdaptiveAdamW(weights[:2], gamma=2.0, **OPTIONS)
    optimizer.decelerate(3.0)
    optimizer.add_param_group({"params": weights[2:3]})
    optimizer.add_param_group({"params": weights[3:], "gamma": 1.0})
    assert [group["gamma"] for group in optimizer.param_groups] == [3.0, 3.0, 1.0]
    trial.run(optimizer, weights, range(5))
    alone, _ = trial.trained(lambda w: PrecisionAdaptiveAdamW(w, gamma=3.0, **OPTIONS), 5)
    assert all(torch.equal(a, b) for a, b in zip(weights[:3], alone[:3], strict=True))
    assert not torch.equal(weights[3], alone[3])


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_a_copy_steps_on_as_the_original_does(trial, copied):
    weights, optimizer = trial.trained(lambda w: PrecisionAdaptiveAdamW(w, gamma=2.0), 4)
    other = copied(optimizer)
    others = other.param_groups[0]["params"]
    assert other.gamma == 2.0
    trial.run(optimizer, weights, range(4, 8))
    trial.run(other, others, range(4, 8))
    assert_equal_bits((weights, optimizer), (others, other))
    assert all(a is not b for a, b in zip(weights, others, strict=True))


# ---------------------------------------------------------------- what hangs on to an optimizer


def test_hooks_run_once_a_step_also_after_torchs_class_was_hooked(trial):
    weights = trial.weights()
    AdamW(trial.weights())  # from now on torch's own method has its hooks
    optimizer = PrecisionAdaptiveAdamW(weights, gamma=2.0, **OPTIONS)
    seen = []
    optimizer.register_step_pre_hook(lambda o, *_: seen.append(("pre", o.param_groups[0]["lr"])))
    optimizer.register_step_post_hook(lambda o, *_: seen.append(("post", o.param_groups[0]["lr"])))
    everywhere = register_optimizer_step_post_hook(lambda *_: seen.append("all"))
    try:
        trial.run(optimizer, weights, range(2))
    finally:
        everywhere.remove()
    assert seen == [("pre", 0.02), ("post", 0.02), "all"] * 2


@pytest.mark.parametrize(
    "make",
    [
        lambda o: LambdaLR(o, lambda step: 0.9**step),
        lambda o: CosineAnnealingLR(o, 10),
        lambda o: OneCycleLR(o, 0.1, total_steps=20),  # sets betas too
    ],
)
@pytest.mark.parametrize("gamma", [1.0, 2.0])
def test_a_scheduler_sets_the_learning_rate(trial, make, gamma):
    def run(kind, **options):
        weights = trial.weights()
        optimizer = kind(weights, lr=0.02, **options)
        scheduler, rates = make(optimizer), []
        for step in range(10):
            trial.run(optimizer, weights, [step])
            scheduler.step()
            rates += scheduler.get_last_lr()
        return weights, optimizer, rates

    ours, theirs = run(PrecisionAdaptiveAdamW, gamma=gamma), run(AdamW)
    assert ours[2] == theirs[2]
    if gamma == 1.0:
        assert_equal_bits(ours[:2], theirs[:2])


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("form", ["decelerate", "literal"])
def test_a_scaler_leaves_out_a_step_that_overflowed(trial, path, form):
    """torch hands scale and overflow to the fused path, and skips the step of the others."""

    def run(kind, overflows, **options):
        weights = trial.weights()
        optimizer = kind(weights, **OPTIONS, **options, **PATHS[path])
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
        for step in range(6):
            loss = sum((w * g).sum() for w, g in zip(weights, trial.gradients(step), strict=True))
            scaler.scale(loss).backward()
            if step in overflows:
                weights[0].grad.view(-1)[0] = torch.inf
            before = [w.detach().clone() for w in weights]
            scaler.step(optimizer)
            scaler.update()
            stood = all(torch.equal(a, b) for a, b in zip(before, weights, strict=True))
            assert stood == (step in overflows)
            optimizer.zero_grad()
        return weights, optimizer

    ours = run(PrecisionAdaptiveAdamW, {2, 3}, gamma=2.0, form=form)
    assert all(torch.isfinite(w).all() for w in ours[0])
    if form == "decelerate":
        assert_equal_bits(run(PrecisionAdaptiveAdamW, {2, 3}), run(AdamW, {2, 3}))


# ---------------------------------------------------------------- torch's AdamW taken over


@pytest.mark.parametrize("path", PATHS)
def test_an_optimizer_is_taken_over_in_the_middle_of_a_run(trial, path):
    weights, plain = trial.trained(lambda w: AdamW(w, **OPTIONS, **PATHS[path]), 6)
    seen = []
    plain.register_step_post_hook(lambda *_: seen.append(1))
    moments = plain.state[weights[0]]["exp_avg"]
    optimizer = adapted(plain)
    assert type(optimizer) is PrecisionAdaptiveAdamW
    assert optimizer.state[weights[0]]["exp_avg"] is moments
    assert optimizer.gamma == 1.0
    flags = {key: optimizer.defaults[key] for key in (*PATHS[path], *OPTIONS)}
    assert flags == {**PATHS[path], **OPTIONS}
    trial.run(optimizer, weights, range(6, 20))
    whole = trial.trained(lambda w: AdamW(w, **OPTIONS, **PATHS[path]), 20)
    assert_equal_bits((weights, optimizer), whole)
    assert len(seen) == 14
    optimizer.decelerate(2.0)
    assert optimizer.gamma == 2.0
    assert adapted(optimizer) is optimizer


def test_a_fresh_optimizer_is_taken_over_with_its_groups_and_its_place_in_a_scaler(trial):
    weights = trial.weights()
    plain = AdamW([{"params": weights[:1], "lr": 0.5}, {"params": weights[1:]}], fused=True)
    optimizer = adapted(plain)
    assert [group["lr"] for group in optimizer.param_groups] == [0.5, 1e-3]
    assert optimizer._step_supports_amp_scaling
    assert "gamma" not in plain.defaults
    assert repr(optimizer).startswith("PrecisionAdaptiveAdamW (")


def test_a_scheduler_made_before_still_sets_the_rate_and_the_gear_counts(trial):
    weights = trial.weights()
    plain = AdamW(weights, **OPTIONS)
    scheduler = LambdaLR(plain, lambda step: 0.5**step)
    optimizer = adapted(plain)
    optimizer.decelerate(2.0)
    plain._opt_called = True  # what the scheduler looks at before it warns of its order
    for step in range(3):
        trial.run(optimizer, weights, [step])
        scheduler.step()
    assert optimizer.param_groups[0]["lr"] == OPTIONS["lr"] / 8
    wanted = trial.weights()
    other = PrecisionAdaptiveAdamW(wanted, gamma=2.0, **OPTIONS)
    schedule = LambdaLR(other, lambda step: 0.5**step)
    for step in range(3):
        trial.run(other, wanted, [step])
        schedule.step()
    assert_equal_bits((weights, optimizer), (wanted, other))


def test_a_scheduler_made_before_sets_the_rate_after_a_checkpoint_was_loaded_too(trial):
    def run(adapt):
        weights = trial.weights()
        plain = AdamW(weights, **OPTIONS)
        scheduler = LambdaLR(plain, lambda step: 0.5**step)
        optimizer = adapted(plain) if adapt else plain
        plain._opt_called = True
        trial.run(optimizer, weights, [0])
        scheduler.step()
        optimizer.load_state_dict(saved(optimizer))
        rates = []
        for step in (1, 2):
            trial.run(optimizer, weights, [step])
            scheduler.step()
            rates.append(optimizer.param_groups[0]["lr"])
        return weights, optimizer, rates

    ours, theirs = run(True), run(False)
    assert ours[2] == theirs[2] == [OPTIONS["lr"] / 4, OPTIONS["lr"] / 8]
    assert_equal_bits(ours[:2], theirs[:2])


def test_the_form_can_be_set_again_after_a_checkpoint_had_another(trial):
    _, literal = trial.trained(lambda w: PrecisionAdaptiveAdamW(w, form="literal"), 2)
    optimizer = PrecisionAdaptiveAdamW(trial.weights())
    optimizer.load_state_dict(saved(literal))
    optimizer.decelerate(2.0)
    assert {group["form"] for group in optimizer.param_groups} == {"literal"}
    optimizer.decelerate(2.0, "decelerate")
    assert {group["form"] for group in optimizer.param_groups} == {"decelerate"}
    with pytest.raises(ValueError, match="form"):
        optimizer.decelerate(3.0, "hurry")
    assert optimizer.gamma == 2.0


class MyAdamW(AdamW):
    """Whatever a subclass does with the denominator."""


@pytest.mark.parametrize(
    "make",
    [
        lambda w: Adam(w),
        lambda w: Adam(w, decoupled_weight_decay=True),
        lambda w: NAdam(w),
        lambda w: SGD(w, lr=0.1),
        lambda w: MyAdamW(w),
    ],
)
def test_another_optimizer_is_refused_with_its_name(trial, make):
    optimizer = make(trial.weights())
    with pytest.raises(ConfigError) as caught:
        adapted(optimizer)
    assert caught.value.key == "gears.optimizer"
    assert type(optimizer).__qualname__ in str(caught.value)
    assert "adamw_torch" in str(caught.value)
