"""The training stage of a TRL trainer in other gears: what changes, and what does not."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("trl")
pytest.importorskip("torchao")

from ecorl.config import validate_config  # noqa: E402
from ecorl.control import Gear  # noqa: E402
from ecorl.edi import EdiMatrix  # noqa: E402
from ecorl.errors import ConfigError  # noqa: E402
from ecorl.ledger import LedgerReader  # noqa: E402
from ecorl.records import Stage  # noqa: E402
from ecorl.runtime.local import LocalRuntime  # noqa: E402
from roll_adapters.trl_hooks import attach  # noqa: E402
from tests.integration.tiny_trainer import tiny_trainer  # noqa: E402


def config_of(tmp_path, name="run", **gears):
    found = {"allowed": ["BF16", "FP8"], "simulate_fp8": True, "measure_every": 0} | gears
    return validate_config(
        {
            "name": name,
            "run_dir": str(tmp_path / name),
            "gears": {key: value for key, value in found.items() if value is not None},
            "placement": {"policy": {"type": "static", "reward": "gpu", "reference": "gpu"}},
        }
    )


def weights_of(trainer):
    return {name: p.detach().clone() for name, p in trainer.model.named_parameters()}


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def losses_of(trainer):
    return [row["loss"] for row in trainer.state.log_history if "loss" in row]


@pytest.fixture
def scripted(monkeypatch):
    """Has the control path ask for gears, step by step; returns what it was told meanwhile."""

    def script(gears):
        asked, told = iter(gears), []
        own = LocalRuntime.tick

        def tick(self, *args, **kwargs):
            told.append(kwargs["stage"])
            return replace(own(self, *args, **kwargs), gear=next(asked))

        monkeypatch.setattr(LocalRuntime, "tick", tick)
        return told

    return script


def trained(tiny, tmp_path, config=None, name="plain", **changes):
    trainer = tiny_trainer(tiny, tmp_path / f"out-{name}", **changes)
    attachment = None if config is None else attach(trainer, config)
    trainer.train()
    return trainer, attachment


def executions(config):
    with contextlib.closing(LedgerReader(config.resolved_run_dir())) as reader:
        rows = [row.result for row in reader.executions()]
    return [row for row in rows if row.stage is Stage.ACTOR_TRAIN and row.n_output_tokens]


def read(config, what):
    with contextlib.closing(LedgerReader(config.resolved_run_dir())) as reader:
        return getattr(reader, what)()


@pytest.mark.parametrize(("own", "bf16"), [("FP32", False), ("BF16", True)])
def test_the_trainer_s_own_gear_changes_no_bit(tiny, tmp_path, own, bf16):
    config = config_of(tmp_path, allowed=[own])
    plain, _ = trained(tiny, tmp_path, bf16=bf16)
    geared, _ = trained(tiny, tmp_path, config, "geared", bf16=bf16)
    assert losses_of(plain) == losses_of(geared)
    assert same(weights_of(plain), weights_of(geared))
    assert {row.gear for row in executions(config)} == {own}
    assert {row.width for row in executions(config)} == {1}


def test_bf16_as_a_gear_trains_as_bf16_of_the_trainer_s_own_in_the_training_stage(tiny, tmp_path):
    # One step on the same completions: the trainer's own precision shows in generation as well.
    own, _ = trained(tiny, tmp_path, bf16=True, beta=0.0, max_steps=1, temperature=1e-4)
    config = config_of(tmp_path, allowed=["BF16"])
    geared, _ = trained(tiny, tmp_path, config, "geared", beta=0.0, max_steps=1, temperature=1e-4)
    assert losses_of(own) == pytest.approx(losses_of(geared), abs=1e-7)


def test_gears_are_shifted_between_steps_and_recorded(tiny, tmp_path, scripted):
    asked = [Gear.BF16, Gear.FP8, Gear.FP8, Gear.FP32, Gear.FP16, None, Gear.BF16]
    scripted(asked)
    config = config_of(tmp_path, allowed=["BF16", "FP8", "FP32", "FP16"])
    seen = []
    trainer = tiny_trainer(tiny, tmp_path / "out", max_steps=len(asked))
    own_generate = trainer._generate
    trainer._generate = lambda *a, **k: (seen.append(layer_of(trainer)), own_generate(*a, **k))[1]
    own_forward = trainer.model.forward
    attach(trainer, config)
    trainer.train()
    names = [row.gear for row in executions(config)]
    assert names == ["BF16", "FP8 simulated", "FP8 simulated", "FP32", "FP16", "FP16", "BF16"]
    # Generation never saw a gear, and the model is the trainer's own again.
    assert set(seen) == {"Linear"}
    assert layer_of(trainer) == "Linear"
    assert trainer.model.forward == own_forward
    assert {p.dtype for p in trainer.model.parameters()} == {torch.float32}
    assert all(torch.isfinite(p).all() for p in trainer.model.parameters())
    edi = EdiMatrix.from_json(read(config, "edi")[-1].json)
    variants = {cell.variant for cell in edi.cells() if cell.stage is Stage.ACTOR_TRAIN}
    assert {"BF16", "FP8 simulated", "FP32", "FP16"} <= variants


def layer_of(trainer):
    return type(trainer.model.model.layers[0].mlp.up_proj).__name__


def test_a_run_in_fp8_differs_from_bf16_but_little(tiny, tmp_path, scripted):
    bf16, _ = trained(tiny, tmp_path, config_of(tmp_path, "bf16", allowed=["BF16"]), "bf16")
    scripted([Gear.FP8] * 9)
    fp8, _ = trained(tiny, tmp_path, config_of(tmp_path, "fp8"), "fp8")
    assert not same(weights_of(bf16), weights_of(fp8))
    assert losses_of(fp8)[0] == pytest.approx(losses_of(bf16)[0], abs=0.02)


def broken(trainer, at):
    """Has the FP8 layers give nan in some steps."""
    from ecorl.trainer.gears.geared_model import GearedModel

    own = GearedModel.engage
    state = {"n": 0}

    def engage(self, gear):
        own(self, gear)
        if gear is Gear.FP8 and trainer.state.global_step in at:
            inner = self._model.__dict__["forward"]

            def forward(*args, **kwargs):
                output = inner(*args, **kwargs)
                state["n"] += 1
                output.log_probs = output.log_probs * float("nan")
                return output

            self._model.__dict__["forward"] = forward

    return engage


@pytest.mark.parametrize("accumulation", [1, 2])
def test_a_step_that_overflows_is_computed_anew_in_bf16_from_the_same_rows(
    tiny, tmp_path, scripted, monkeypatch, accumulation
):
    from ecorl.trainer.gears.geared_model import GearedModel

    changes = {
        "gradient_accumulation_steps": accumulation,
        "per_device_train_batch_size": 16 // accumulation,
        "max_steps": 4,
    }
    bf16 = config_of(tmp_path, "bf16", allowed=["BF16"])
    wanted, _ = trained(tiny, tmp_path, bf16, "bf16", **changes)
    told = scripted([Gear.BF16, Gear.FP8, Gear.FP8, Gear.BF16])
    config = config_of(tmp_path, "fp8")
    trainer = tiny_trainer(tiny, tmp_path / "out-fp8", **changes)
    attachment = attach(trainer, config)
    monkeypatch.setattr(GearedModel, "engage", broken(trainer, {1, 2}))
    trainer.train()
    assert [stage.is_redone for stage in told] == [False, False, True, True]
    assert same(weights_of(wanted), weights_of(trainer))
    assert losses_of(trainer) == pytest.approx(losses_of(wanted), abs=1e-6)
    entropies = [row["entropy"] for row in trainer.state.log_history if "entropy" in row]
    assert entropies == [row["entropy"] for row in wanted.state.log_history if "entropy" in row]
    faults = [(row.iteration, row.kind) for row in read(config, "faults")]
    assert faults == [(2, "GearOverflow"), (3, "GearOverflow")]
    assert attachment.gears.box.n_overflows(Gear.FP8) == 2
    # A micro-batch before the last one has ended in the gear that it was computed in at first.
    begun = ["FP8 simulated"] * (accumulation - 1)
    gears = [row.gear for row in executions(config)]
    assert gears == [*["BF16"] * accumulation, *[*begun, "BF16"] * 2, *["BF16"] * accumulation]


def entropy_bonus():
    """A bonus that follows the entropy of the steps before, and so counts the loss's calls."""
    return {"use_adaptive_entropy": True, "entropy_coef": 0.01, "entropy_target": 10.0,
            "entropy_coef_delta": 0.005}  # fmt: skip


