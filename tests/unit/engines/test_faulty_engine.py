from __future__ import annotations

import numpy as np
import pytest

from ecorl.config import FaultInjection
from ecorl.engines.registry import FaultyEngine, find_plugin
from ecorl.engines.validate import check_logprobs, check_score
from ecorl.errors import EngineCrashed, InvalidResult
from ecorl.records import Stage


@pytest.fixture
def toy(toy_path):
    factory = find_plugin("toy").load()
    return lambda stage: factory(toy_path, stage, "u55c")


def fault(kind, *calls, rows=(0,)):
    return FaultInjection(kind=kind, calls=calls, rows=rows)


@pytest.mark.parametrize("kind", ["raise", "exit"])
def test_raises_on_the_named_calls_only(toy, make_batch, kind):
    # `exit` without a process of its own must not end the process that it is in.
    engine = FaultyEngine(toy(Stage.REWARD), [fault(kind, 1, 3)])
    batch = make_batch(3)
    clean = toy(Stage.REWARD).score(batch).values
    outcomes = []
    for _ in range(5):
        try:
            np.testing.assert_array_equal(engine.score(batch).values, clean)
            outcomes.append("ok")
        except EngineCrashed:
            outcomes.append("fault")
    assert outcomes == ["ok", "fault", "ok", "fault", "ok"]


def test_counting_goes_on_after_a_restart(toy, make_batch):
    engine = FaultyEngine(toy(Stage.REWARD), [fault("raise", 7)], first_call=6)
    engine.score(make_batch(1))
    with pytest.raises(EngineCrashed):
        engine.score(make_batch(1))


def test_nan_in_the_given_rows_and_no_other(toy, make_batch):
    batch = make_batch(4)
    engine = FaultyEngine(toy(Stage.REWARD), [fault("nan", 0, rows=(1, 3, 99))])
    result = engine.score(batch)
    assert check_score(batch, result).tolist() == [True, False, True, False]
    clean = toy(Stage.REWARD).score(batch).values
    np.testing.assert_array_equal(result.values[[0, 2]], clean[[0, 2]])
    engine = FaultyEngine(toy(Stage.REFERENCE), [fault("nan", 0, rows=(2,))])
    assert check_logprobs(batch, engine.logprobs(batch)).tolist() == [True, True, False, True]


def test_wrong_shape_cannot_be_matched(toy, make_batch):
    batch = make_batch(4)
    with pytest.raises(InvalidResult):
        check_score(batch, FaultyEngine(toy(Stage.REWARD), [fault("shape", 0)]).score(batch))
    with pytest.raises(InvalidResult):
        check_logprobs(
            batch, FaultyEngine(toy(Stage.REFERENCE), [fault("shape", 0)]).logprobs(batch)
        )


def test_hang_is_bounded_by_its_scope(toy, make_batch):
    engine = FaultyEngine(toy(Stage.REWARD), [fault("hang", 0)], hang_s=0.05)
    with pytest.raises(EngineCrashed, match="hung"):
        engine.score(make_batch(1))
    engine.score(make_batch(1))
