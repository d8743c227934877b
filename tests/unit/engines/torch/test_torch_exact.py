"""The torch engine against TRL's own computation, on the very inputs of a training step."""

from __future__ import annotations

import numpy as np
import pytest

from ecorl.engines.models.decoder_config import read_shape
from ecorl.engines.protocol import ScoreBatch
from ecorl.engines.torch.engine import TorchEngine
from ecorl.engines.torch.loading import shape_of
from ecorl.errors import CheckpointError, ConfigError, EngineCrashed, EngineError, MissingToolError
from ecorl.records import Stage

TEMPERATURE = 0.7


@pytest.fixture(scope="module")
def trl_step(tiny_policy, tiny_reward, tiny_tokenizer, tmp_path_factory):
    """One step of a plain GRPO trainer: what it gave to both models, and what it got."""
    folder = tmp_path_factory.mktemp("trl")
    return record_step(tiny_policy, tiny_reward, tiny_tokenizer, folder, "float32")


@pytest.fixture(scope="module")
def half_step(tiny_policy, tiny_reward, tiny_tokenizer, tmp_path_factory):
    """The same with both models in bfloat16."""
    folder = tmp_path_factory.mktemp("trl")
    return record_step(tiny_policy, tiny_reward, tiny_tokenizer, folder, "bfloat16")


def record_step(policy, reward, tokenizer, folder, dtype):
    import torch
    from datasets import Dataset
    from transformers import AutoModelForSequenceClassification
    from trl import GRPOConfig, GRPOTrainer

    torch.set_num_threads(1)
    seen = {"rewards": [], "logprobs": []}
    reward_model = AutoModelForSequenceClassification.from_pretrained(
        reward, num_labels=1, dtype=dtype
    )
    reward_model.register_forward_hook(
        lambda _module, _args, kwargs, output: seen["rewards"].append(
            (kwargs["input_ids"], kwargs["attention_mask"], output.logits[:, 0].clone())
        ),
        with_kwargs=True,
    )

    class Recorder(GRPOTrainer):
        def _get_per_token_logps_and_entropies(self, model, ids, mask, n_keep, *args, **kwargs):
            out = super()._get_per_token_logps_and_entropies(
                model, ids, mask, n_keep, *args, **kwargs
            )
            if model is self.ref_model:
                seen["logprobs"].append((ids, mask, n_keep, kwargs["batch_size"], out[0]))
            return out

    prompts = [" ".join(f"w{4 + (7 * i + j) % 50}" for j in range(2 + i)) for i in range(4)]
    trainer = Recorder(
        model=str(policy),
        reward_funcs=reward_model,
        processing_class=tokenizer,
        reward_processing_classes=tokenizer,
        train_dataset=Dataset.from_list([{"prompt": p} for p in prompts]),
        args=GRPOConfig(
            output_dir=str(folder),
            model_init_kwargs={"dtype": dtype},
            use_cpu=True,
            bf16=False,
            beta=0.1,
            temperature=TEMPERATURE,
            per_device_train_batch_size=4,
            gradient_accumulation_steps=2,
            num_generations=2,
            max_completion_length=24,
            max_steps=1,
            report_to="none",
            save_strategy="no",
            disable_tqdm=True,
        ),
    )
    trainer.train()
    return seen


def unpad(ids, mask, n_keep=0, **fields):
    """The rows' real tokens, as an adapter hands them over."""
    ids, mask = ids.numpy(), mask.numpy().astype(bool)
    return ScoreBatch(
        sample_ids=tuple(f"s{index}" for index in range(len(ids))),
        token_ids=tuple(row[keep] for row, keep in zip(ids, mask, strict=True)),
        n_completion=tuple(int(keep[len(keep) - n_keep :].sum()) for keep in mask),
        **fields,
    )


def compare_logprobs(engine, step):
    ids, mask, n_keep, micro_batch, expected = step
    batch = unpad(ids, mask, n_keep, temperature=TEMPERATURE, micro_batch=micro_batch)
    assert len(set(batch.n_completion)) > 1, "the step needs padding to say anything"
    assert micro_batch < len(batch)
    values = engine.logprobs(batch).values
    return max(
        float(np.abs(row - expected[i, : len(row)].numpy()).max()) for i, row in enumerate(values)
    )


def test_reference_logprobs_equal_trl_to_the_last_bit(trl_step, tiny_policy):
    engine = TorchEngine(tiny_policy, Stage.REFERENCE)
    assert len(trl_step["logprobs"]) == 1
    assert compare_logprobs(engine, trl_step["logprobs"][0]) == 0.0
    # Another temperature in between must not stick to the model.
    engine.logprobs(unpad(*trl_step["logprobs"][0][:3], temperature=1.9))
    assert compare_logprobs(engine, trl_step["logprobs"][0]) == 0.0


def test_bfloat16_logprobs_equal_trl_to_the_last_bit(half_step, tiny_policy):
    engine = TorchEngine(tiny_policy, Stage.REFERENCE, dtype="bfloat16")
    assert compare_logprobs(engine, half_step["logprobs"][0]) == 0.0
    # and only so: the dtype is part of the bits
    assert compare_logprobs(TorchEngine(tiny_policy, Stage.REFERENCE), half_step["logprobs"][0]) > 0


