"""A model in a gear: what is computed how, and that it is as before afterwards."""

from __future__ import annotations

import contextlib

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from ecorl.control import Gear  # noqa: E402
from ecorl.errors import ConfigError  # noqa: E402
from ecorl.trainer.gears.formats import GearSupport, computes_fp8, supported  # noqa: E402
from ecorl.trainer.gears.geared_model import GearedModel, as_float32  # noqa: E402
from ecorl.trainer.gears.mismatch import probability_mismatch  # noqa: E402

CPU = torch.device("cpu")
ALL = (Gear.FP32, Gear.BF16, Gear.FP16, Gear.FP8)


class Net(nn.Module):
    """Two layers that FP8 takes and one that it does not, with dropout between them."""

    def __init__(self, recomputes=False):
        super().__init__()
        self.first, self.second = nn.Linear(32, 48), nn.Linear(48, 32)
        self.odd = nn.Linear(32, 5)
        self.drop, self.recomputes = nn.Dropout(0.2), recomputes

    def body(self, x):
        return self.second(self.drop(torch.relu(self.first(x))))

    def forward(self, x):
        inner = checkpoint(self.body, x, use_reentrant=False) if self.recomputes else self.body(x)
        return {"logits": self.odd(inner)}


def geared(own=Gear.FP32, gears=ALL, **kwargs):
    torch.manual_seed(0)
    model = Net(**kwargs)
    return model, GearedModel(model, own, supported(gears, CPU, may_simulate_fp8=True))


def data(n=6):
    return torch.randn(n, 32, generator=torch.Generator().manual_seed(1))


def step(model, seed=5):
    model.zero_grad(set_to_none=True)
    torch.manual_seed(seed)
    out = model(data())["logits"]
    out.square().sum().backward()
    return out.detach(), [p.grad.clone() for p in model.parameters()]


@pytest.fixture(scope="module", autouse=True)
def _torchao():
    pytest.importorskip("torchao")


def test_gears_differ_as_their_formats_do_and_leave_the_model_as_it_was():
    model, gears = geared()
    exact, _ = step(model)
    errors = {}
    for gear in ALL:
        with gears.within(gear):
            out, grads = step(model)
        errors[gear] = float((out - exact).abs().max())
        assert out.dtype is torch.float32
        assert {g.dtype for g in grads} == {torch.float32}
        again, _ = step(model)
        assert torch.equal(again, exact)
        assert gears.engaged is None
    assert errors[Gear.FP32] == 0.0
    assert 0.0 < errors[Gear.FP16] < errors[Gear.BF16] < errors[Gear.FP8]


def test_bf16_is_torch_s_autocast():
    model, gears = geared()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.manual_seed(5)
        wanted = model(data())["logits"].float()
    with gears.within(Gear.BF16):
        torch.manual_seed(5)
        assert torch.equal(model(data())["logits"], wanted)


def test_fp32_within_the_framework_s_own_mixed_precision_is_exact():
    model, gears = geared(own=Gear.BF16)
    torch.manual_seed(5)
    wanted = model(data())["logits"]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        model(data())  # leaves casts of the weights in autocast's cache
        with gears.within(Gear.FP32):
            torch.manual_seed(5)
            assert torch.equal(model(data())["logits"], wanted)
        with gears.within(Gear.FP16):
            assert model(data())["logits"].isfinite().all()


def test_the_own_gear_touches_nothing():
    model, gears = geared(own=Gear.BF16)
    before = dict(model.__dict__)
    with gears.within(Gear.BF16):
        assert model.__dict__ == before
        assert type(model.first) is nn.Linear


@pytest.mark.parametrize("gear", ALL)
def test_parts_that_the_backward_pass_computes_anew_are_in_the_same_gear(gear):
    plain_model, plain = geared()
    model, gears = geared(recomputes=True)
    with plain.within(gear):
        _, wanted = step(plain_model)
    with gears.within(gear):
        _, found = step(model)
    for a, b in zip(wanted, found, strict=True):
        assert torch.equal(a, b)


def test_fp8_takes_the_layers_whose_sizes_it_can_and_shares_their_weights():
    model, gears = geared()
    plain = model.first
    with gears.within(Gear.FP8):
        assert type(model.first) is not nn.Linear
        assert type(model.odd) is nn.Linear
        assert model.first.weight is plain.weight
    assert model.first is plain


@pytest.mark.parametrize("n_tokens", [32, 37])
def test_fp8_units_take_a_batch_of_any_number_of_tokens(monkeypatch, n_tokens):
    """A weight's gradient is a product over the tokens, of which FP8 units take multiples of 16."""
    from ecorl.trainer.gears.float8 import Float8Layers

    own, summed = torch._scaled_mm, []

    def product(a, b, *args, **kwargs):
        summed.append(a.shape[1])
        return own(a, b, *args, **kwargs)

    monkeypatch.setattr(torch, "_scaled_mm", product)
    model = nn.Sequential(nn.Linear(32, 48)).to(torch.bfloat16)
    Float8Layers(model, simulate=False).engage()
    x = torch.randn(n_tokens, 32, dtype=torch.bfloat16, requires_grad=True)
    model(x).float().sum().backward()
    assert len(summed) == 3
    assert all(n % 16 == 0 for n in summed)
    assert model[0].weight.grad.shape == (48, 32)


