"""The order of calls in a rollout, on a real runtime with engines of this process."""

from __future__ import annotations

import numpy as np
import pytest

from ecorl.records import Action, Stage
from ecorl.runtime.rollout import GeneratedRows, InferenceCall, Rollout

N_ROWS = 4


@pytest.fixture
def rollout(bench, toys, use_engines):
    use_engines(toys.threaded())
    runtime = bench.build(stages=(Stage.REWARD, Stage.REFERENCE))
    runtime.start()
    return Rollout(runtime, toys.tiny)


@pytest.fixture
def call_of(bench, toys):
    """An inference call of a batch, and the list that its answers go to."""

    def make(batch, stage=Stage.REWARD, make_batch=None):
        answers = []
        work = toys.work_of(batch, stage)
        deliver = answers.append
        return InferenceCall(
            work, make_batch or (lambda: batch), bench.exact(batch, stage), deliver
        ), answers

    return make


def generate(rollout, step=1, first_batch=0):
    run = rollout.begin_generation(step, first_batch, N_ROWS, 8)
    rollout.end_generation(run, GeneratedRows([3, 3, 2, 2], [5, 1, 4, 2]))


def test_a_rollout_is_recorded_in_the_order_of_its_calls(bench, toys, rollout, call_of):
    rollout.begin_step(1, 0)
    generate(rollout)
    batch = toys.replace(toys.make_batch(N_ROWS), sample_ids=rollout.sample_ids)
    for stage in (Stage.REWARD, Stage.REFERENCE):
        call, answers = call_of(batch, stage)
        assert rollout.expects(stage, N_ROWS)
        run = rollout.submit(call)
        assert run.placement.action is Action.CONCURRENT
        assert answers == []
        assert not rollout.expects(stage, N_ROWS), "one call a stage"
        rollout.join(stage)
        right = toys.answer(batch, stage).values
        assert [np.asarray(v).tobytes() for v in answers[0]] == [
            np.asarray(v).tobytes() for v in right
        ]
    rollout.begin_training(N_ROWS, 22, 12)
    assert rollout.training
    rollout.begin_training(N_ROWS, 22, 12)  # the same micro-batch
    rollout.end_training()
    rollout.end_training()
    assert not rollout.training
    bench.runtime.close()  # energies are settled, and with them the executions booked
    found = [(r.stage, r.n_tokens, r.n_output_tokens) for r in bench.executions()]
    assert sorted(found) == sorted([
        (Stage.GENERATION, 22, 12),
        (Stage.REWARD, batch.n_tokens, sum(batch.n_completion)),
        (Stage.REFERENCE, batch.n_tokens, sum(batch.n_completion)),
        (Stage.ACTOR_TRAIN, 22, 12),
    ])  # fmt: skip


def test_ids_are_unique_over_batches_and_name_their_step(rollout):
    seen = set()
    for step in (1, 2):
        rollout.begin_step(step, 2 * (step - 1))
        for _ in range(2):
            generate(rollout, step, 2 * (step - 1))
            assert all(name.startswith(f"{step}.") for name in rollout.sample_ids)
            seen |= set(rollout.sample_ids)
    assert len(seen) == 4 * N_ROWS


def test_a_call_elsewhere_or_of_some_rows_is_not_expected(rollout):
    assert not rollout.expects(Stage.REFERENCE, N_ROWS), "nothing is generated yet"
    generate(rollout)
    assert rollout.expects(Stage.REFERENCE, N_ROWS)
    assert not rollout.expects(Stage.REFERENCE, N_ROWS - 1)
    rollout.barrier_ahead = False
    assert not rollout.expects(Stage.REFERENCE, N_ROWS)


def test_rows_that_cannot_be_made_stay_with_the_framework(bench, toys, rollout, call_of):
    generate(rollout)

    def broken():
        raise ValueError("no tokenizer")

    call, answers = call_of(toys.make_batch(N_ROWS), make_batch=broken)
    run = rollout.submit(call)
    assert not run.sent
    rollout.join(Stage.REWARD)
    assert answers == []
    (fault,) = bench.faults()
    assert "no tokenizer" in fault.detail


def test_what_an_exception_left_open_is_dropped_by_the_next_generation(
    bench, toys, rollout, call_of
):
    generate(rollout)
    call, answers = call_of(toys.make_batch(N_ROWS))
    rollout.submit(call)
    rollout.begin_training(N_ROWS, 22, 12)
    generate(rollout, step=2, first_batch=1)
    assert not rollout.training
    rollout.join(Stage.REWARD)
    assert answers == []
    assert all(lane.n_open == 0 for lane in bench.runtime._scheduler._lanes.values())
