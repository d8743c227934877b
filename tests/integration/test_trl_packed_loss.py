"""TRL's own losses over packed rows: value, gradient and log are those of the whole micro-batch."""

from __future__ import annotations

import logging

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

from transformers import Trainer  # noqa: E402
from trl import GRPOTrainer  # noqa: E402

from ecorl.config import validate_config  # noqa: E402
from roll_adapters.trl.gears.micro_batches import TrainerMemory, prepared, replaced  # noqa: E402
from roll_adapters.trl.packing.loss import unscaled  # noqa: E402
from roll_adapters.trl.packing.packed_trainer import TrlPacking  # noqa: E402
from tests.integration.tiny_trainer import tiny_trainer  # noqa: E402

LOG_PROBS = "_get_per_token_logps_and_entropies"
N_ROWS, N_PROMPT, N_KEEP = 10, 9, 20

LOSSES = {
    "grpo": {"loss_type": "grpo"},
    "grpo by sequence": {"loss_type": "grpo", "importance_sampling_level": "sequence"},
    "bnpo": {"loss_type": "bnpo"},
    "dr_grpo": {"loss_type": "dr_grpo"},
    "dapo": {"loss_type": "dapo"},
    "luspo": {"loss_type": "luspo", "importance_sampling_level": "sequence"},
    "cispo": {"loss_type": "cispo", "epsilon_high": 5.0},
    "sapo": {"loss_type": "sapo"},
    "vespo": {"loss_type": "vespo"},
    "two-sided clipping": {"loss_type": "dapo", "delta": 1.5},
    "unbiased KL": {"loss_type": "grpo", "use_bias_correction_kl": True},
    "off-policy mask": {"loss_type": "grpo", "off_policy_mask_threshold": 0.05},
    "entropy bonus": {"loss_type": "grpo", "entropy_coef": 0.1},
    "adaptive entropy bonus": {
        "loss_type": "dapo", "use_adaptive_entropy": True, "entropy_coef": 0.1,
        "entropy_target": 10.0,
    },
    "accumulation": {"loss_type": "dapo", "gradient_accumulation_steps": 2},
}  # fmt: skip


def rows(algorithm, *, is_off_policy):
    """A micro-batch as TRL's rollout leaves it: long and short rows, one of them without a token.

    Such a row is one that was cut off and is masked.
    """
    generator = torch.Generator().manual_seed(8)

    def draw(*shape):
        return torch.randn(shape, generator=generator)

    prompts = torch.tensor([3, 9, 4, 2, 6, 2, 3, 8, 5, 2])
    completions = torch.tensor([20, 2, 3, 0, 1, 19, 2, 4, 3, 2])
    prompt_mask = (torch.arange(N_PROMPT) >= N_PROMPT - prompts.unsqueeze(1)).long()
    completion_mask = (torch.arange(N_KEEP) < completions.unsqueeze(1)).long()
    ids = torch.randint(3, 14, (N_ROWS, N_PROMPT + N_KEEP), generator=generator)
    found = {
        "prompt_ids": ids[:, :N_PROMPT] * prompt_mask,
        "prompt_mask": prompt_mask,
        "completion_ids": ids[:, N_PROMPT:] * completion_mask,
        "completion_mask": completion_mask,
        "advantages": draw(N_ROWS),
        "num_items_in_batch": completion_mask.sum(),
        "ref_per_token_logps": -2.5 + 0.5 * draw(N_ROWS, N_KEEP),
    }
    if algorithm == "rloo":
        found["old_logps"] = -2.6 * completions + 0.2 * draw(N_ROWS)
    elif is_off_policy:
        found["old_per_token_logps"] = -2.6 + 0.3 * draw(N_ROWS, N_KEEP)
    return found


def stepped(trainer, inputs, compute_loss):
    """One micro-batch forward and backward: the loss, the gradients and the log."""
    trainer.model.zero_grad(set_to_none=True)
    trainer._metrics["train"].clear()
    trainer.current_gradient_accumulation_steps = trainer.args.gradient_accumulation_steps
    with prepared(trainer), replaced(trainer, "compute_loss", compute_loss):
        loss = Trainer.training_step(trainer, trainer.model, inputs, None)
    gradients = {name: p.grad.clone() for name, p in trainer.model.named_parameters()}
    return loss, gradients, {key: list(v) for key, v in trainer._metrics["train"].items()}


def packing_of(trainer, tokens=40):
    settings = {"adaptive_micro_batch": True, "micro_batch_tokens": tokens}
    return TrlPacking(trainer, validate_config({"trainer": settings}))


def packed_loss(trainer, packing, scaled=unscaled):
    own = trainer.compute_loss
    return packing.loss.wrapped(own, getattr(trainer, LOG_PROBS), scaled)


def noted(packing):
    return packing.tally._found["actor_train"]


def assert_near(one, other):
    for name, gradient in one.items():
        size = float(gradient.abs().max())
        assert torch.allclose(gradient, other[name], rtol=0, atol=1e-5 * size + 1e-9), name


