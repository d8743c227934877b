from __future__ import annotations

import numpy as np
import pytest

from ecorl.engines.protocol import GenerationEngine, GenerationRequest
from ecorl.engines.torch.generation import TorchGenerationEngine
from ecorl.errors import CheckpointError, EngineError


@pytest.fixture(scope="module")
def engine(tiny_policy):
    made = TorchGenerationEngine(tiny_policy)
    yield made
    made.close()


def request(temperature, seed=0, n_new=8):
    prompts = [[5, 6, 7], [8, 9, 10, 11, 12], [4]]
    return GenerationRequest(
        sample_ids=("a", "b", "c"),
        token_ids=tuple(np.array(p, dtype=np.int64) for p in prompts),
        max_new_tokens=n_new,
        temperature=temperature,
        seed=seed,
    )


def test_greedy_takes_the_likeliest_token_each_time(engine, tiny_policy):
    import torch
    from transformers import AutoModelForCausalLM

    assert isinstance(engine, GenerationEngine)
    asked = request(temperature=0.0)
    result = engine.generate(asked)
    assert result.sample_ids == asked.sample_ids
    model = AutoModelForCausalLM.from_pretrained(tiny_policy)
    for prompt, completion in zip(asked.token_ids, result.token_ids, strict=True):
        row = torch.from_numpy(prompt)[None]
        for token in completion:
            with torch.no_grad():
                best = int(model(row).logits[0, -1].argmax())
            assert best == token
            row = torch.cat([row, torch.tensor([[best]])], dim=1)
        assert len(completion) == 8 or completion[-1] == 2


def test_sampling_follows_its_seed_and_not_the_callers(engine):
    import torch

    torch.manual_seed(123)
    before = torch.get_rng_state()
    first = engine.generate(request(1.0, seed=7)).token_ids
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(456)
    again = engine.generate(request(1.0, seed=7)).token_ids
    other = engine.generate(request(1.0, seed=8)).token_ids
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(first, other, strict=True))


def test_a_row_ends_with_its_first_end_token(engine):
    engine._model.generation_config.eos_token_id = list(range(2, 40))
    try:
        rows = engine.generate(request(1.0, seed=3, n_new=12)).token_ids
    finally:
        engine._model.generation_config.eos_token_id = 2
    for row in rows:
        ends = [token for token in row if 2 <= token < 40]
        assert len(ends) <= 1
        assert not ends or row[-1] == ends[0]
    assert min(len(row) for row in rows) < 12


def test_new_weights_replace_the_old_or_change_nothing(tiny_policy, tmp_path):
    from transformers import AutoModelForCausalLM

    engine = TorchGenerationEngine(tiny_policy)
    old = engine.generate(request(0.0)).token_ids
    with pytest.raises(CheckpointError):
        engine.load_weights(1, str(tmp_path / "nothing"))
    assert all(
        np.array_equal(a, b)
        for a, b in zip(old, engine.generate(request(0.0)).token_ids, strict=True)
    )
    model = AutoModelForCausalLM.from_pretrained(tiny_policy)
    model.lm_head.weight.data.neg_()
    model.save_pretrained(tmp_path / "next")
    engine.load_weights(2, str(tmp_path / "next"))
    assert engine.version == 2
    new = engine.generate(request(0.0)).token_ids
    assert not any(np.array_equal(a, b) for a, b in zip(old, new, strict=True))
    engine.close()
    with pytest.raises(EngineError):
        engine.generate(request(0.0))


def test_no_prompts_no_completions(engine):
    assert engine.generate(GenerationRequest((), (), 4, 1.0, 0)).token_ids == ()
