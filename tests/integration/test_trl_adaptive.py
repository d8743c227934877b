"""TRL trainings with adaptive micro-batches: the same but for rounding, with less padding."""

from __future__ import annotations

import contextlib
import io
from collections import defaultdict

import pytest
from rich.console import Console

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

from trl import GRPOTrainer  # noqa: E402

from ecorl.config import load_config, validate_config  # noqa: E402
from ecorl.engines.packing import COMPARED_EVERY  # noqa: E402
from ecorl.errors import ConfigError  # noqa: E402
from ecorl.ledger import LedgerReader  # noqa: E402
from ecorl.records import Action, Stage  # noqa: E402
from ecorl.report import write_report  # noqa: E402
from roll_adapters.trl.packing.rule import PackingRule  # noqa: E402
from roll_adapters.trl_hooks import attach  # noqa: E402
from tests.integration.checks import BOTH, assert_same_bits, config, outcome  # noqa: E402
from tests.integration.tiny_trainer import tiny_trainer  # noqa: E402

TOKENS = 160
PACKED = {"trainer": {"adaptive_micro_batch": True, "micro_batch_tokens": TOKENS}}
UNEVEN = {"max_completion_length": 24, "optim": "sgd", "learning_rate": 0.05}
"""Completions of up to 24 tokens. Adam divides small gradients by themselves, and so turns rounding
into steps; SGD does not."""
AUTO = {"trainer": {"adaptive_micro_batch": True}}


def trained(tiny, tmp_path, name, settings=None, algorithm="grpo", **changes):
    trainer = tiny_trainer(tiny, tmp_path / f"out-{name}", algorithm, **(UNEVEN | changes))
    if settings is not None:
        attach(trainer, settings)
    trainer.train()
    return trainer


def metrics(folder):
    """What the record holds of packing: figure -> what -> values in the order of steps."""
    found = defaultdict(lambda: defaultdict(list))
    with contextlib.closing(LedgerReader(folder)) as reader:
        for row in reader.metrics():
            figure, slash, what = row.name.partition("/")
            if slash:
                found[figure][what].append(row.value)
    return found


def told(folder):
    """The text of a run's report."""
    printed = io.StringIO()
    write_report(folder, console=Console(file=printed, width=400))
    return printed.getvalue()


def assert_near(plain, other):
    one, two = outcome(plain), outcome(other)
    for mine, theirs in zip(one["log"], two["log"], strict=True):
        assert mine.keys() == theirs.keys()
        for key, value in mine.items():
            assert float(theirs[key]) == pytest.approx(float(value), rel=1e-5, abs=2e-5), key
    for name, weight in one["weights"].items():
        assert torch.allclose(weight, two["weights"][name], rtol=0, atol=1e-5), name
    keys = {key for row in plain.state.log_history for key in row}
    assert keys <= {key for row in other.state.log_history for key in row}


@pytest.mark.parametrize(
    ("algorithm", "changes"),
    [
        ("grpo", {}),
        ("grpo", {"loss_type": "grpo", "gradient_accumulation_steps": 2, "num_iterations": 2,
                  "per_device_train_batch_size": 8}),
        ("rloo", {}),
        ("rloo", {"gradient_accumulation_steps": 2, "per_device_train_batch_size": 8}),
    ],
)  # fmt: skip
def test_a_training_is_the_same_but_for_rounding_and_says_what_it_saved(
    tiny, tmp_path, algorithm, changes
):
    plain = trained(tiny, tmp_path, "plain", None, algorithm, **changes)
    packed = trained(
        tiny, tmp_path, "packed", config(tmp_path, algorithm, more=PACKED), algorithm, **changes
    )
    assert_near(plain, packed)
    found = metrics(tmp_path / "run")
    whats = {"reward", "reference", "actor_train"}
    if algorithm == "rloo" or changes:
        whats |= {"old_log_probs"}
    assert set(found["computed_tokens"]) == whats
    for what in whats:
        computed, unpacked = found["computed_tokens"][what], found["unpacked_tokens"][what]
        assert sum(computed) < 0.95 * sum(unpacked)
        assert all(t <= c for t, c in zip(found["tokens"][what], computed, strict=True))
        assert max(found["micro_batches"][what]) > 1
        (difference,) = found["packing_difference"][what]
        assert 0 <= difference < 1e-5
    assert len(found["computed_tokens"]["actor_train"]) == 4
    said = told(tmp_path / "run")
    assert "adaptive micro-batches left out" in said
    assert "of the largest value at most (" in said