def test_weights_that_were_exchanged_are_followed():
    model, gears = geared()
    with gears.within(Gear.FP8):
        before, _ = step(model)
    model.first.weight = nn.Parameter(model.first.weight.detach() * 2)
    with gears.within(Gear.FP8):
        after, _ = step(model)
    assert not torch.equal(before, after)
    assert model.first.weight.grad is not None


def test_hooks_of_a_layer_run_in_fp8_too():
    model, gears = geared()
    seen = []
    handle = model.first.register_forward_hook(lambda *_: seen.append(1))
    with gears.within(Gear.FP8):
        step(model)
    handle.remove()
    with gears.within(Gear.FP8):
        step(model)
    assert seen == [1]


def test_a_framework_s_own_forward_is_put_back():
    torch.manual_seed(0)
    model = Net()
    inner = model.forward
    model.forward = wrapper = lambda x: {"logits": -inner(x)["logits"]}
    gears = GearedModel(model, Gear.FP32, GearSupport((Gear.BF16,), ()), inner)
    with gears.within(Gear.BF16):
        assert model.forward is not wrapper
    assert model.forward is wrapper


def test_a_model_without_such_layers_is_refused_fp8():
    with pytest.raises(ConfigError, match="multiples of 16"):
        GearedModel(nn.Linear(7, 5), Gear.FP32, GearSupport((Gear.BF16, Gear.FP8), (Gear.FP8,)))


def test_a_device_without_fp8_is_refused_or_simulates_it(snapshot):
    with pytest.raises(ConfigError) as caught:
        supported(ALL, CPU, may_simulate_fp8=False)
    snapshot(str(caught.value))
    assert supported(ALL, CPU, may_simulate_fp8=True).simulated == (Gear.FP8,)


@pytest.mark.parametrize(
    ("hip", "capability", "has"),
    [(None, (8, 0), False), (None, (8, 9), True), ("6.4", (9, 0), False), ("6.4", (9, 4), True)],
)
def test_which_devices_have_units_for_fp8(monkeypatch, hip, capability, has):
    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert computes_fp8(torch.device("cuda", 0)) is has
    assert not computes_fp8(CPU)


def test_bf16_that_a_device_emulates_is_no_gear(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(
        torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation
    )
    with pytest.raises(ConfigError, match="without BF16"):
        supported((Gear.BF16,), torch.device("cuda", 0), may_simulate_fp8=False)


def test_an_error_within_a_gear_leaves_the_model_as_it_was():
    model, gears = geared()
    own = model.forward
    with pytest.raises((RuntimeError, AssertionError)), gears.within(Gear.FP8):
        model(torch.zeros(3, 7))
    assert model.forward == own
    assert type(model.first) is nn.Linear


def test_nested_gears_end_in_the_outer_one():
    _, gears = geared()
    with gears.within(Gear.FP8):
        with gears.within(Gear.BF16):
            assert gears.engaged is Gear.BF16
        assert gears.engaged is Gear.FP8


def test_outputs_of_16_bits_become_float32_in_whatever_they_lie():
    half = torch.ones(2, dtype=torch.bfloat16)
    found = as_float32({"a": half, "b": (half, [half]), "c": 3, "d": torch.ones(1).long()})
    assert found["a"].dtype is found["b"][0].dtype is found["b"][1][0].dtype is torch.float32
    assert found["c"] == 3
    assert found["d"].dtype is torch.int64


def test_the_mismatch_is_the_mean_ratio_of_probabilities():
    a = torch.tensor([[-1.0, -2.0, -9.0]])
    b = torch.tensor([[-1.1, -1.8, 0.0]])
    mask = torch.tensor([[1, 1, 0]])
    wanted = (torch.tensor(0.1).exp() + torch.tensor(0.2).exp()) / 2
    assert probability_mismatch(a, b, mask) == pytest.approx(float(wanted), rel=1e-6)
    assert probability_mismatch(a, a, mask) == 1.0
    assert probability_mismatch(a, b, torch.zeros_like(mask)) is None
    assert probability_mismatch(a, a * float("nan"), mask) == float("inf")
    assert probability_mismatch(a, a - 1e4, mask) == float("inf")


def test_tokens_of_which_the_rollout_told_nothing_are_left_out_of_the_mismatch():
    """Else a token that the inference server leaves out would bar a gear that is well."""
    nan = float("nan")
    rollout = torch.tensor([[-1.0, nan, -float("inf"), -2.0]])
    own = torch.tensor([[-1.1, -3.0, -3.0, -1.8]])
    mask = torch.ones_like(own)
    wanted = (torch.tensor(0.1).exp() + torch.tensor(0.2).exp()) / 2
    assert probability_mismatch(rollout, own, mask) == pytest.approx(float(wanted), rel=1e-6)
    assert probability_mismatch(rollout * nan, own, mask) is None
    # What the trainer itself does not know still counts, and where the rollout is silent, not.
    own[0, 1] = nan
    assert probability_mismatch(rollout, own, mask) == pytest.approx(float(wanted), rel=1e-6)
    own[0, 3] = nan
    assert probability_mismatch(rollout, own, mask) == float("inf")
