"""The whole forward through the kernels instead of the host's schedule: the same bits."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from int8_models import MODELS, REWARDS, decoder, library, rows_of, same_bits

from ecorl.engines.fpga.cycles.attention import MhaCounts

KERNELS = 1
COUNTERS = {"mha_int8": len(MhaCounts.__slots__), "kv_cache_router": 10}
PAGES_WRITTEN, PAGES_SHARED = 1, 3


@pytest.fixture
def chosen(require_tool):
    """Chooses who computes, for one build at a time; the host's schedule again at the end."""
    require_tool("gxx")
    used = []

    def choose(build, width):
        handle = library(build).handle
        used.append(handle)
        assert handle.rows_set_width(width) == 0
        return handle

    yield choose
    for handle in used:
        handle.rows_set_width(0)


def results(model, name, rows, n_completion):
    if name in REWARDS:
        return model.score(rows, n_completion)
    return np.concatenate(model.logprobs(rows, n_completion, 0.7))


def counts(handle, kernel):
    out = np.zeros(COUNTERS[kernel], np.int64)
    getattr(handle, f"{kernel}_counters")(ctypes.c_void_p(out.ctypes.data))
    return out


def group(n_prompt, lengths):
    """Rows that share a prompt, and how many tokens of each are its own."""
    prompt = rows_of(n_prompt, seed=n_prompt)[0]
    rows = [np.concatenate([prompt, rest]) for rest in rows_of(*lengths, seed=9)]
    return rows, list(lengths)


@pytest.mark.parametrize("name", MODELS)
def test_kernels_give_the_bits_of_the_host(models, name, chosen):
    rows, n_completion = group(130, (1, 5, 64, 70))
    more = rows_of(1, 64, 65, 200, seed=4)
    rows, n_completion = rows + more, [*n_completion, 0, 3, 10, 2]
    model = decoder(models(name)[0])
    chosen("fast", 0)
    host = results(model, name, rows, n_completion)
    handle = chosen("fast", KERNELS)
    assert handle.rows_width() == KERNELS
    for kernel in COUNTERS:
        getattr(handle, f"{kernel}_counters_reset")()
    assert same_bits(results(model, name, rows, n_completion), host)
    assert counts(handle, "mha_int8")[0] > 0
    assert counts(handle, "kv_cache_router")[PAGES_SHARED] > 0


@pytest.mark.parametrize("name", ["llama_reward", "qwen_lm_tied"])
def test_strict_kernels_give_the_bits_of_the_host(models, name, chosen, require_tool):
    require_tool("hls_headers")
    rows, n_completion = group(5, (2, 4))
    host = results(decoder(models(name)[0]), name, rows, n_completion)
    chosen("strict", KERNELS)
    model = decoder(models(name)[0], "strict")
    assert same_bits(results(model, name, rows, n_completion), host)


@pytest.mark.parametrize("n_prompt", [1, 63, 64, 65, 130])
def test_a_shared_prompt_is_written_once_and_changes_no_bit(models, n_prompt, chosen):
    rows, n_completion = group(n_prompt, (7,) * 8)
    model = decoder(models("llama_reward")[0])
    handle = chosen("fast", KERNELS)
    shape = model.config.shape
    written = []
    for shared in (n_completion, None):
        handle.kv_cache_router_counters_reset()
        written.append((model.score(rows, shared), counts(handle, "kv_cache_router")))
    (with_sharing, few), (without, many) = written
    assert same_bits(with_sharing, without)
    runs = shape.n_layers * shape.n_kv_heads
    each, whole = -(-(n_prompt + 7) // 64), n_prompt // 64
    assert few[PAGES_WRITTEN] == runs * (-(-n_prompt // 64) + 8 * (each - whole))
    assert few[PAGES_SHARED] == runs * 8 * whole
    assert many[PAGES_WRITTEN] == runs * 8 * each
    assert many[PAGES_SHARED] == 0


def test_threads_share_the_kernels(models, chosen):
    model, threaded = (decoder(models("llama_reward")[0], threads=n) for n in (1, 2))
    rows = rows_of(300, 200, 12, seed=3)
    chosen("fast", KERNELS)
    assert same_bits(threaded.score(rows), model.score(rows))
