"""A TRL trainer with several reward functions: models, plain functions, asynchronous ones."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch

from ecorl.ledger import LedgerReader
from ecorl.records import Action, EventKind, FaultKind, Stage
from roll_adapters.trl_hooks import attach
from tests.integration.checks import BOTH, assert_same_bits, config, outcome

N_STEPS, N_ROWS = 3, 16
MODELS = {"reward:reward", "reward:style"}
FUNCTIONS = {"reward:length", "reward:digits"}
WEIGHTS = [1.0, 0.5, 0.25, 2.0]


def length(completions, **_):
    return [len(text) / 10 for text in completions]


async def digits(completions, **_):
    await asyncio.sleep(0)
    return [float(sum(c.isdigit() for c in text)) for text in completions]


@pytest.fixture(scope="module")
def style(tiny, tmp_path_factory) -> Path:
    """A second reward model, of the first one's shape with other weights."""
    from transformers import AutoConfig, AutoTokenizer, LlamaForSequenceClassification

    folder = tmp_path_factory.mktemp("models") / "style"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(21)
        shape = AutoConfig.from_pretrained(tiny.reward)
        LlamaForSequenceClassification(shape).save_pretrained(folder)
    AutoTokenizer.from_pretrained(tiny.reward).save_pretrained(folder)
    return folder


@pytest.fixture
def make_several(make_trainer, tiny, style):
    """Makes trainers with two reward models, a plain and an asynchronous function."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    def load(folder: Path) -> Any:
        model = AutoModelForSequenceClassification.from_pretrained(
            folder, dtype=torch.float32, num_labels=1
        )
        return model.eval()

    def make(algorithm: str = "grpo", name: str = "plain", **changes: Any) -> Any:
        parts = {
            "reward_funcs": [load(tiny.reward), length, load(style), digits],
            "reward_processing_classes": [
                AutoTokenizer.from_pretrained(tiny.reward),
                None,
                AutoTokenizer.from_pretrained(style),
                None,
            ],
        }
        weights = {"reward_weights": WEIGHTS} if algorithm == "grpo" else {}
        return make_trainer(algorithm, name, parts=parts, max_steps=N_STEPS, **weights, **changes)

    return make


def rewards_log(trainer: Any) -> list[dict[str, float]]:
    """What TRL logs of each reward function."""
    rows = [row for row in trainer.state.log_history if "loss" in row]
    return [{k: v for k, v in row.items() if k.startswith("rewards/")} for row in rows]


def executions(run_dir: Path) -> dict[str, list[Any]]:
    """The executions of the reward stage, by role."""
    found = defaultdict(list)
    with contextlib.closing(LedgerReader(run_dir)) as reader:
        for row in reader.executions():
            if row.result.stage is Stage.REWARD:
                found[row.result.role].append(row.result)
    return dict(found)


def assert_each_sample_counts_once(by_role: dict[str, list[Any]]) -> None:
    assert set(by_role) == {*MODELS, *FUNCTIONS, "reward:other"}
    for role, results in by_role.items():
        assert [r.n_sequences for r in results] == [N_ROWS] * N_STEPS, role
        assert len({r.iteration for r in results}) == N_STEPS
    # The output tokens of a batch are counted for each model, and for none of the functions.
    tokens = {role: [r.n_output_tokens for r in results] for role, results in by_role.items()}
    assert tokens["reward:reward"] == tokens["reward:style"]
    assert all(tokens[role] == [0] * N_STEPS for role in FUNCTIONS)
    assert min(tokens["reward:reward"]) > 0
    assert tokens["reward:other"] == [0] * N_STEPS


def edi_cells(run_dir: Path) -> dict[str, set[str]]:
    """Columns of the EDI matrix by role, of the reward stage."""
    found = defaultdict(set)
    with contextlib.closing(LedgerReader(run_dir)) as reader:
        for cell in json.loads(reader.edi()[-1].json)["cells"]:
            if cell["stage"] == "reward":
                found[f"reward:{cell['role_name']}"].add(cell["device"])
    return dict(found)


def assert_close(one: Any, other: Any) -> None:
    logs = zip(
        outcome(one)["log"] + rewards_log(one), outcome(other)["log"] + rewards_log(other),
        strict=True,
    )  # fmt: skip
    for mine, theirs in logs:
        assert mine.keys() == theirs.keys()
        for key, value in mine.items():
            assert float(theirs[key]) == pytest.approx(float(value), abs=1e-6), key
    theirs = other.model.state_dict()
    for name, weight in one.model.state_dict().items():
        assert torch.allclose(weight, theirs[name], rtol=0, atol=1e-6), name


@pytest.mark.parametrize("algorithm", ["grpo", "rloo"])
def test_all_on_the_gpu_path_is_bit_equal_and_each_model_has_a_price(
    make_several, tmp_path, algorithm
):
    plain = make_several(algorithm)
    plain.train()
    attached = make_several(algorithm, "attached")
    attach(attached, config(tmp_path, algorithm))
    attached.train()
    assert_same_bits(outcome(plain), outcome(attached))
    assert rewards_log(plain) == rewards_log(attached)
    by_role = executions(tmp_path / "run")
    assert_each_sample_counts_once(by_role)
    for results in by_role.values():
        assert all(r.action is Action.GPU and r.energy.energy_j > 0 for r in results)
    # Beside models functions have no price of a token: it would pass for that of a model.
    assert edi_cells(tmp_path / "run") == {role: {"host_cpu"} for role in MODELS}


def test_executions_of_one_call_do_not_overlap(make_several, tmp_path):
    """A model's forward pass is charged to that model alone."""
    attached = make_several(name="attached")
    profile = attach(attached, config(tmp_path)).runtime._scheduler._gpu.profile
    forward = attached.reward_funcs[2].forward
    slow_s, slept_s = 0.25, []

    def slow(*args, **kwargs):
        begin_s = time.monotonic()
        time.sleep(slow_s)
        slept_s.append((begin_s, time.monotonic()))
        return forward(*args, **kwargs)

    attached.reward_funcs[2].forward = slow
    attached.train()
    by_role = executions(tmp_path / "run")
    slept = zip(slept_s, by_role["reward:style"], strict=True)
    for (begin_s, end_s), r in slept:
        assert r.host_time_s >= slow_s
        assert r.t_start_s <= begin_s < end_s <= r.t_end_s
        # The sleep draws idle power at least, and all of it is the slow model's.
        assert r.energy.energy_j >= 0.9 * profile.value("idle_w") * slow_s
        for other in by_role["reward:reward"]:
            assert other.t_end_s <= begin_s or other.t_start_s >= end_s
        for other in by_role["reward:other"]:
            inside_s = min(other.t_end_s, end_s) - max(other.t_start_s, begin_s)
            own_s = other.t_end_s - other.t_start_s - max(0.0, inside_s)
            assert other.time_s <= own_s + 1e-6
            assert other.energy.energy_j <= profile.value("active_w") * own_s + 1e-6


