"""The torch engine with rows of like length in one micro-batch: the same results, less padding."""

from __future__ import annotations

import pickle
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from ecorl.engines.packing import COMPARED_EVERY, PackedTokens
from ecorl.engines.protocol import EngineReport, ScoreBatch, ScoreResult
from ecorl.engines.torch.engine import TorchEngine
from ecorl.engines.torch.padding import follows_batch_length, has_relative_positions
from ecorl.engines.validate import check_batch, check_result
from ecorl.errors import EngineError
from ecorl.records import Provenance, Stage

BUDGET = 90
NEAR = {"rtol": 0, "atol": 2e-5}


def uneven(n_rows=12, seed=3, **fields):
    """Rows from a few tokens to many times as many."""
    rng = np.random.default_rng(seed)
    prompts = rng.integers(2, 12, n_rows)
    completions = np.where(np.arange(n_rows) % 4 == 0, 40, rng.integers(1, 6, n_rows))
    rows = tuple(rng.integers(3, 64, p + c) for p, c in zip(prompts, completions, strict=True))
    ids = tuple(f"s{i}" for i in range(n_rows))
    return ScoreBatch(ids, rows, tuple(int(n) for n in completions), **fields)


def padded(batch):
    """What one forward pass of all rows takes, by the engine's own padding."""
    n_prompt = [len(row) - n for row, n in zip(batch.token_ids, batch.n_completion, strict=True)]
    return len(batch) * (max(n_prompt) + max(batch.n_completion))


@pytest.mark.parametrize("seed", range(3))
def test_packed_log_probs_are_the_same_but_for_rounding_in_fewer_tokens(tiny_policy, seed):
    engine = TorchEngine(tiny_policy, Stage.REFERENCE)
    plain = uneven(seed=seed, temperature=0.7)
    wanted = engine.logprobs(plain)
    found = engine.logprobs(replace(plain, token_budget=BUDGET))
    assert wanted.report.packing is None
    assert found.sample_ids == plain.sample_ids
    for one, other in zip(wanted.values, found.values, strict=True):
        np.testing.assert_allclose(one, other, **NEAR)
    packed = found.report.packing
    assert packed.n_unpacked == padded(plain)
    assert plain.n_tokens <= packed.n_computed < 0.7 * packed.n_unpacked
    assert packed.n_tokens == plain.n_tokens
    assert packed.n_micro_batches > 2


@pytest.mark.parametrize("seed", range(3))
def test_so_are_packed_rewards(tiny_reward, seed):
    engine = TorchEngine(tiny_reward, Stage.REWARD)
    plain = uneven(seed=seed)
    wanted = engine.score(plain)
    found = engine.score(replace(plain, token_budget=BUDGET))
    np.testing.assert_allclose(wanted.values, found.values, **NEAR)
    assert len(set(found.values.tolist())) == len(plain)
    packed = found.report.packing
    assert packed.n_unpacked == len(plain) * max(len(row) for row in plain.token_ids)
    assert plain.n_tokens <= packed.n_computed < 0.7 * packed.n_unpacked


@pytest.mark.parametrize("budget", [BUDGET, 30])
def test_no_forward_pass_is_above_the_budget_unless_it_has_one_row(tiny_reward, budget):
    """That holds for those that results are compared with, too: memory is not to grow."""
    engine = TorchEngine(tiny_reward, Stage.REWARD)
    shapes = []
    engine._model.base_model.register_forward_pre_hook(
        lambda _module, _args, kwargs: shapes.append(tuple(kwargs["input_ids"].shape)),
        with_kwargs=True,
    )
    batch = uneven(token_budget=budget)
    packed = engine.score(batch).report.packing
    assert packed.difference is not None
    assert len(shapes) > packed.n_micro_batches > 3
    assert all(rows * width <= budget or rows == 1 for rows, width in shapes)
    computed = sum(rows * width for rows, width in shapes[: packed.n_micro_batches])
    assert computed == packed.n_computed


def test_the_difference_is_told_by_the_first_call_and_then_now_and_again(tiny_policy):
    engine = TorchEngine(tiny_policy, Stage.REFERENCE)
    batch = uneven(4, token_budget=BUDGET)
    engine.logprobs(uneven(4))  # not packed: it is no first call
    told = [engine.logprobs(batch).report.packing.difference for _ in range(COMPARED_EVERY + 1)]
    known = [i for i, difference in enumerate(told) if difference is not None]
    assert known == [0, COMPARED_EVERY]
    assert all(0 <= told[i] < 1e-5 for i in known)


def test_the_difference_is_that_of_the_results(tiny_policy, monkeypatch):
    engine = TorchEngine(tiny_policy, Stage.REFERENCE)
    own, calls = engine._log_probs, []

    def off(batch, forwards):
        calls.append(batch.token_budget)
        return own(batch, forwards) * (1.0 if batch.token_budget is None else 1.25)

    monkeypatch.setattr(engine, "_log_probs", off)
    packed = engine.logprobs(uneven(token_budget=BUDGET)).report.packing
    assert calls == [BUDGET, None]
    assert packed.difference == pytest.approx(0.2, abs=1e-3)


