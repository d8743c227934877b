"""The INT8 engine: what it answers, what it refuses, what it says of itself."""

from __future__ import annotations

import gc
import json
import time
import weakref

import numpy as np
import pytest
from int8_models import (
    VOCAB,
    batch_of,
    card_file,
    decoder,
    float_logprobs,
    rows_of,
    same_bits,
)

from ecorl.engines.fpga.csim.decoder import Int8Decoder
from ecorl.engines.fpga.engine import FpgaEngine, card_bytes
from ecorl.engines.fpga.int8_decoder import MAX_ROW
from ecorl.engines.models.checkpoint import load_decoder
from ecorl.engines.protocol import InferenceEngine
from ecorl.engines.validate import check_logprobs, check_score
from ecorl.errors import CheckpointError, ConfigError, EngineError
from ecorl.records import Provenance, Stage


@pytest.fixture(autouse=True)
def _needs_compiler(require_tool):
    require_tool("gxx")


def test_engine_answers_the_protocol(models):
    engine = FpgaEngine(models("llama_reward")[0], Stage.REWARD, threads=2)
    assert isinstance(engine, InferenceEngine)
    assert (engine.name, engine.device, engine.row_invariant) == ("fpga", "u55c", True)
    rows = rows_of(4, 9)
    begin_s = time.monotonic()
    result = engine.score(batch_of(rows))
    took_s = time.monotonic() - begin_s
    assert result.sample_ids == ("s0", "s1")
    assert same_bits(result.values, decoder(models("llama_reward")[0]).score(rows))
    card = engine.modelled(batch_of(rows))
    assert result.report.device_time_s == card.time_s > 0
    assert result.report.device_energy_j == pytest.approx(73.0 * card.time_s)
    assert result.report.provenance is Provenance.MODELLED
    assert 0 < result.report.host_time_s <= took_s
    engine.close()
    with pytest.raises(EngineError, match="closed"):
        engine.score(batch_of(rows))


def test_reference_engine_and_empty_completions(models):
    engine = FpgaEngine(models("qwen_lm_tied")[0], Stage.REFERENCE)
    rows = rows_of(5, 1, 8)
    result = engine.logprobs(batch_of(rows, (4, 0, 2)))
    assert [len(v) for v in result.values] == [4, 0, 2]
    assert all(v.dtype == np.float32 for v in result.values)
    assert engine.logprobs(batch_of([])).values == ()
    with pytest.raises(EngineError, match="reference"):
        engine.score(batch_of(rows))
    with pytest.raises(EngineError, match="row s1"):
        engine.logprobs(batch_of(rows, (1, 1, 1)))
    with pytest.raises(EngineError, match="temperature"):
        engine.logprobs(batch_of(rows, (1, 0, 1), temperature=0.0))


@pytest.mark.parametrize("temperature", [5e-324, 1e-300, 1e-20])
def test_a_temperature_beyond_every_format_gives_no_number(models, temperature):
    engine = FpgaEngine(models("llama_lm")[0], Stage.REFERENCE)
    rows = rows_of(5, 8)
    (first, second) = engine.logprobs(batch_of(rows, (4, 0), temperature)).values
    assert np.isnan(first).all()
    assert len(second) == 0
    hot = engine.logprobs(batch_of(rows, (4, 2), temperature=1e300)).values
    assert np.concatenate(hot) == pytest.approx(-np.log(VOCAB), abs=1e-3)


CANNOT_RUN = {
    "token id 97, outside the vocabulary of 97": np.array([1, VOCAB]),
    "token id -1, outside": np.array([-1, 3]),
    f"token id {2**40}, outside": np.array([2**40, 1]),
    "513 tokens, the model knows 512": np.zeros(513, np.int64),
}


