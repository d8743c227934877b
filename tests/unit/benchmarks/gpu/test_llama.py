"""The model of the benchmarks is a Llama, with a cache and without."""

from __future__ import annotations

import pytest
import torch

from benchmarks.gpu.loads.generation import BUCKET, Generator, step_error
from benchmarks.gpu.loads.llama import EAGER, EPS, ROPE_THETA, Llama
from benchmarks.gpu.loads.stages import TrainingStep, random_tokens
from ecorl.devices.llama import model_shape
from ecorl.records import ModelShape

SHAPE = ModelShape(2, 64, 160, 4, 2, 16, 512, 0, 0)
CPU = torch.device("cpu")


@pytest.fixture
def model():
    return Llama(SHAPE, 256, device=CPU, dtype=torch.float32, seed=1)


@pytest.fixture
def tokens(model):
    return random_tokens(model, 3, 40)


def test_it_computes_what_transformers_does(model, tokens):
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=SHAPE.vocab_size, hidden_size=64, intermediate_size=160, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=16, rms_norm_eps=EPS,
        rope_theta=ROPE_THETA, tie_word_embeddings=True, attn_implementation="eager",
    )  # fmt: skip
    if hasattr(config, "rope_parameters"):
        config.rope_parameters = {"rope_type": "default", "rope_theta": ROPE_THETA}
    theirs, names = LlamaForCausalLM(config), {"q": "self_attn.q_proj", "k": "self_attn.k_proj"}
    names |= {"v": "self_attn.v_proj", "o": "self_attn.o_proj"}
    names |= {name: f"mlp.{name}_proj" for name in ("gate", "up", "down")}
    names |= {"attention_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"}
    weights = {
        "model.embed_tokens.weight": model.embedding.weight,
        "lm_head.weight": model.embedding.weight,
        "model.norm.weight": model.norm.weight,
    }
    for number, block in enumerate(model.blocks):
        for own, name in names.items():
            weights[f"model.layers.{number}.{name}.weight"] = getattr(block, own).weight
    theirs.load_state_dict(weights)
    with torch.no_grad():
        expected = theirs(input_ids=tokens).logits
        torch.testing.assert_close(model(tokens), expected, atol=1e-5, rtol=1e-4)


@torch.no_grad()
def test_steps_on_a_cache_are_those_of_the_whole(model, tokens):
    whole, cache = model(tokens), model.new_cache(3, BUCKET)
    torch.testing.assert_close(model.prefill(tokens[:, :30], cache), whole[:, 29])
    for at in range(30, 40):
        found = model.step(tokens[:, at], torch.tensor([at]), BUCKET, cache)
        torch.testing.assert_close(found, whole[:, at], atol=1e-5, rtol=1e-4)


def test_the_check_of_a_step_finds_a_wrong_piece(model, tokens):
    assert step_error(model, tokens, EAGER) < 1e-5
    wrong = EAGER._replace(turned_pair=lambda q, k, rope: (q, k))
    assert step_error(model, tokens, wrong) > 1e-3


@torch.no_grad()
def test_log_probs_are_of_the_completion_alone(model, tokens):
    expected = model(tokens).log_softmax(-1)[:, 9:-1].gather(-1, tokens[:, 10:, None])[..., 0]
    torch.testing.assert_close(model.log_probs(tokens, 10, at_once=7), expected)
    assert model.rewards(tokens).shape == (3,)


def test_every_token_is_generated_on_those_before(model, tokens):
    generator = Generator(model, tokens[:, :20], 100, graphs=False)
    generator.output.fill_(-1)
    generator.generate()
    assert generator.n_decoded == 3 * 99
    assert ((generator.output >= 0) & (generator.output < SHAPE.vocab_size)).all()
    # With weights that tell one token apart from all others the draw is that token.
    with torch.no_grad():
        model.embedding.weight.mul_(400.0)
    generator.generate()
    rows = torch.cat((tokens[:, :20], generator.output), 1)
    with torch.no_grad():
        likely = model(rows[:, :-1])[:, 19:].softmax(-1)
    chosen = likely.gather(-1, generator.output[..., None])
    assert (chosen > 1e-4).float().mean() > 0.97


def test_a_step_is_that_of_its_micro_batches(model):
    step = TrainingStep(model, 4, 16)
    loss = step.gradients()
    whole = [w.grad.clone() for w in model.parameters() if w.grad is not None]
    model.zero_grad()
    step._at_once = 1
    torch.testing.assert_close(step.gradients(), loss)
    trained = [w for w in model.parameters() if w.grad is not None]
    for grad, weight in zip(whole, trained, strict=True):
        torch.testing.assert_close(grad, weight.grad, atol=1e-5, rtol=1e-3)


def test_the_size_is_that_of_its_shape():
    shape = model_shape("160k")
    found = Llama(shape, 8, device=CPU, dtype=torch.bfloat16)
    assert sum(w.numel() for w in found.parameters()) == shape.n_params + shape.hidden_size
