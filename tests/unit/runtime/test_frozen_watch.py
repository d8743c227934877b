"""A watch notices whatever changes a model's values, wherever its tensors lie."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from ecorl.runtime.frozen_models import Watch  # noqa: E402


class Model(torch.nn.Module):
    """Tensors of several shapes, dtypes and layouts."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.dense = torch.nn.Parameter(torch.randn(40, 30))
        self.turned = torch.nn.Parameter(torch.randn(50, 20).t())
        self.short = torch.nn.Parameter(torch.randn(100, dtype=torch.bfloat16))
        self.scalar = torch.nn.Parameter(torch.tensor(1.5))
        self.register_buffer("wide", torch.randn(7, 1).expand(7, 9))
        self.register_buffer("count", torch.tensor(3))
        self.register_buffer("empty", torch.zeros(0))


NAMES = ("dense", "turned", "short", "scalar", "wide")


@pytest.mark.parametrize("name", NAMES)
def test_values_changed_in_place_are_noticed_and_restored_ones_too(name):
    model = Model()
    watch = Watch(model)
    assert watch.same(model)
    tensor = getattr(model, name).data
    kept = tensor[:, :1].clone() if name == "wide" else tensor.clone()
    target = tensor[:, :1] if name == "wide" else tensor  # its columns share their memory
    target.mul_(1.5)
    assert not watch.same(model)
    target.copy_(kept)
    assert watch.same(model)


@pytest.mark.parametrize("name", NAMES)
def test_a_tensor_that_was_put_in_its_place_is_judged_by_its_values(name):
    model = Model()
    watch = Watch(model)
    tensor = getattr(model, name)
    own = tensor.data
    tensor.data = own.clone()
    assert watch.same(model)
    tensor.data.add_(1.0)
    assert not watch.same(model)
    tensor.data = own
    assert watch.same(model)


def test_another_parameter_under_the_same_name_is_noticed():
    model = Model()
    watch = Watch(model)
    model.dense = torch.nn.Parameter(model.dense.detach() + 1.0)
    assert not watch.same(model)
    assert not watch.same(Model())


def test_another_dtype_is_another_model():
    model = Model()
    watch = Watch(model)
    model.dense.data = model.dense.data.double()
    assert not watch.same(model)


def test_the_same_memory_read_in_another_order_is_another_tensor():
    model = Model()
    model.square = torch.nn.Parameter(torch.randn(8, 8))
    watch = Watch(model)
    model.square.data = model.square.data.t()
    assert not watch.same(model)


def test_a_tensor_that_tells_no_address_is_read_anew(monkeypatch):
    model = Model()
    monkeypatch.setattr(torch.Tensor, "data_ptr", lambda self: 0)
    watch = Watch(model)
    assert watch.same(model)
    model.dense.data = model.dense.data + 1.0
    assert not watch.same(model)