@pytest.mark.parametrize("reason", CANNOT_RUN)
def test_a_row_that_cannot_be_run_costs_the_others_nothing(models, reason, caplog, snapshot):
    """Same bits, same time and energy as without it; the validator finds it by its NaN."""
    good, bad = rows_of(4, 9), CANNOT_RUN[reason]
    mixed = batch_of([good[0], bad, good[1]])
    engine = FpgaEngine(models("llama_reward")[0], Stage.REWARD)
    alone, result = engine.score(batch_of(good)), engine.score(mixed)
    assert check_score(mixed, result).tolist() == [True, False, True]
    assert same_bits(result.values[[0, 2]], alone.values)
    assert result.report.device_time_s == alone.report.device_time_s
    assert result.report.device_energy_j == alone.report.device_energy_j
    snapshot(caplog.messages[-1])

    mixed = batch_of([good[0], bad, good[1]], (3, 1, 5))
    engine = FpgaEngine(models("llama_lm")[0], Stage.REFERENCE)
    alone, result = engine.logprobs(batch_of(good, (3, 5))), engine.logprobs(mixed)
    assert check_logprobs(mixed, result).tolist() == [True, False, True]
    assert [len(row) for row in result.values] == [3, 1, 5]
    assert same_bits(np.concatenate(result.values[::2]), np.concatenate(alone.values))
    assert result.report.device_time_s == alone.report.device_time_s


def test_a_batch_of_which_no_row_can_be_run_is_answered_without_a_time(models):
    bad = list(CANNOT_RUN.values())
    engine = FpgaEngine(models("llama_reward")[0], Stage.REWARD)
    result = engine.score(batch_of(bad))
    assert np.isnan(result.values).all()
    assert (result.report.device_time_s, result.report.device_energy_j) == (None, None)
    assert result.values.shape == (len(bad),)
    engine = FpgaEngine(models("llama_lm")[0], Stage.REFERENCE)
    result = engine.logprobs(batch_of(bad, (1,) * len(bad)))
    assert all(row.dtype == np.float32 and np.isnan(row).all() for row in result.values)
    assert result.report.device_time_s is None


def test_requests_that_no_engine_can_answer_are_refused(models):
    engine = FpgaEngine(models("llama_reward")[0], Stage.REWARD)
    with pytest.raises(EngineError, match="row s1"):
        engine.score(batch_of([np.array([1, 2]), np.array([], np.int64)]))
    with pytest.raises(EngineError, match="reward stage"):
        engine.logprobs(batch_of([np.array([1, 2])]))


def test_empty_batch(models):
    engine = FpgaEngine(models("llama_reward")[0], Stage.REWARD)
    result = engine.score(batch_of([]))
    assert result.values.shape == (0,)
    assert result.report.device_time_s == 0.0


def test_wrong_requests_are_user_errors(models, tmp_path):
    reward, lm = models("llama_reward")[0], models("llama_lm")[0]
    with pytest.raises(CheckpointError, match="ForSequenceClassification"):
        FpgaEngine(lm, Stage.REWARD)
    with pytest.raises(CheckpointError, match="ForCausalLM"):
        FpgaEngine(reward, Stage.REFERENCE)
    with pytest.raises(ConfigError, match="frozen"):
        FpgaEngine(reward, Stage.CRITIC)
    with pytest.raises(ConfigError, match="strict"):
        FpgaEngine(reward, Stage.REWARD, build="quick")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="no_such_card"):
        FpgaEngine(reward, Stage.REWARD, device="no_such_card")
    with pytest.raises(CheckpointError, match="nowhere"):
        FpgaEngine(tmp_path / "nowhere", Stage.REWARD)


def test_a_model_that_does_not_fit_is_refused(models, tmp_path):
    folder, _ = models("llama_reward")
    needed = card_bytes(load_decoder(folder).config)
    with pytest.raises(CheckpointError, match=" GB in INT8, mine "):
        FpgaEngine(folder, Stage.REWARD, device=card_file(tmp_path, memory_bytes=needed - 1))
    engine = FpgaEngine(folder, Stage.REWARD, device=card_file(tmp_path, memory_bytes=needed))
    assert engine.device == "mine"


