"""Which devices a loop trains on, and when the GPU is waited for."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from ecorl.config import validate_config
from ecorl.errors import ConfigError
from ecorl.loop.opening import check_one_process, training_side, wait_for_gpus


class FakeCuda:
    """`torch.cuda` on a machine with two GPUs."""

    def __init__(self, is_initialized):
        self._is_initialized, self.n_waits = is_initialized, 0

    def is_available(self):
        return True

    def is_initialized(self):
        return self._is_initialized

    def synchronize(self):
        self.n_waits += 1

    def current_device(self):
        return 1

    def device_count(self):
        return 2

    def get_device_properties(self, index):
        return SimpleNamespace(uuid=f"uuid-{index}")


@pytest.fixture
def use_cuda(monkeypatch):
    def use(is_initialized):
        cuda = FakeCuda(is_initialized)
        dist = SimpleNamespace(is_available=lambda: False)
        monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda, distributed=dist))
        return cuda

    return use


def config(n_gpus=1, **gpu):
    return validate_config({"devices": {"n_gpus": n_gpus}, "telemetry": {"gpu": gpu}})


@pytest.mark.parametrize(
    ("n_gpus", "uuids"), [(1, ("GPU-uuid-1",)), (2, ("GPU-uuid-0", "GPU-uuid-1"))]
)
def test_a_loop_on_gpus_is_known_by_pytorch(use_cuda, n_gpus, uuids):
    cuda = use_cuda(True)
    side = training_side(config(n_gpus, type="null"))
    assert (side.device, side.gpu_uuids) == ("cuda", uuids)
    side.fence()
    assert cuda.n_waits == 1


def test_a_gpu_that_is_not_used_is_not_woken(use_cuda, caplog, snapshot):
    cuda = use_cuda(False)
    side = training_side(config(type="null"))
    assert side.device == "cpu"
    snapshot("\n".join(caplog.messages))
    side.fence()
    assert cuda.n_waits == 0
    # It may be used later on.
    cuda._is_initialized = True
    side.fence()
    assert cuda.n_waits == 1


def test_a_loop_without_pytorch_names_its_gpu_by_its_meter(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    assert training_side(config(type="null")).device == "cpu"
    side = training_side(config(type="nvml"))
    assert (side.device, side.gpu_uuids) == ("cuda", ())
    wait_for_gpus()


def test_a_process_group_counts_more_than_the_environment(use_cuda, monkeypatch):
    use_cuda(False)
    dist = SimpleNamespace(
        is_available=lambda: True, is_initialized=lambda: True, get_world_size=lambda: 4
    )
    sys.modules["torch"].distributed = dist
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with pytest.raises(ConfigError, match="WORLD_SIZE = '4'"):
        check_one_process()
    dist.get_world_size = lambda: 1
    monkeypatch.setenv("WORLD_SIZE", "4")  # of another launcher
    check_one_process()