def test_a_repetition_leaves_alone_what_the_trainer_counts_on(
    tiny, tmp_path, scripted, monkeypatch
):
    """An entropy bonus moves on once a step, and a generation between micro-batches is logged."""
    from ecorl.trainer.gears.geared_model import GearedModel

    changes = entropy_bonus() | {
        "gradient_accumulation_steps": 2, "per_device_train_batch_size": 8,
        "steps_per_generation": 1, "max_steps": 3,
    }  # fmt: skip
    bf16 = config_of(tmp_path, "bf16", allowed=["BF16"])
    wanted, _ = trained(tiny, tmp_path, bf16, "bf16", **changes)
    scripted([Gear.FP8, Gear.FP8, Gear.BF16])
    trainer = tiny_trainer(tiny, tmp_path / "out-fp8", **changes)
    attach(trainer, config_of(tmp_path, "fp8"))
    monkeypatch.setattr(GearedModel, "engage", broken(trainer, {0, 1}))
    trainer.train()
    assert same(weights_of(wanted), weights_of(trainer))
    for key in ("entropy_coef", "entropy", "kl", "reward", "completions/mean_length"):
        assert logged(trainer, key) == pytest.approx(logged(wanted, key), abs=1e-9), key
    assert len(set(logged(wanted, "entropy_coef"))) == 3