def test_bfloat16_rewards_equal_trl_to_the_last_bit(half_step, tiny_reward):
    engine = TorchEngine(tiny_reward, Stage.REWARD, dtype="bfloat16")
    assert half_step["rewards"]
    for ids, mask, expected in half_step["rewards"]:
        result = engine.score(unpad(ids, mask))
        assert result.values.dtype == np.float32
        np.testing.assert_array_equal(result.values, expected.float().numpy())


def test_auto_takes_the_dtype_of_the_checkpoint(tiny_reward, tmp_path, make_batch):
    from transformers import AutoModelForSequenceClassification

    half = AutoModelForSequenceClassification.from_pretrained(tiny_reward, dtype="bfloat16")
    half.save_pretrained(tmp_path)
    values = {
        dtype: TorchEngine(tmp_path, Stage.REWARD, dtype=dtype).score(make_batch()).values
        for dtype in ("auto", "bfloat16", "float32")
    }
    np.testing.assert_array_equal(values["auto"], values["bfloat16"])
    assert (values["auto"] != values["float32"]).any()
    with pytest.raises(ConfigError) as caught:
        TorchEngine(tmp_path, Stage.REWARD, dtype="half")
    assert caught.value.value == "half"
    assert all(dtype in caught.value.allowed for dtype in values)


def test_without_trl_logprobs_agree_to_1e_6(trl_step, tiny_policy, monkeypatch):
    monkeypatch.setattr("ecorl.engines.torch.engine._trl_fused_head", lambda: None)
    engine = TorchEngine(tiny_policy, Stage.REFERENCE)
    assert compare_logprobs(engine, trl_step["logprobs"][0]) <= 1e-6


def test_rewards_equal_trl_to_the_last_bit(trl_step, tiny_reward):
    engine = TorchEngine(tiny_reward, Stage.REWARD)
    assert trl_step["rewards"]
    for ids, mask, expected in trl_step["rewards"]:
        result = engine.score(unpad(ids, mask))
        np.testing.assert_array_equal(result.values, expected.numpy())


def test_loading_and_calling_leave_the_random_state_alone(tiny_policy, make_batch):
    import torch

    before = torch.get_rng_state()
    TorchEngine(tiny_policy, Stage.REFERENCE).logprobs(make_batch())
    assert torch.equal(before, torch.get_rng_state())


def test_thread_count_is_put_back(tiny_reward, make_batch):
    import torch

    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        TorchEngine(tiny_reward, Stage.REWARD, threads=2).score(make_batch())
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)


def test_shape_is_that_of_the_checkpoint_reader(tiny_policy, tiny_reward):
    assert TorchEngine(tiny_policy, Stage.REFERENCE).model == read_shape(tiny_policy)
    assert TorchEngine(tiny_reward, Stage.REWARD).model == read_shape(tiny_reward)


def test_shape_counts_every_parameter_once(tiny_policy):
    from transformers import AutoModelForCausalLM

    shape = TorchEngine(tiny_policy, Stage.REFERENCE).model
    model = AutoModelForCausalLM.from_pretrained(tiny_policy)
    n_params = sum(p.numel() for p in model.parameters())
    assert (shape.n_params, shape.n_params_active) == (n_params, n_params - 64 * 32)
    assert (shape.n_layers, shape.n_heads, shape.n_kv_heads, shape.head_dim) == (2, 4, 2, 8)
    model.set_output_embeddings(torch_tied(model))
    tied = shape_of(model)
    assert tied.n_params == tied.n_params_active == n_params - 64 * 32


def torch_tied(model):
    import torch

    head = torch.nn.Linear(32, 64, bias=False)
    head.weight = model.get_input_embeddings().weight
    return head


def test_a_checkpoint_that_does_not_fit_is_refused(tiny_policy, tiny_reward, tmp_path):
    with pytest.raises(CheckpointError, match=r"config\.json"):
        TorchEngine(tmp_path, Stage.REWARD)
    with pytest.raises(CheckpointError, match=r"lacks score\.weight"):
        TorchEngine(tiny_policy, Stage.REWARD)
    with pytest.raises(CheckpointError, match=r"lacks lm_head\.weight"):
        TorchEngine(tiny_reward, Stage.REFERENCE)
    (tmp_path / "config.json").write_text((tiny_policy / "config.json").read_text())
    with pytest.raises(CheckpointError, match="loaded"):
        TorchEngine(tmp_path, Stage.REFERENCE)
    (tmp_path / "model.safetensors").write_bytes(b"no tensors")
    with pytest.raises(CheckpointError, match="loaded"):
        TorchEngine(tmp_path, Stage.REFERENCE)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match="loaded"):
        TorchEngine(tmp_path, Stage.REFERENCE)


def test_a_device_without_cuda_is_refused(tiny_policy):
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has CUDA")
    with pytest.raises(MissingToolError, match="CUDA"):
        TorchEngine(tiny_policy, Stage.REFERENCE, device="h100_sxm")
    with pytest.raises(ConfigError, match="cpu") as caught:
        TorchEngine(tiny_policy, Stage.REFERENCE, device="l4", torch_device="cuda:900")
    assert (caught.value.key, caught.value.value) == ("engine.offload.device", "cuda:900")


def test_a_token_outside_the_vocabulary_is_an_engine_fault(tiny_policy, make_rows):
    engine = TorchEngine(tiny_policy, Stage.REFERENCE)
    with pytest.raises(EngineCrashed):
        engine.logprobs(make_rows([5, 6, 10_000]))
    with pytest.raises(EngineError):
        engine.score(make_rows([5, 6]))