def test_off_changes_no_bit_and_leaves_no_trace(tiny, tmp_path):
    plain = trained(tiny, tmp_path, "plain")
    off = config(tmp_path, more={"trainer": {"adaptive_micro_batch": False}})
    attached = trained(tiny, tmp_path, "attached", off)
    assert_same_bits(outcome(plain), outcome(attached))
    assert metrics(tmp_path / "run") == {}
    assert "adaptive micro-batches" not in told(tmp_path / "run")


def test_results_are_compared_again_after_many_steps(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr("roll_adapters.trl.packing.forwards.COMPARED_EVERY", 3)
    assert COMPARED_EVERY > 3
    plain = trained(tiny, tmp_path, "plain", max_steps=5)
    packed = trained(tiny, tmp_path, "packed", config(tmp_path, more=PACKED), max_steps=5)
    assert_near(plain, packed)
    differences = metrics(tmp_path / "run")["packing_difference"]
    assert {what: len(values) for what, values in differences.items()} == {
        "reward": 2, "reference": 2, "actor_train": 2,
    }  # fmt: skip


def test_a_budget_that_is_not_set_is_chosen_by_what_it_saves(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr("roll_adapters.trl.packing.rule._FIXED_TOKENS", {"cpu": 10})
    packed = trained(tiny, tmp_path, "packed", config(tmp_path, more=AUTO))
    plain = trained(tiny, tmp_path, "plain")
    assert_near(plain, packed)
    found = metrics(tmp_path / "run")
    assert sum(found["computed_tokens"]["actor_train"]) < sum(
        found["unpacked_tokens"]["actor_train"]
    )


FAULTS = [
    {"kind": "raise", "calls": [1]},
    {"kind": "nan", "calls": [2], "rows": [2, 5, 9]},
]


@pytest.mark.parametrize("algorithm", ["grpo", "rloo"])
def test_an_engine_packs_too_and_so_does_the_trainer_for_rows_that_it_missed(
    tiny, tmp_path, algorithm
):
    plain = trained(tiny, tmp_path, "plain", None, algorithm)
    engine = {"offload": {"type": "torch", "isolated": False}, "faults": FAULTS}
    settings = config(tmp_path, algorithm, policy=BOTH, engine=engine, max_faults=100, more=PACKED)
    packed = trained(tiny, tmp_path, "packed", settings, algorithm)
    assert_near(plain, packed)
    with contextlib.closing(LedgerReader(tmp_path / "run")) as reader:
        missed = {(row.where, row.n_rows) for row in reader.faults()}
        rows = [row.result for row in reader.executions()]
    assert missed == {(role, n) for role in ("reward", "reference") for n in (16, 3)}
    asked = [r for r in rows if r.stage is Stage.REFERENCE and r.action is Action.CONCURRENT]
    assert len(asked) == 4
    found = metrics(tmp_path / "run")
    for role in ("reward", "reference"):
        tokens, unpacked = found["tokens"][role], found["unpacked_tokens"][role]
        assert len(tokens) == 4
        # What an engine computed and what the trainer computed for it: three rows twice.
        assert sum(found["computed_tokens"][role]) < 0.95 * sum(unpacked)
        assert tokens[2] > found["tokens"]["actor_train"][2] * 0.9
        assert all(0 <= d < 1e-5 for d in found["packing_difference"][role])
        assert found["packing_difference"][role]


def test_a_card_computes_no_padding_and_has_nothing_to_pack(tiny, tmp_path):
    settings = config(tmp_path, policy=BOTH, more=PACKED)
    trained(tiny, tmp_path, "packed", settings, max_steps=2)
    assert set(metrics(tmp_path / "run")["computed_tokens"]) == {"actor_train"}


def test_each_reward_model_is_packed_and_functions_stay(tiny, tmp_path):
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    def length(completions, **_):
        return [len(text) / 10 for text in completions]

    def parts():
        models = [
            AutoModelForSequenceClassification.from_pretrained(
                tiny.reward, dtype=torch.float32, num_labels=1
            ).eval()
            for _ in range(2)
        ]
        with torch.no_grad():
            models[1].score.weight.mul_(-0.3)
        tokenizer = AutoTokenizer.from_pretrained(tiny.reward)
        return {
            "reward_funcs": [models[0], length, models[1]],
            "reward_processing_classes": [tokenizer, None, tokenizer],
        }

    plain = trained(tiny, tmp_path, "plain", parts=parts())
    packed = trained(tiny, tmp_path, "packed", config(tmp_path, more=PACKED), parts=parts())
    assert_near(plain, packed)
    roles = {what for what in metrics(tmp_path / "run")["tokens"] if what.startswith("reward")}
    assert len(roles) == 2
    assert all("forward" not in vars(model) for model in packed.reward_funcs if model is not length)
    with contextlib.closing(LedgerReader(tmp_path / "run")) as reader:
        rows = [row.result for row in reader.executions() if row.result.stage is Stage.REWARD]
    assert {r.role for r in rows} == roles | {"reward:length", "reward:other"}


def test_an_adapter_s_own_reference_is_packed_as_the_reference(tiny, tmp_path):
    peft = pytest.importorskip("peft")

    def parts():
        torch.manual_seed(5)
        lora = peft.LoraConfig(
            r=4, lora_alpha=16, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"
        )
        return {"peft_config": lora}

    plain = trained(tiny, tmp_path, "plain", parts=parts(), num_iterations=2)
    packed = trained(
        tiny, tmp_path, "packed", config(tmp_path, more=PACKED), parts=parts(), num_iterations=2
    )
    assert_near(plain, packed)
    found = metrics(tmp_path / "run")
    assert set(found["tokens"]) == {"reward", "reference", "old_log_probs", "actor_train"}
    assert max(found["packing_difference"]["reference"]) < 1e-5


# ---------------------------------------------------------------- gears


def geared(tmp_path, name, **gears):
    found = {"allowed": ["BF16", "FP8"], "simulate_fp8": True, "measure_every": 0} | gears
    return config(tmp_path / name, more=PACKED | {"gears": found})


def losses_of(trainer):
    return [row["loss"] for row in trainer.state.log_history if "loss" in row]


def test_a_packed_step_that_overflows_is_computed_anew_from_the_same_rows(
    tiny, tmp_path, monkeypatch
):
    """FP16 with a scale that is far too large, against BF16 alone."""
    pytest.importorskip("torchao")
    from ecorl.control import Gear
    from ecorl.runtime.local import LocalRuntime
    from tests.integration.gear_script import asking

    wanted = trained(tiny, tmp_path, "bf16", geared(tmp_path, "bf16", allowed=["BF16"]))
    monkeypatch.setattr(LocalRuntime, "tick", asking([Gear.FP16] * 9))
    settings = geared(tmp_path, "fp16", allowed=["BF16", "FP16"])
    trainer = tiny_trainer(tiny, tmp_path / "out-fp16", **UNEVEN)
    attachment = attach(trainer, settings)
    attachment.gears._scaler = torch.amp.GradScaler("cpu", init_scale=2.0**120)
    trainer.train()
    with contextlib.closing(LedgerReader(settings.resolved_run_dir())) as reader:
        kinds = [row.kind for row in reader.faults()]
    assert kinds == ["GearOverflow"] * 3 + ["GearRetired"]
    assert_same_bits(outcome(wanted), outcome(trainer))


def test_a_packed_step_in_fp16_is_scaled_in_all_of_its_parts(tiny, tmp_path, monkeypatch):
    pytest.importorskip("torchao")
    from ecorl.control import Gear
    from ecorl.runtime.local import LocalRuntime
    from tests.integration.gear_script import asking

    plain = trained(tiny, tmp_path, "plain")
    monkeypatch.setattr(LocalRuntime, "tick", asking([Gear.FP16] * 9))
    settings = geared(tmp_path, "fp16", allowed=["BF16", "FP16"])
    trainer = tiny_trainer(tiny, tmp_path / "out-fp16", **UNEVEN)
    attachment = attach(trainer, settings)
    attachment.gears._scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    trainer.train()
    # FP16 keeps three digits; gradients that were scaled in part would be off by a thousand.
    norms = [[row["grad_norm"] for row in t.state.log_history if "grad_norm" in row]
             for t in (plain, trainer)]  # fmt: skip
    assert norms[1][0] == pytest.approx(norms[0][0], rel=0.05)
    assert losses_of(trainer)[0] == pytest.approx(losses_of(plain)[0], abs=0.02)


# ---------------------------------------------------------------- what is taken, and what refused


def test_attach_takes_the_keys_of_micro_batches_and_names_the_others(tiny, tmp_path, caplog):
    path = tmp_path / "ecorl.toml"
    keys = "adaptive_micro_batch = true\nmicro_batch_tokens = 160\nsteps = 3"
    path.write_text(f'name = "mine"\nrun_dir = "{tmp_path}/run"\n[trainer]\n{keys}\n')
    trainer = tiny_trainer(tiny, tmp_path / "out", max_steps=1, **UNEVEN)
    attachment = attach(trainer, path)
    assert "attach does not use ['trainer.steps']" in caplog.text
    assert attachment.packing is not None
    trainer.train()
    assert metrics(tmp_path / "run")["computed_tokens"]["actor_train"]


def test_with_these_keys_alone_attach_says_nothing(tiny, tmp_path, caplog):
    path = tmp_path / "ecorl.toml"
    path.write_text(f'run_dir = "{tmp_path}/run"\n[trainer]\nadaptive_micro_batch = true\n')
    attach(tiny_trainer(tiny, tmp_path / "out"), path).detach()
    assert "does not use" not in caplog.text
    assert load_config(str(path)).trainer.adaptive_micro_batch


def test_ecorl_run_packs_the_rows_of_its_own_trainer(tiny, tmp_path):
    from roll_adapters.trl.run import run

    settings = {
        "name": "own",
        "task": {
            "type": "files", "policy": str(tiny.policy), "reward": str(tiny.reward),
            "prompts": str(tiny.prompts),
        },
        "trainer": PACKED["trainer"] | {
            "steps": 2, "per_device_batch_size": 16, "num_generations": 4,
            "max_completion_length": 24,
        },
        "placement": {"policy": {"type": "static"}},
    }  # fmt: skip
    assert run(validate_config(settings), tmp_path / "run", Console(file=io.StringIO()))
    found = metrics(tmp_path / "run")
    assert set(found["tokens"]) == {"reward", "reference", "actor_train"}
    assert all(len(values) == 2 for values in found["computed_tokens"].values())
    assert "adaptive micro-batches left out" in told(tmp_path / "run")


def model_with(tiny, **settings):
    from transformers import AutoConfig, AutoModelForCausalLM

    shape = AutoConfig.from_pretrained(tiny.policy, **settings)
    return {"model": AutoModelForCausalLM.from_config(shape)}


@pytest.mark.parametrize(
    ("changes", "model", "said"),
    [
        ({"top_entropy_quantile": 0.5}, {}, "depends on all other rows"),
        ({"torch_compile": True}, {}, "compile the model anew"),
        ({"optim": "galore_adamw_layerwise"}, {}, "steps within each backward pass"),
        ({"neftune_noise_alpha": 5.0}, {}, "draws random numbers"),
        ({}, {"attention_dropout": 0.1}, "draws random numbers"),
        (
            {},
            {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}},
            "positions of the policy are scaled by the length of a batch (dynamic)",
        ),
    ],
)
def test_what_would_change_more_than_rounding_is_refused_before_anything_is_written(
    tiny, tmp_path, changes, model, said
):
    parts = model_with(tiny, **model) if model else {}
    trainer = tiny_trainer(tiny, tmp_path / "out", parts=parts, beta=0.0, **changes)
    with pytest.raises(ConfigError) as caught:
        attach(trainer, config(tmp_path, more=AUTO))
    assert caught.value.key == "trainer.adaptive_micro_batch"
    assert caught.value.allowed.startswith("false: ")
    assert said in caught.value.allowed
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()
    attach(trainer, config(tmp_path)).detach()


def test_a_budget_without_packing_is_refused():
    with pytest.raises(ConfigError) as caught:
        validate_config({"trainer": {"micro_batch_tokens": 100}})
    assert caught.value.key == "trainer.micro_batch_tokens"
    assert "trainer.adaptive_micro_batch" in caught.value.allowed
    assert validate_config(PACKED).trainer.micro_batch_tokens == TOKENS


def test_a_loss_with_a_term_of_its_own_is_refused(tiny, tmp_path):
    """It would go backward once for each part of the rows."""

    class Penalised(GRPOTrainer):
        def _compute_loss(self, model, inputs):
            return super()._compute_loss(model, inputs) + 0.01 * sum(
                p.square().sum() for p in model.parameters()
            )

    class Named(GRPOTrainer):
        """A trainer whose loss is TRL's."""

    for kind, is_taken in ((Penalised, False), (Named, True)):
        trainer = tiny_trainer(tiny, tmp_path / kind.__name__, **UNEVEN)
        trainer.__class__ = kind
        if is_taken:
            attach(trainer, config(tmp_path, more=AUTO)).detach()
            continue
        with pytest.raises(ConfigError) as caught:
            attach(trainer, config(tmp_path, more=AUTO))
        assert "_compute_loss of this Penalised is not TRL's own" in caught.value.allowed
        assert not (tmp_path / "run").exists()
    trainer = tiny_trainer(tiny, tmp_path / "replaced", **UNEVEN)
    trainer._compute_loss = lambda model, inputs: GRPOTrainer._compute_loss(trainer, model, inputs)
    with pytest.raises(ConfigError, match="is not TRL's own"):
        attach(trainer, config(tmp_path, more=AUTO))


def test_training_in_fp8_is_not_packed_and_scoring_is(tiny, tmp_path, monkeypatch):
    pytest.importorskip("torchao")
    from ecorl.control import Gear
    from ecorl.runtime.local import LocalRuntime
    from tests.integration.gear_script import asking

    wanted = [Gear.BF16, Gear.FP8, Gear.FP8, Gear.BF16, Gear.BF16, Gear.BF16]
    monkeypatch.setattr(LocalRuntime, "tick", asking(wanted))
    settings = geared(tmp_path, "fp8", allowed=["BF16", "FP8"], simulate_fp8=True)
    trained(tiny, tmp_path, "fp8", settings)
    with contextlib.closing(LedgerReader(settings.resolved_run_dir())) as reader:
        rows = [row.result for row in reader.executions() if row.result.gear is not None]
        steps = {r.iteration: r.gear for r in rows}
        packed = {
            row.name.partition("/")[2]: set() for row in reader.metrics() if "tokens/" in row.name
        }
        for row in reader.metrics("computed_tokens/actor_train"):
            packed["actor_train"].add(row.iteration)
        for row in reader.metrics("computed_tokens/reward"):
            packed["reward"].add(row.iteration)
    assert {"BF16", "FP8 simulated"} <= set(steps.values())
    assert packed["actor_train"] == {step for step, gear in steps.items() if gear == "BF16"}
    assert packed["reward"] == set(steps)


def test_a_comparison_that_fails_is_a_fault_in_the_record_and_no_more(tiny, tmp_path, monkeypatch):
    from roll_adapters.trl.packing import forwards

    plain = trained(tiny, tmp_path, "plain", config(tmp_path / "a", more=PACKED))

    def fail(*_):
        raise RuntimeError("CUDA out of memory")

    monkeypatch.setattr(forwards, "_apart", fail)
    packed = trained(tiny, tmp_path, "packed", config(tmp_path / "b", more=PACKED))
    assert_same_bits(outcome(plain), outcome(packed))
    with contextlib.closing(LedgerReader(tmp_path / "b" / "run")) as reader:
        (fault,) = reader.faults()
    assert (fault.kind, fault.where) == ("RuntimeError", "packing")
    assert "were not compared" in fault.detail
    assert "were not compared" in told(tmp_path / "b" / "run")


def test_a_budget_above_the_trainer_s_own_pass_counts_as_that():
    lengths = [[3, 4], [2, 2]]
    assert PackingRule(8192, 128).budget(lengths, 14) == 14
    assert PackingRule(10, 128).budget(lengths, 14) == 10