def logged(trainer, key):
    return [row[key] for row in trainer.state.log_history if key in row]


def test_a_gear_that_overflows_three_times_in_a_row_is_retired(
    tiny, tmp_path, scripted, monkeypatch
):
    from ecorl.trainer.gears.geared_model import GearedModel

    scripted([Gear.FP8] * 6)
    config = config_of(tmp_path)
    trainer = tiny_trainer(tiny, tmp_path / "out", max_steps=6)
    attachment = attach(trainer, config)
    monkeypatch.setattr(GearedModel, "engage", broken(trainer, {0, 2, 3, 4, 5}))
    trainer.train()
    kinds = [(row.iteration, row.kind) for row in read(config, "faults")]
    assert kinds == [
        (1, "GearOverflow"),
        (3, "GearOverflow"), (4, "GearOverflow"), (5, "GearOverflow"), (5, "GearRetired"),
    ]  # fmt: skip
    assert attachment.gears.box.gears == (Gear.BF16,)
    gears = [row.gear for row in executions(config)]
    assert gears == ["BF16", "FP8 simulated", "BF16", "BF16", "BF16", "BF16"]


def test_fp16_s_scale_falls_in_an_overflow_storm_and_the_run_goes_on_in_bf16(
    tiny, tmp_path, scripted
):
    bf16, _ = trained(tiny, tmp_path, config_of(tmp_path, "bf16", allowed=["BF16"]), "bf16")
    scripted([Gear.FP16] * 9)
    config = config_of(tmp_path, allowed=["BF16", "FP16"])
    trainer = tiny_trainer(tiny, tmp_path / "out")
    attachment = attach(trainer, config)
    attachment.gears._scaler = torch.amp.GradScaler("cpu", init_scale=2.0**120)
    trainer.train()
    kinds = [row.kind for row in read(config, "faults")]
    assert kinds == ["GearOverflow"] * 3 + ["GearRetired"]
    assert attachment.gears._scaler.get_scale() < 2.0**120
    assert same(weights_of(bf16), weights_of(trainer))


def test_noise_and_mismatch_are_measured_at_their_interval_and_change_nothing(
    tiny, tmp_path, scripted
):
    plain, _ = trained(tiny, tmp_path, config_of(tmp_path, "plain", allowed=["BF16"]), "plain")
    config = config_of(tmp_path, "measured", measure_every=2, mismatch_limit=2.0)
    measured, attachment = trained(tiny, tmp_path, config, "measured")
    assert same(weights_of(plain), weights_of(measured))
    assert losses_of(plain) == losses_of(measured)
    rows = read(config, "metrics")
    found = {}
    for row in rows:
        found.setdefault(row.name, []).append((row.iteration, row.value))
    assert [at for at, _ in found["gradient_noise_ratio_FP8"]] == [1, 3]
    assert all(0.9 < value < 3.0 for _, value in found["gradient_noise_ratio_FP8"])
    assert all(1.0 < value < 1.2 for _, value in found["probability_mismatch_FP8"])
    assert all(value > 0 for _, value in found["gear_measurement_s"])
    assert attachment.gears.box.gamma(Gear.FP8) >= 1.0
    # What it took is training work without output tokens.
    with contextlib.closing(LedgerReader(config.resolved_run_dir())) as reader:
        work = [r.result for r in reader.executions() if r.result.stage is Stage.ACTOR_TRAIN]
    assert len([r for r in work if not r.n_output_tokens]) == 2