def test_both_models_offloaded_to_an_exact_engine_agree(make_several, tmp_path):
    plain = make_several()
    plain.train()
    attached = make_several(name="attached")
    engine = {"offload": {"type": "torch", "isolated": False}}
    attach(attached, config(tmp_path, policy=BOTH, engine=engine))
    attached.train()
    assert_close(plain, attached)
    by_role = executions(tmp_path / "run")
    assert_each_sample_counts_once(by_role)
    for role in MODELS:
        assert {r.action for r in by_role[role]} == {Action.CONCURRENT}
    assert {r.action for r in by_role["reward:other"]} == {Action.GPU}


def test_one_model_offloaded_and_one_on_the_gpu_path_agree(make_several, tmp_path):
    def change(trainer: Any) -> None:
        # What an engine has loaded does not stand for this model any more: it stays on the GPU.
        with torch.no_grad():
            trainer.reward_funcs[2].score.weight.mul_(1.5)

    plain = make_several()
    change(plain)
    plain.train()
    attached = make_several(name="attached")
    engine = {"offload": {"type": "torch", "isolated": False}}
    attach(attached, config(tmp_path, policy=BOTH, engine=engine))
    change(attached)
    attached.train()
    assert_close(plain, attached)
    by_role = executions(tmp_path / "run")
    assert_each_sample_counts_once(by_role)
    assert {r.action for r in by_role["reward:reward"]} == {Action.CONCURRENT}
    assert {r.action for r in by_role["reward:style"]} == {Action.GPU}
    with contextlib.closing(LedgerReader(tmp_path / "run")) as reader:
        retired = {f.where for f in reader.faults() if f.kind == FaultKind.ENGINE_RETIRED}
    assert retired == {"reward:style"}


def test_each_model_is_answered_by_kernels_of_its_own(make_several, tmp_path):
    """What TRL trains on is what the INT8 engine of each model answers, and the functions' own."""
    from ecorl.engines.fpga.engine import FpgaEngine
    from ecorl.engines.protocol import ScoreBatch

    trainer = make_several(name="attached")
    seen: list[tuple[list[str], list[str], torch.Tensor]] = []
    attach(trainer, config(tmp_path, policy=BOTH))
    calculate = trainer._calculate_rewards

    def spy(inputs, prompts, completions, ids):
        rewards = calculate(inputs, prompts, completions, ids)
        seen.append((prompts, completions, rewards))
        return rewards

    trainer._calculate_rewards = spy
    trainer.train()
    assert len(seen) == N_STEPS
    for index in (0, 2):
        engine = FpgaEngine(trainer.reward_funcs[index].config._name_or_path, Stage.REWARD)
        for prompts, completions, rewards in seen:
            texts = [p + c for p, c in zip(prompts, completions, strict=True)]
            rows = trainer.reward_processing_classes[index](texts, add_special_tokens=False)
            ids = tuple(map(torch.tensor, rows["input_ids"]))
            batch = ScoreBatch(
                tuple(map(str, range(len(ids)))), tuple(i.numpy() for i in ids), (0,) * len(ids)
            )
            want = torch.from_numpy(engine.score(batch).values)
            assert torch.equal(rewards[:, index], want)
    for _, completions, rewards in seen:
        assert rewards[:, 1].tolist() == pytest.approx(length(completions))
        assert rewards[:, 3].tolist() == asyncio.run(digits(completions))
    assert_each_sample_counts_once(executions(tmp_path / "run"))
    assert edi_cells(tmp_path / "run") == {role: {"u55c"} for role in MODELS}


