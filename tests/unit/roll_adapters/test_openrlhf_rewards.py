"""Times of rollouts, metrics and comparisons of the OpenRLHF adapter."""

from __future__ import annotations

import asyncio
import math
import time
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ecorl.records import Stage
from roll_adapters.openrlhf.metrics import trainer_metrics
from roll_adapters.openrlhf.rewards import (
    TIMES,
    ResponseTimes,
    TimedEngine,
    timed_execution,
    timed_fetch,
)
from roll_adapters.ray_jobs.comparison import PAIRED_ROWS, PHASE, record_comparison
from roll_adapters.ray_jobs.intervals import union
from tests.fakes.openrlhf import FakeRecord

intervals = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 8)).map(lambda p: (p[0], p[0] + p[1]))
)


@given(intervals)
def test_a_union_holds_each_instant_once(found):
    joined = union(found)
    for start, end in joined:
        assert start <= end
    assert all(a[1] < b[0] for a, b in pairwise(joined))
    for instant in np.arange(-0.5, 40, 0.5):
        inside = any(start <= instant <= end for start, end in found)
        assert inside == any(start <= instant <= end for start, end in joined)
    assert union(joined) == joined


def answer(n_prompt=2, n_output=3, times=None):
    told = {
        "observation_tokens": [1] * (n_prompt + n_output),
        "action_ranges": [(n_prompt, n_prompt + 1), (n_prompt + 1, n_prompt + n_output)],
    }
    return told if times is None else {**told, TIMES: times}


def test_responses_add_up_with_and_without_times():
    times = ResponseTimes()
    day_s = time.time()
    times.add(answer(times=([(day_s, day_s + 2)], [])))
    times.add(answer(n_output=5, times=([(day_s + 1, day_s + 4)], [(day_s + 4, day_s + 5)])))
    times.add(answer())
    work = times.work(Stage.GENERATION, None)
    assert (work.n_sequences, work.n_tokens, work.n_output_tokens, work.max_length) == (
        3,
        17,
        11,
        7,
    )
    assert times.work(Stage.REWARD, None).n_output_tokens == 11
    ((start_s, end_s),) = times.generation
    assert end_s - start_s == pytest.approx(4.0)
    # In the clock of the other stages, and not in that of the day.
    assert abs(start_s - time.monotonic()) < abs(start_s - time.time())
    ((start_s, end_s),) = times.rewards
    assert end_s - start_s == pytest.approx(1.0)


def test_without_times_nothing_is_known():
    times = ResponseTimes()
    times.add(answer())
    assert times.generation == times.rewards == []
    assert times.n_responses == 1


class Engine:
    name = "vllm"

    def __init__(self, time_s):
        self.time_s = time_s

    async def generate(self, prompt, *, n=1):
        await asyncio.sleep(self.time_s)
        if prompt == "bad":
            raise ValueError("no such prompt")
        return [prompt] * n


async def execute(prompt, llm_engine, fetch_s):
    """A rollout as OpenRLHF's executor does it."""
    output = await llm_engine.generate(prompt, n=2)
    assert llm_engine.name == "vllm"

    async def fetch():
        await asyncio.sleep(fetch_s)
        return 1.0

    # In tasks of their own, as several rewards are fetched at once.
    rewards = await asyncio.gather(*(timed_fetch(fetch) for _ in range(2)))
    return {"prompt": prompt, "output": output, "rewards": rewards}


def test_rollouts_beside_each_other_bring_each_their_own_times():
    async def both():
        return await asyncio.gather(
            *(
                timed_execution(
                    execute, {"prompt": name, "llm_engine": Engine(0.05), "fetch_s": fetch_s}
                )
                for name, fetch_s in (("slow", 0.2), ("fast", 0.01))
            )
        )

    slow, fast = asyncio.run(both())
    assert (slow["prompt"], slow["output"], slow["rewards"]) == ("slow", ["slow"] * 2, [1.0, 1.0])
    for told, fetch_s in ((slow, 0.2), (fast, 0.01)):
        generated, fetched = told[TIMES]
        assert len(generated) == 1
        assert len(fetched) == 2
        assert generated[0][1] - generated[0][0] >= 0.045
        assert all(end_s - start_s >= fetch_s - 0.005 for start_s, end_s in fetched)
        assert all(start_s >= generated[0][1] for start_s, _ in fetched)


def test_an_error_of_a_rollout_is_its_own_and_its_time_is_noted():
    engine = TimedEngine(Engine(0.01))
    with pytest.raises(ValueError, match="no such prompt"):
        asyncio.run(engine.generate("bad"))
    assert len(engine.intervals) == 1

    async def fail(**_):
        raise RuntimeError("the agent's own")

    with pytest.raises(RuntimeError, match="the agent's own"):
        asyncio.run(timed_execution(fail, {"llm_engine": Engine(0.0)}))


def test_a_fetch_outside_a_rollout_and_a_rollout_that_is_no_dict_pass():
    async def fetch():
        return 3

    async def execute(llm_engine):
        return None

    assert asyncio.run(timed_fetch(fetch)) == 3
    assert asyncio.run(timed_execution(execute, {"llm_engine": Engine(0.0)})) is None


# ---------------------------------------------------------------- metrics


def test_numbers_alone_are_metrics_and_what_is_not_finite_is_missing():
    status = {
        "policy_loss": 0.25, "reward": 2, "kl": math.nan, "actor_lr": math.inf,
        "response_length": 7.5, "return": -1.0, "generated_samples": ["text", 1.0], "flag": True,
    }  # fmt: skip
    assert dict(trainer_metrics(status)) == {
        "loss": 0.25, "reward": 2.0, "kl": None, "learning_rate": None, "completion_length": 7.5,
        "return": -1.0,
    }  # fmt: skip
    assert dict(trainer_metrics({})) == {}


# ---------------------------------------------------------------- comparison


def compared(stage, ours, exact):
    record = FakeRecord()
    record_comparison(record, stage, ours, exact)
    assert {phase for _, phase in record.evaluations} == {PHASE}
    return {name: values for (name, _), values in record.evaluations.items()}


def test_rewards_are_compared_by_shift_and_by_order():
    ours = [np.float32(v) for v in (1.0, 2.0, 3.0)]
    exact = [np.float32(v) for v in (1.5, 2.0, 0.0)]
    assert compared(Stage.REWARD, ours, exact) == {
        "score_shift": [-0.5, 0.0, 3.0],
        "rank_flip": [0.0, 1.0, 1.0],
    }


def test_logprobs_are_compared_row_by_row_and_empty_rows_are_left_out():
    ours = [np.array([-1.0, -2.0], np.float32), np.zeros(0, np.float32)]
    exact = [np.array([-1.5, -2.0], np.float32), np.zeros(0, np.float32)]
    assert compared(Stage.REFERENCE, ours, exact) == {"logprob_shift": [0.25]}


def test_a_large_batch_is_compared_at_once():
    rewards = list(np.linspace(0, 1, 8192, dtype=np.float32))
    found = compared(Stage.REWARD, rewards, rewards)
    assert len(found["score_shift"]) == 8192
    assert len(found["rank_flip"]) == PAIRED_ROWS * (PAIRED_ROWS - 1) // 2
    assert not any(found["rank_flip"])