def test_measuring_leaves_an_entropy_bonus_alone(tiny, tmp_path, scripted):
    plain, _ = trained(tiny, tmp_path, config_of(tmp_path, "plain", allowed=["BF16"]), "plain",
                       **entropy_bonus())  # fmt: skip
    config = config_of(tmp_path, "measured", measure_every=1, mismatch_limit=2.0)
    measured, _ = trained(tiny, tmp_path, config, "measured", **entropy_bonus())
    assert logged(plain, "entropy_coef") == logged(measured, "entropy_coef")
    assert same(weights_of(plain), weights_of(measured))


def test_rows_without_an_advantage_are_not_measured_but_those_of_the_next_step(tiny, tmp_path):
    """Where all rewards are equal, what is left of a gradient is its rounding."""
    calls = []

    def reward(completions, **kwargs):
        calls.append(1)
        n = len(completions)
        return [1.0] * n if len(calls) < 3 else [float(i) for i in range(n)]

    parts = {"reward_funcs": [reward], "reward_processing_classes": None}
    config = config_of(tmp_path, measure_every=4, mismatch_limit=2.0)
    _, attachment = trained(tiny, tmp_path, config, "tied", parts=parts, max_steps=6)
    rows = [r for r in read(config, "metrics") if r.name == "gradient_noise_ratio_FP8"]
    assert [row.iteration for row in rows] == [3, 5]
    assert attachment.gears.box.gamma(Gear.FP8) < 2.0


def test_a_measurement_that_is_owed_is_made_after_a_resume_too(tiny, tmp_path):
    from ecorl.runtime.protocol import NoRecord
    from roll_adapters.trl.gears.shifting import TrlGears

    def reward(completions, **kwargs):
        return [1.0] * len(completions)

    parts = {"reward_funcs": [reward], "reward_processing_classes": None}
    config = config_of(tmp_path, measure_every=9, mismatch_limit=2.0)
    _, first = trained(tiny, tmp_path, config, "tied", parts=parts, max_steps=1)
    trainer = tiny_trainer(tiny, tmp_path / "out")
    resumed = TrlGears(trainer, config, NoRecord(), memory=first.gears.memory())
    resumed.begin_step(None, 2, 3)
    assert resumed.is_due
    fresh = TrlGears(trainer, config, NoRecord())
    fresh.begin_step(None, 2, 3)
    assert not fresh.is_due


def test_an_optimizer_that_is_to_stay_the_user_s_own_is_not_decelerated(tiny, tmp_path, by_step):
    from ecorl.trainer import PrecisionAdaptiveAdamW

    by_step([Gear.FP8, Gear.FP8])
    trainer = tiny_trainer(tiny, tmp_path / "out", max_steps=2)
    trainer.optimizer = PrecisionAdaptiveAdamW(
        trainer.model.parameters(), gamma=3.0, form="literal"
    )
    attachment = attach(trainer, config_of(tmp_path, optimizer="own"))
    attachment.gears.box.note_noise(Gear.FP8, 2.25, 1.0)
    trainer.train()
    (group,) = trainer.optimizer.optimizer.param_groups
    assert (group["gamma"], group["form"]) == (3.0, "literal")


def test_dropout_is_no_mismatch(tiny, tmp_path):
    from transformers import AutoModelForCausalLM

    def model(**own):
        return AutoModelForCausalLM.from_pretrained(tiny.policy, dtype=torch.float32, **own)

    found = []
    for name, own in (("whole", {}), ("dropped", {"attention_dropout": 0.2})):
        config = config_of(tmp_path, name, allowed=["BF16", "FP16"], measure_every=1)
        trained(tiny, tmp_path, config, name, parts={"model": model(**own)}, max_steps=1)
        found += [r.value for r in read(config, "metrics") if "mismatch_FP16" in r.name]
    assert found[0] == pytest.approx(found[1], abs=1e-3)