def test_a_card_without_room_for_an_array_is_refused(models, tmp_path):
    small = card_file(tmp_path, n_dsp_used=2047)
    with pytest.raises(ConfigError, match="one array"):
        FpgaEngine(models("llama_reward")[0], Stage.REWARD, device=small)


def test_rows_beyond_the_sums_of_attention_are_not_run(models, tmp_path, monkeypatch, caplog):
    """The bound itself passes: weights of 14 bits for as many keys still fit INT32."""
    assert MAX_ROW * 2**14 <= np.iinfo(np.int32).max < 2 * MAX_ROW * 2**14 + 1
    model = models("llama_reward")[1]
    model.save_pretrained(tmp_path / "long")
    config = tmp_path / "long" / "config.json"
    fields = json.loads(config.read_text()) | {"max_position_embeddings": 200_000}
    config.write_text(json.dumps(fields))
    engine = FpgaEngine(tmp_path / "long", Stage.REWARD)
    ran = []

    def score_at(_self, rows, positions, _n_completion):
        ran.extend(rows)
        return [np.zeros(len(asked)) for asked in positions]

    monkeypatch.setattr(Int8Decoder, "score_at", score_at)
    engine.score(batch_of([np.zeros(MAX_ROW, np.int64)]))
    assert [len(row) for row in ran] == [MAX_ROW]
    assert np.isnan(engine.score(batch_of([np.zeros(MAX_ROW + 1, np.int64)])).values).all()
    assert [len(row) for row in ran] == [MAX_ROW]
    assert f"row s0 has {MAX_ROW + 1} tokens" in caplog.text


def test_bytes_on_the_card(models):
    engine = FpgaEngine(models("qwen_lm_tied")[0], Stage.REFERENCE)
    assert engine.card_bytes == card_bytes(load_decoder(models("qwen_lm_tied")[0]).config)
    # by hand: embedding INT16, head and products INT8, constants of channels, norms and biases
    h, inner, v, q, kv = 64, 112, 97, 64, 32
    products = [(q, h), (kv, h), (kv, h), (h, q), (inner, h), (inner, h), (h, inner)]
    layer = sum(n * k + 5 * n for n, k in products) + 4 * (2 * h + q + 2 * kv)
    assert engine.card_bytes == 2 * layer + 4 * h + v * (2 * h + 1) + v * (h + 5)


def test_a_head_that_is_not_tied_after_all_is_the_one_computed_with(models, tmp_path):
    """config.json says tied, the file holds another head: the float model and this one agree."""
    import torch
    from safetensors.torch import load_file, save_file
    from transformers import AutoModelForCausalLM

    models("qwen_lm_tied")[1].save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    torch.manual_seed(7)
    tensors["lm_head.weight"] = 0.15 * torch.randn(VOCAB, 64)
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    engine = FpgaEngine(tmp_path, Stage.REFERENCE)
    rows = rows_of(60, seed=21)
    (values,) = engine.logprobs(batch_of(rows, (59,))).values
    wanted = float_logprobs(theirs, rows[0], 59, 1.0)
    assert np.corrcoef(values, wanted)[0, 1] > 0.99
    assert engine.model.n_params == sum(p.numel() for p in theirs.parameters())


def test_rotary_tables_grow_safely_under_a_second_thread(models):
    """The longer length is told only when its tables are in place, and no table goes away."""
    model = decoder(models("llama_reward")[0])
    model.score(rows_of(20))
    known, old = model._n_positions, weakref.ref(model._memory._keep[-1])
    seen = []

    class Watched:
        def __setattr__(self, name, value):
            seen.append((name, model._n_positions))

    memory = model._memory
    c_model, memory.model = memory.model, Watched()
    model._ensure_positions(known + 1)
    assert seen == [("cosine", known), ("sine", known)]
    assert model._n_positions == 2 * known
    memory.model = c_model
    gc.collect()
    assert old() is not None