@pytest.mark.parametrize("is_off_policy", [True, False])
@pytest.mark.parametrize("name", [*LOSSES, "rloo"])
def test_loss_gradient_and_log_are_those_of_all_rows_together(tiny, tmp_path, name, is_off_policy):
    algorithm = "rloo" if name == "rloo" else "grpo"
    trainer = tiny_trainer(tiny, tmp_path, algorithm, **LOSSES.get(name, {}))
    inputs = rows(algorithm, is_off_policy=is_off_policy)
    memory = TrainerMemory.of(trainer)
    loss, gradients, log = stepped(trainer, inputs, trainer.compute_loss)
    coefficient = trainer.__dict__.get("entropy_coef")
    memory.restore(trainer)
    packing = packing_of(trainer)
    other = stepped(trainer, inputs, packed_loss(trainer, packing))
    assert noted(packing).n_micro_batches > 3
    assert noted(packing).n_computed < 0.6 * noted(packing).n_unpacked
    assert float(other[0]) == pytest.approx(float(loss), rel=1e-5, abs=1e-6)
    assert any(gradient.any() for gradient in gradients.values())
    assert_near(gradients, other[1])
    assert other[2].keys() == log.keys()
    for key, values in log.items():
        assert other[2][key] == pytest.approx(values, rel=1e-5, abs=1e-6, nan_ok=True), key
    assert trainer.__dict__.get("entropy_coef") == coefficient


@pytest.mark.parametrize("algorithm", ["grpo", "rloo"])
def test_each_row_may_be_a_micro_batch_of_its_own_also_one_without_a_token(
    tiny, tmp_path, algorithm
):
    trainer = tiny_trainer(tiny, tmp_path, algorithm)
    inputs = rows(algorithm, is_off_policy=True)
    loss, gradients, _ = stepped(trainer, inputs, trainer.compute_loss)
    packing = packing_of(trainer, tokens=1)
    other = stepped(trainer, inputs, packed_loss(trainer, packing))
    assert noted(packing).n_micro_batches == N_ROWS
    # The row without a completion has one column for it.
    assert noted(packing).n_computed == noted(packing).n_tokens + 1
    assert float(other[0]) == pytest.approx(float(loss), rel=1e-5, abs=1e-6)
    assert_near(gradients, other[1])


def test_a_loss_that_is_scaled_goes_backward_scaled_in_all_parts(tiny, tmp_path):
    trainer = tiny_trainer(tiny, tmp_path)
    inputs = rows("grpo", is_off_policy=True)
    _, gradients, _ = stepped(trainer, inputs, trainer.compute_loss)
    packing = packing_of(trainer)
    loss = packed_loss(trainer, packing, lambda part: 64 * part)
    scaled = stepped(trainer, inputs, lambda *a, **k: 64 * loss(*a, **k))[1]
    assert noted(packing).n_micro_batches > 3
    assert_near(gradients, {name: gradient / 64 for name, gradient in scaled.items()})


def test_rows_that_fit_into_one_micro_batch_without_padding_give_the_same_bits(tiny, tmp_path):
    trainer = tiny_trainer(tiny, tmp_path)
    inputs = rows("grpo", is_off_policy=True)
    plain = stepped(trainer, inputs, trainer.compute_loss)
    packing = packing_of(trainer, tokens=10_000)
    other = stepped(trainer, inputs, packed_loss(trainer, packing))
    assert noted(packing).n_micro_batches == 1
    assert torch.equal(plain[0], other[0])
    assert all(torch.equal(plain[1][name], other[1][name]) for name in plain[1])
    assert plain[2] == other[2]


def gpt2():
    """A policy whose positions are learned one by one, and count padding."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(5)
    shape = {
        "vocab_size": 16, "n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 4,
        "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "initializer_range": 0.3,
    }  # fmt: skip
    drop = dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop"), 0.0)
    return GPT2LMHeadModel(GPT2Config(**shape, **drop))


def test_a_model_that_counts_the_padding_before_a_row_keeps_it(tiny, tmp_path):
    trainer = tiny_trainer(tiny, tmp_path, parts={"model": gpt2()}, beta=0.0)
    inputs = rows("grpo", is_off_policy=True)
    loss, gradients, _ = stepped(trainer, inputs, trainer.compute_loss)
    packing = packing_of(trainer, tokens=80)
    other = stepped(trainer, inputs, packed_loss(trainer, packing))
    assert noted(packing).n_micro_batches > 2
    assert noted(packing).n_computed < 0.8 * noted(packing).n_unpacked
    assert float(other[0]) == pytest.approx(float(loss), rel=1e-5, abs=1e-6)
    assert_near(gradients, other[1])
    # With less padding before the rows it would not be the same.
    moved = dict(inputs)
    for key in ("prompt_ids", "prompt_mask"):
        moved[key] = torch.cat([torch.zeros(N_ROWS, 3, dtype=torch.long), inputs[key]], dim=1)
    assert float(stepped(trainer, moved, trainer.compute_loss)[0]) != pytest.approx(
        float(loss), rel=1e-3
    )


class OwnForward(GRPOTrainer):
    """A loss that asks the model itself."""

    def _compute_loss(self, model, inputs):
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
        return model(input_ids=ids).logits.float().square().mean()


def test_a_loss_that_takes_its_log_probs_from_elsewhere_is_left_as_it_is(tiny, tmp_path, caplog):
    trainer = tiny_trainer(tiny, tmp_path)
    trainer.__class__ = OwnForward
    inputs = rows("grpo", is_off_policy=True)
    loss, gradients, _ = stepped(trainer, inputs, trainer.compute_loss)
    packing = packing_of(trainer)
    compute_loss = packed_loss(trainer, packing)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            other = stepped(trainer, inputs, compute_loss)
            assert torch.equal(other[0], loss)
            assert all(torch.equal(other[1][name], g) for name, g in gradients.items())
    assert caplog.text.count("this OwnForward takes its log-probs from elsewhere") == 1
    assert "actor_train" not in packing.tally._found