class AllEqual:
    """A trainer to whom each token is equally probable."""

    def _get_per_token_logps_and_entropies(self, model, ids, attended, n_kept):
        return torch.full((len(ids), n_kept), -2.0), None


@pytest.mark.parametrize(
    ("sampled", "tools", "mismatch"),
    [
        ([-2.0, -2.0, -1.0, -2.0], None, (3.0 + 2.718281828) / 4),
        # What a tool has answered was not sampled, and has no probability.
        ([-2.0, -2.0, 0.0, -2.0], [1, 1, 0, 1], 1.0),
    ],
)
def test_only_tokens_that_were_sampled_count_for_the_mismatch(sampled, tools, mismatch):
    from ecorl.trainer.gears.formats import GearSupport
    from ecorl.trainer.gears.geared_model import GearedModel
    from roll_adapters.trl.gears.measuring import _mismatch

    model = torch.nn.Linear(2, 2)
    gears = GearedModel(model, Gear.FP32, GearSupport((Gear.FP16,), ()))
    ones = torch.ones(1, 4, dtype=torch.long)
    inputs = {
        "prompt_ids": ones, "prompt_mask": ones, "completion_ids": ones, "completion_mask": ones,
        "sampling_per_token_logps": torch.tensor([sampled]),
        "tool_mask": None if tools is None else torch.tensor([tools]),
    }  # fmt: skip
    found = _mismatch(AllEqual(), model, gears, inputs, Gear.FP16)
    assert found == pytest.approx(mismatch)
    assert model.training


def test_a_trainer_s_own_fp16_scale_falls_with_a_step_that_it_is_not_shown():
    from roll_adapters.trl.gears.shifting import lower_scale

    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
    loss = scaler.scale(torch.nn.Parameter(torch.ones(1)).sum())
    assert float(loss) == 2.0**16
    lower_scale(scaler)
    assert scaler.get_scale() == 2.0**15
    lower_scale(None)


def test_a_gear_too_far_from_the_rollout_is_barred(tiny, tmp_path, scripted):
    scripted([Gear.FP8] * 4)
    config = config_of(tmp_path, measure_every=1, mismatch_limit=1.0000001)
    trained(tiny, tmp_path, config, "barred")
    assert {row.gear for row in executions(config)} == {"BF16"}
    assert {row.kind for row in read(config, "faults")} == {"GearBarred"}


@pytest.mark.parametrize(
    ("gears", "changes", "said"),
    [
        ({"simulate_fp8": False}, {}, "gears.simulate_fp8 = true"),
        ({}, {"torch_compile": True}, "compile the model anew"),
    ],
)
def test_a_trainer_that_cannot_be_shifted_is_refused_in_one_line(
    tiny, tmp_path, gears, changes, said
):
    trainer = tiny_trainer(tiny, tmp_path / "out", **changes)
    with pytest.raises(ConfigError, match=said):
        attach(trainer, config_of(tmp_path, **gears))
    assert not (tmp_path / "run").exists()


def test_weights_that_are_not_in_float32_are_refused(tiny, tmp_path):
    trainer = tiny_trainer(tiny, tmp_path / "out")
    trainer.model.to(torch.bfloat16)
    with pytest.raises(ConfigError, match="weights in bfloat16"):
        attach(trainer, config_of(tmp_path))


@pytest.fixture
def by_step(monkeypatch):
    """Has the control path ask for the same gear at the same step, whoever asks when."""

    def script(gears):
        own = LocalRuntime.tick

        def tick(self, *args, steps_left=None, **kwargs):
            choice = own(self, *args, steps_left=steps_left, **kwargs)
            return replace(choice, gear=gears[len(gears) - (steps_left or 1)])

        monkeypatch.setattr(LocalRuntime, "tick", tick)

    return script