def test_rows_without_a_completion_among_others_have_none(tiny_policy):
    engine = TorchEngine(tiny_policy, Stage.REFERENCE)
    batch = uneven()
    batch = replace(batch, n_completion=(0, *batch.n_completion[1:-1], 0))
    wanted = engine.logprobs(batch).values
    found = engine.logprobs(replace(batch, token_budget=40)).values
    assert [len(row) for row in found] == list(batch.n_completion)
    for one, other in zip(wanted, found, strict=True):
        np.testing.assert_allclose(one, other, **NEAR)


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory):
    """A language model whose positions are learned one by one."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    folder = tmp_path_factory.mktemp("gpt2")
    shape = {
        "vocab_size": 64, "n_positions": 128, "n_embd": 32, "n_layer": 2, "n_head": 4,
        "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "initializer_range": 0.3,
    }  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        GPT2LMHeadModel(GPT2Config(**shape)).save_pretrained(folder)
    return folder


def test_padding_before_rows_stays_where_a_model_reads_it_as_length(gpt2):
    engine = TorchEngine(gpt2, Stage.REFERENCE)
    assert not has_relative_positions(engine._model)
    plain = uneven()
    wanted = engine.logprobs(plain).values
    result = engine.logprobs(replace(plain, token_budget=BUDGET))
    for one, other in zip(wanted, result.values, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=2e-4)
    assert result.report.packing.n_computed < result.report.packing.n_unpacked
    # Without that padding its results would be others.
    alone = engine.logprobs(plain.rows([1])).values[0]
    assert np.abs(alone - wanted[1]).max() > 1e-2


def test_positions_are_told_by_a_model_s_config():
    from transformers import BloomConfig, Gemma3TextConfig, GPT2Config, LlamaConfig

    def model(config):
        return SimpleNamespace(config=config)

    assert has_relative_positions(model(LlamaConfig()))
    assert has_relative_positions(model(Gemma3TextConfig()))
    assert not has_relative_positions(model(GPT2Config()))
    assert not has_relative_positions(model(BloomConfig()))
    assert not has_relative_positions(SimpleNamespace())
    assert has_relative_positions(model(SimpleNamespace(rope_theta=1e4, rope_scaling=None)))
    for fixed in (LlamaConfig(), GPT2Config(), Gemma3TextConfig()):
        assert follows_batch_length(model(fixed)) is None
    scaled = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
    assert follows_batch_length(model(LlamaConfig(rope_parameters=scaled))) == "dynamic"
    older = SimpleNamespace(rope_theta=1e4, rope_scaling={"type": "longrope"})
    assert follows_batch_length(model(older)) == "longrope"


def test_a_budget_goes_with_a_batch_wherever_it_goes():
    batch = uneven(token_budget=7)
    assert pickle.loads(pickle.dumps(batch)).token_budget == 7
    assert batch.rows([2, 0]).token_budget == 7
    with pytest.raises(EngineError, match="token_budget"):
        check_batch(replace(batch, token_budget=0), Stage.REWARD)


@pytest.mark.parametrize(
    ("told", "kept"),
    [
        (PackedTokens(2, 30, 40, 50, 1e-7), PackedTokens(2, 30, 40, 50, 1e-7)),
        (PackedTokens(2, 30, 40, 50, float("nan")), PackedTokens(2, 30, 40, 50)),
        (PackedTokens(2, -1, 40, 50), None),
        (PackedTokens(2, "many", 40, 50), None),
        ((2, 30, 40, 50), None),
    ],
)
def test_what_an_engine_tells_of_packing_is_checked(told, kept):
    batch = uneven(2)
    report = EngineReport(None, None, Provenance.MEASURED, 0.0, packing=told)
    result = ScoreResult(batch.sample_ids, np.zeros(2, np.float32), report)
    assert check_result(batch, result, Stage.REWARD).report.packing == kept


def test_rows_that_were_left_as_they_are_say_nothing_of_a_difference(tiny_policy):
    engine = TorchEngine(tiny_policy, Stage.REFERENCE)
    alike = ScoreBatch(("a", "b"), (np.arange(3, 13), np.arange(13, 23)), (4, 4), token_budget=1000)
    left = engine.logprobs(alike).report.packing
    assert (left.n_computed, left.difference) == (left.n_unpacked, None)
    # The first call with packed rows is compared all the same.
    assert engine.logprobs(uneven(token_budget=BUDGET)).report.packing.difference is not None


def test_a_comparison_counts_to_no_time_of_the_rows_and_its_error_costs_no_answer(
    tiny_policy, monkeypatch
):
    engine, batch = TorchEngine(tiny_policy, Stage.REFERENCE), uneven(token_budget=BUDGET)
    wanted = engine.logprobs(batch)
    engine = TorchEngine(tiny_policy, Stage.REFERENCE)

    def fail(*_):
        time.sleep(0.3)
        raise MemoryError("no room for the rows unpacked")

    monkeypatch.setattr(engine, "_difference", fail)
    found = engine.logprobs(batch)
    end_s = time.monotonic()
    assert found.report.packing.difference is None
    assert all(map(np.array_equal, wanted.values, found.values))
    begin, end = found.report.span_s
    assert end - begin == pytest.approx(found.report.host_time_s)
    assert end <= end_s - 0.3
    assert engine.logprobs(batch).report.span_s is None


def test_padding_stays_where_queries_are_scaled_by_where_they_stand():
    from transformers import Llama4TextConfig, Ministral3Config

    def model(config, **more):
        return SimpleNamespace(config=config, **more)

    assert not has_relative_positions(model(Llama4TextConfig()))
    assert has_relative_positions(model(Llama4TextConfig(attn_temperature_tuning=False)))
    assert not has_relative_positions(model(Ministral3Config()))


def test_padding_stays_where_an_adapter_has_learned_tokens_before_it(tiny_policy):
    peft = pytest.importorskip("peft")
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(tiny_policy)
    assert has_relative_positions(model)
    prompts = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4)
    assert not has_relative_positions(peft.get_peft_model(model, prompts))
    model = AutoModelForCausalLM.from_pretrained(tiny_policy)
    lora = peft.LoraConfig(task_type="CAUSAL_LM", target_modules="all-linear")
    assert has_relative_positions(peft.get_peft_model(model, lora))