def test_a_reward_function_that_raises_leaves_no_stage_open(make_several, tmp_path):
    trainer = make_several(name="attached")
    attachment = attach(trainer, config(tmp_path))
    broken = trainer.reward_funcs[1]

    def fails(**_):
        raise RuntimeError("no reward today")

    trainer.reward_funcs[1] = fails
    calculate = trainer._calculate_rewards
    failed = []

    def forgiving(*args):
        try:
            return calculate(*args)
        except RuntimeError:
            failed.append(True)
            trainer.reward_funcs[1] = broken
            return calculate(*args)

    trainer._calculate_rewards = forgiving
    trainer.train()
    assert failed == [True]
    assert attachment.closed
    by_role = executions(tmp_path / "run")
    assert all(r.host_time_s > 0 for results in by_role.values() for r in results)
    assert {r.iteration for r in by_role["reward:other"]} == {1, 2, 3}


class Shouts:
    """A callable object, asynchronous as TRL understands it."""

    async def __call__(self, completions, **_):
        await asyncio.sleep(0.02)
        return [float(sum(c.isupper() for c in text)) for text in completions]


async def vowels(completions, **_):
    await asyncio.sleep(0.02)
    return [float(sum(c in "aeiou" for c in text)) for text in completions]


def test_functions_alone_are_listed_by_name_with_their_time(make_trainer, tmp_path):
    """Two of one name, one that waits; those that run together have one row and no time twice."""

    def slow(completions, **_):
        time.sleep(0.03)
        return [None if "a" in text else 1.0 for text in completions]

    own = [length, slow, functools.partial(length), digits, vowels, Shouts()]
    parts = {"reward_funcs": own, "reward_processing_classes": [None] * len(own)}
    plain = make_trainer(parts=parts, max_steps=2)
    plain.train()
    attached = make_trainer(name="attached", parts=parts, max_steps=2)
    attach(attached, config(tmp_path))
    attached.train()
    assert_same_bits(outcome(plain), outcome(attached))
    assert rewards_log(plain) == rewards_log(attached)
    assert attached.reward_funcs == own
    by_role = executions(tmp_path / "run")
    together = "reward:digits+vowels+Shouts"
    assert set(by_role) == {
        "reward:length-0", "reward:length-1", "reward:slow", together, "reward:other",
    }  # fmt: skip
    for results in by_role.values():
        assert len(results) == 2
        assert all(r.energy is not None for r in results)
        assert all((r.n_output_tokens > 0) == (r.role != "reward:other") for r in results)
    assert all(r.time_s >= 0.03 for r in by_role["reward:slow"])
    for step in range(2):
        # Neither two rows at once nor the same time in two of them.
        rest = by_role["reward:other"][step]
        assert by_role[together][step].time_s >= 0.02
        own_s = sum(rs[step].time_s for role, rs in by_role.items() if role != "reward:other")
        assert own_s + rest.time_s == pytest.approx(rest.t_end_s - rest.t_start_s, abs=1e-6)
    with contextlib.closing(LedgerReader(tmp_path / "run")) as reader:
        reasons = {p.placement.role: p.placement.reason for p in reader.placements()}
    own_reason = "a Python function runs in the trainer's process"
    assert {reasons[role] for role in by_role if role != "reward:other"} == {own_reason}
    assert reasons["reward:other"] == "the trainer's own work around its reward functions"


@pytest.mark.parametrize("is_async", [False, True])
def test_an_exception_of_a_function_is_the_trainers_own(make_trainer, tmp_path, is_async):
    class OwnError(Exception):
        pass

    def fails(**_):
        raise OwnError("not today\nnor tomorrow")

    async def fails_later(**_):
        raise OwnError("not today\nnor tomorrow")

    own = [fails_later, vowels] if is_async else [fails]
    parts = {"reward_funcs": own, "reward_processing_classes": [None] * len(own)}
    trainer = make_trainer(name="attached", parts=parts, max_steps=2)
    attach(trainer, config(tmp_path))
    with pytest.raises(OwnError, match="not today"):
        trainer.train()
    assert trainer.reward_funcs == own
    with contextlib.closing(LedgerReader(tmp_path / "run")) as reader:
        ended = [e.detail for e in reader.events() if e.kind is EventKind.FAILURE]
    assert ended == ["OwnError: not today"]