@pytest.mark.parametrize("low", [Gear.FP8, Gear.FP16])
def test_a_run_that_is_stopped_between_two_gears_goes_on_as_if_it_had_not(
    tiny, tmp_path, by_step, low
):
    gears = [Gear.BF16, low, low, low, Gear.BF16, low]
    by_step(gears)
    changes = {"max_steps": 6, "save_strategy": "steps", "save_steps": 3}
    whole = config_of(tmp_path, "whole", allowed=["BF16", str(low)], measure_every=2,
                      mismatch_limit=2.0)  # fmt: skip
    unbroken, kept = trained(tiny, tmp_path, whole, "whole", **changes)
    config = config_of(tmp_path, "broken", allowed=["BF16", str(low)], measure_every=2,
                       mismatch_limit=2.0)  # fmt: skip
    first = tiny_trainer(tiny, tmp_path / "out", **changes)
    attach(first, config)

    class Killed(Exception):
        """The process is gone in the middle of a step."""

    def killed(*args, **kwargs):
        if first.state.global_step == 4:
            raise Killed
        return own_step(*args, **kwargs)

    own_step = first.training_step
    first.training_step = killed
    with pytest.raises(Killed):
        first.train()
    second = tiny_trainer(tiny, tmp_path / "out", **changes)
    attachment = attach(second, config, resume_from_checkpoint=True)
    assert attachment.gears.box.tokens > 0
    second.train(resume_from_checkpoint=True)
    assert same(weights_of(unbroken), weights_of(second))
    assert attachment.gears.memory() == kept.gears.memory()
    with contextlib.closing(LedgerReader(config.resolved_run_dir())) as reader:
        rows = [r.result for r in reader.executions() if not r.superseded]
    ran = [r.gear for r in rows if r.stage is Stage.ACTOR_TRAIN and r.n_output_tokens]
    assert ran == [kept.gears.box.label(gear) for gear in gears]


def test_a_cap_on_low_tokens_holds_whatever_the_control_path_asks(tiny, tmp_path, by_step):
    by_step([Gear.FP8] * 8)
    config = config_of(tmp_path)
    config = config.model_copy(
        update={
            "carbon": config.carbon.model_copy(
                update={"control": config.carbon.control.model_copy(update={"low_share": 0.5})}
            )
        }
    )
    _, attachment = trained(tiny, tmp_path, config, "capped", max_steps=8)
    rows = executions(config)
    assert [row.gear for row in rows].count("FP8 simulated") in (3, 4)
    box = attachment.gears.box
    assert box.low_tokens <= 0.5 * box.tokens + max(row.n_tokens for row in rows)


def test_the_optimizer_is_decelerated_by_the_gear_of_the_step(tiny, tmp_path, by_step):
    by_step([Gear.BF16, Gear.FP8, Gear.BF16])
    config = config_of(tmp_path)
    trainer = tiny_trainer(tiny, tmp_path / "out", max_steps=3)
    attachment = attach(trainer, config)
    attachment.gears.box.note_noise(Gear.FP8, 2.25, 1.0)
    seen = []
    make = trainer.create_optimizer

    def made(*args, **kwargs):
        optimizer = make(*args, **kwargs)
        optimizer.register_step_pre_hook(lambda own, *_: seen.append(own.gamma))
        return optimizer

    trainer.create_optimizer = made
    trainer.train()
    assert seen == [1.0, 1.5, 1.0]


def test_who_trains_on_without_gears_takes_the_trainer_s_own_steps(tiny, tmp_path, by_step):
    by_step([Gear.BF16, Gear.FP8])
    trainer = tiny_trainer(tiny, tmp_path / "out", max_steps=2)
    own = trainer.__dict__["create_optimizer"] = trainer.create_optimizer
    attachment = attach(trainer, config_of(tmp_path))
    attachment.gears.box.note_noise(Gear.FP8, 16.0, 1.0)
    trainer.train()
    assert attachment.closed
    optimizer = trainer.optimizer.optimizer
    assert (type(optimizer).__name__, optimizer.gamma) == ("PrecisionAdaptiveAdamW", 1.0)
    assert trainer.__dict__["create_optimizer"] == own


def test_an_optimizer_that_is_no_adamw_stays_and_is_told(tiny, tmp_path, by_step, caplog):
    by_step([Gear.FP8] * 4)
    plain, _ = trained(tiny, tmp_path, config_of(tmp_path, "own", optimizer="own"), "own",
                       optim="sgd")  # fmt: skip
    caplog.clear()
    told, _ = trained(tiny, tmp_path, config_of(tmp_path, "told"), "told", optim="sgd")
    assert [r.message for r in caplog.records if "stays as it is" in r.message]
    assert same(weights_of(plain), weights_of(told))
