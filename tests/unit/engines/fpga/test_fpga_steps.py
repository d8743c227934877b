"""Process rewards of the INT8 engine: rewards at several positions of a row."""

from __future__ import annotations

import numpy as np
import pytest
from int8_models import VOCAB, batch_of, rows_of, same_bits

from ecorl.devices import load_profile
from ecorl.engines.fpga.cycles.kernel_calls import BatchShape
from ecorl.engines.fpga.cycles.model import CycleModel
from ecorl.engines.fpga.engine import FpgaEngine
from ecorl.engines.fpga.int8_decoder import segments_of
from ecorl.errors import EngineError
from ecorl.records import Provenance, Stage


@pytest.fixture(autouse=True)
def _needs_compiler(require_tool):
    require_tool("gxx")


@pytest.fixture
def engine(models):
    return FpgaEngine(models("llama_reward")[0], Stage.REWARD)


def family(prompt_length=20, lengths=(5, 9, 1)):
    prompt = rows_of(prompt_length, seed=3)[0]
    rows = [np.concatenate([prompt, rest]) for rest in rows_of(*lengths, seed=4)]
    return batch_of(rows, lengths)


def test_steps_are_the_rewards_of_prefixes(engine):
    batch = family()
    positions = [[24, 0, 19, 20], [28], []]  # in any order, in the prompt too
    result = engine.score_steps(batch, positions)
    assert result.sample_ids == batch.sample_ids
    assert [v.shape for v in result.values] == [(4,), (1,), (0,)]
    assert all(v.dtype == np.float32 for v in result.values)
    for row, asked, values in zip(batch.token_ids, positions, result.values, strict=True):
        for position, value in zip(asked, values, strict=True):
            alone = engine.score(batch_of([row[: position + 1]])).values
            assert same_bits(value, alone[0])
    last = [[len(row) - 1] for row in batch.token_ids]
    steps = np.concatenate(engine.score_steps(batch, last).values)
    assert same_bits(steps, engine.score(batch).values)
    assert result.report.provenance is Provenance.MODELLED


def test_a_shared_prompt_is_computed_and_modelled_once(engine):
    batch = family()
    positions = [np.array([19, 22, 24]), np.array([19, 28]), np.array([20])]
    result = engine.score_steps(batch, positions)
    shape = BatchShape((20, 5, 9, 1), (1, 2, 1, 1), 1, (0, 20, 20, 20), 6)
    wanted = CycleModel(engine.model, load_profile("u55c")).batch(shape)
    assert result.report.device_time_s == wanted.time_s
    assert result.report.device_energy_j == wanted.energy_j
    unshared = engine.score_steps(batch_of(batch.token_ids), positions)
    assert all(same_bits(a, b) for a, b in zip(result.values, unshared.values, strict=True))
    # In rows as short as these a second start of the router costs more than the prompt.
    shape = BatchShape(tuple(map(len, batch.token_ids)), (3, 2, 1), 1, n_results=6)
    apart = CycleModel(engine.model, load_profile("u55c")).batch(shape)
    assert unshared.report.device_time_s == apart.time_s
    assert apart.macs > wanted.macs


def test_last_tokens_cost_what_plain_rewards_cost():
    """Two ways to count the same tokens."""
    for counts in ((5, 9, 1), None):
        rows = family().token_ids
        segments = segments_of(rows, counts)
        last = [segments.tokens(i, np.array([len(row) - 1])) for i, row in enumerate(rows)]
        shape = segments.shape((1,) * 3, 1)
        assert segments.shape_at(last, 3) == shape
    assert segments_of([]).shape_at([], 0).lengths == ()


def test_rows_that_cannot_be_run_are_nan_at_each_step(engine, caplog):
    rows = [rows_of(6)[0], np.array([1, VOCAB, 2]), rows_of(8, seed=1)[0]]
    result = engine.score_steps(batch_of(rows), [[5, 2], [0, 1, 2], [7]])
    assert [np.isnan(v).tolist() for v in result.values] == [[False] * 2, [True] * 3, [False]]
    assert "row s1 has token id 97" in caplog.text
    good = engine.score_steps(batch_of([rows[0], rows[2]]), [[5, 2], [7]])
    assert same_bits(good.values[0], result.values[0])
    assert good.report.device_time_s == result.report.device_time_s
    none = engine.score_steps(batch_of([rows[1]]), [[0, 1]])
    assert np.isnan(none.values[0]).all()
    assert none.report.device_time_s is None


def test_positions_that_are_none_are_refused(engine, snapshot):
    lines = []
    for positions in (
        [[0]],
        [[0], [4]],
        [[-1], [0]],
        [[0], [2**70]],
        [[0.5], [0]],
        [[True], [0]],
        [[[0, 1]], [0]],
        [[[0], [0, 1]], [0]],
        [0, [0]],
    ):
        with pytest.raises(EngineError) as caught:
            engine.score_steps(batch_of(rows_of(3, 4)), positions)
        lines.append(str(caught.value))
    snapshot("\n".join(lines))


def test_only_an_open_reward_engine_answers(engine, models):
    reference = FpgaEngine(models("llama_lm")[0], Stage.REFERENCE)
    with pytest.raises(EngineError, match="reference stage"):
        reference.score_steps(batch_of(rows_of(3)), [[0]])
    assert engine.score_steps(batch_of([]), []).values == ()
    engine.close()
    with pytest.raises(EngineError, match="closed"):
        engine.score_steps(batch_of(rows_of(3)), [[0]])
