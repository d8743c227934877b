"""One suite for every back-end of `InferenceEngine`: what the protocol promises."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from ecorl.engines.lanes.threaded import EngineSpec
from ecorl.engines.protocol import InferenceEngine, ScoreBatch
from ecorl.engines.registry import FaultyEngine, make_engine
from ecorl.engines.validate import check_logprobs, check_score
from ecorl.errors import EngineError
from ecorl.records import ModelShape, Stage
from tests.fakes.blocking_engine import HostLimits, IsolatedEngine

LIMITS = HostLimits(start_s=240.0, call_s=60.0, close_s=5.0)


@dataclass(frozen=True)
class Backend:
    """How a back-end is made, and how far it may lie from the float model.

    Attributes:
        reward_rms, logprob_rms: allowed root mean square error over the spread (standard
            deviation) of the float model's answers.
        n_rows: rows of the batches; few for the bit-true build, which is slow.
    """

    make: Callable[[EngineSpec], InferenceEngine]
    kind: str
    options: dict[str, object]
    reward_rms: float
    logprob_rms: float
    n_rows: int = 6
    tools: tuple[str, ...] = ()


def _isolated(spec: EngineSpec) -> InferenceEngine:
    return IsolatedEngine(spec, LIMITS)


def _faulty(spec: EngineSpec) -> InferenceEngine:
    return FaultyEngine(make_engine(spec), [])


# INT8 weights and activations on a tiny random model: 0.055 and 0.043 to 0.068 were measured.
INT8 = {"reward_rms": 0.12, "logprob_rms": 0.14}
FLOAT = {"reward_rms": 1e-5, "logprob_rms": 1e-5}
BACKENDS = {
    "torch": Backend(make_engine, "torch", {}, **FLOAT),
    "torch_isolated": Backend(_isolated, "torch", {}, **FLOAT),
    "torch_faulty_without_faults": Backend(_faulty, "torch", {}, **FLOAT),
    "fpga_fast": Backend(make_engine, "fpga", {"build": "fast"}, **INT8, tools=("gxx",)),
    "fpga_isolated": Backend(_isolated, "fpga", {"build": "fast"}, **INT8, tools=("gxx",)),
    "fpga_strict": Backend(
        make_engine, "fpga", {"build": "strict"}, **INT8, n_rows=2, tools=("gxx", "hls_headers")
    ),
}


@pytest.fixture(params=sorted(BACKENDS))
def backend(request, require_tool):
    chosen = BACKENDS[request.param]
    for tool in chosen.tools:
        require_tool(tool)
    return chosen


def spec_of(backend: Backend, checkpoint: Path, stage: Stage) -> EngineSpec:
    device = "host_cpu" if backend.kind == "torch" else "u55c"
    return EngineSpec(backend.kind, backend.kind, checkpoint, stage, device, backend.options)


@pytest.fixture(scope="module")
def engines():
    """Engines by back-end and stage, made when first asked for; `spend` lets one be closed."""
    made: dict[tuple[int, Stage], InferenceEngine] = {}

    def get(
        backend: Backend, checkpoint: Path, stage: Stage, spend: bool = False
    ) -> InferenceEngine:
        key = (id(backend), stage)
        if key not in made:
            made[key] = backend.make(spec_of(backend, checkpoint, stage))
        return made.pop(key) if spend else made[key]

    yield get
    for engine in made.values():
        engine.close()


@pytest.fixture
def reward(engines, backend, tiny_reward):
    return engines(backend, tiny_reward, Stage.REWARD)


@pytest.fixture
def reference(engines, backend, tiny_policy):
    return engines(backend, tiny_policy, Stage.REFERENCE)


@pytest.fixture(scope="module")
def float_model(tiny_policy, tiny_reward):
    """Answers of the float32 models, one unpadded row at a time."""
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

    policy = AutoModelForCausalLM.from_pretrained(tiny_policy)
    scorer = AutoModelForSequenceClassification.from_pretrained(tiny_reward, num_labels=1)

    def rewards(batch: ScoreBatch):
        with torch.no_grad():
            rows = [torch.from_numpy(row)[None] for row in batch.token_ids]
            return np.array([scorer(row).logits.item() for row in rows])

    def logprobs(batch: ScoreBatch):
        out = []
        for row, n in zip(batch.token_ids, batch.n_completion, strict=True):
            ids = torch.from_numpy(row)
            with torch.no_grad():
                logits = policy(ids[None]).logits[0, :-1].double() / batch.temperature
            values = torch.log_softmax(logits, -1).gather(-1, ids[1:, None])[:, 0]
            out.append(values[len(values) - n :].numpy())
        return out

    return {"rewards": rewards, "logprobs": logprobs}


def relative_rms(values, exact):
    values, exact = np.asarray(values, dtype=np.float64), np.asarray(exact, dtype=np.float64)
    return float(np.sqrt(np.mean((values - exact) ** 2)) / np.std(exact))


def test_engines_say_what_they_are(backend, reward, reference):
    for engine, stage in ((reward, Stage.REWARD), (reference, Stage.REFERENCE)):
        assert isinstance(engine, InferenceEngine)
        assert engine.stage is stage
        assert engine.name
        assert engine.device == ("host_cpu" if backend.kind == "torch" else "u55c")
        assert isinstance(engine.row_invariant, bool)
        assert isinstance(engine.model, ModelShape)
        assert (engine.model.n_layers, engine.model.hidden_size) == (2, 32)
        assert engine.model.n_params > engine.model.n_params_active > 0


def test_rewards_come_in_order_and_near_the_float_model(backend, reward, float_model, make_batch):
    batch = make_batch(max(backend.n_rows, 4), seed=1)
    result = reward.score(batch)
    assert check_score(batch, result).all()
    assert result.report.host_time_s > 0
    assert relative_rms(result.values, float_model["rewards"](batch)) < backend.reward_rms


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_logprobs_come_in_order_and_near_the_float_model(
    backend, reference, float_model, make_batch, temperature
):
    batch = make_batch(backend.n_rows, seed=2, temperature=temperature)
    result = reference.logprobs(batch)
    assert check_logprobs(batch, result).all()
    exact = np.concatenate(float_model["logprobs"](batch))
    assert relative_rms(np.concatenate(result.values), exact) < backend.logprob_rms


def test_an_empty_batch_is_answered(reward, reference, make_batch):
    empty = make_batch(0)
    assert reward.score(empty).values.shape == (0,)
    assert reward.score(empty).values.dtype == np.float32
    assert reference.logprobs(empty).values == ()


def test_a_single_row_and_a_row_without_completion(reward, reference, make_batch):
    batch = make_batch(2, seed=3)
    one = batch.rows([1])
    assert check_score(one, reward.score(one)).tolist() == [True]
    assert check_logprobs(one, reference.logprobs(one)).tolist() == [True]
    none = ScoreBatch(batch.sample_ids, batch.token_ids, (0, batch.n_completion[1]))
    values = reference.logprobs(none).values
    assert [len(row) for row in values] == [0, batch.n_completion[1]]


def test_a_row_keeps_its_answer_in_any_company(reward, reference, make_batch, backend):
    batch = make_batch(backend.n_rows, seed=4)
    order = list(reversed(range(len(batch))))
    split = [batch.rows([i]) for i in range(len(batch))]
    assert reward.row_invariant == reference.row_invariant == (backend.kind == "fpga")

    def same(values, expected):
        # Other padding moves the last bits of a float forward; fixed point claims none moves.
        atol = 0.0 if reward.row_invariant else 1e-5
        np.testing.assert_allclose(values, expected, rtol=0.0, atol=atol)

    scores = reward.score(batch).values
    same(reward.score(batch.rows(order)).values, scores[order])
    same([reward.score(row).values[0] for row in split], scores)
    logprobs = reference.logprobs(batch).values
    shuffled = reference.logprobs(batch.rows(order)).values
    for index, row in enumerate(logprobs):
        same(shuffled[order[index]], row)
        same(reference.logprobs(split[index]).values[0], row)


def test_the_same_question_gets_the_same_bits(reward, reference, make_batch, backend):
    batch = make_batch(backend.n_rows, seed=5)
    np.testing.assert_array_equal(reward.score(batch).values, reward.score(batch).values)
    first, again = reference.logprobs(batch).values, reference.logprobs(batch).values
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))


def test_an_engine_of_another_stage_refuses(reward, reference, make_batch):
    batch = make_batch(2)
    with pytest.raises(EngineError):
        reward.logprobs(batch)
    with pytest.raises(EngineError):
        reference.score(batch)


def test_an_unanswerable_batch_is_an_engine_error(reward, reference, make_rows):
    with pytest.raises(EngineError):
        reward.score(make_rows([]))
    with pytest.raises(EngineError):
        reference.logprobs(make_rows([4, 5], n_completion=2))
    # And the engine still works.
    assert len(reward.score(make_rows([4, 5])).values) == 1


def test_after_close_calls_are_refused(backend, engines, tiny_reward, make_batch):
    engine = engines(backend, tiny_reward, Stage.REWARD, spend=True)
    engine.close()
    engine.close()
    with pytest.raises(EngineError):
        engine.score(make_batch(1))
