"""A policy is told what was decided before in its iteration."""

from __future__ import annotations

from ecorl.records import Action, Stage
from ecorl.runtime.protocol import join
from ecorl.scheduler.policies import Static


class _Noting(Static):
    """A static policy that keeps the states that it was asked about."""

    def __init__(self, actions):
        super().__init__(actions)
        self.asked = []

    def propose(self, state):
        self.asked.append(state)
        return super().propose(state)


def test_the_decisions_of_an_iteration_reach_the_next_ones(bench, toys, use_engines, monkeypatch):
    use_engines(toys.threaded())
    policy = _Noting(dict.fromkeys((Stage.REWARD, Stage.REFERENCE), Action.CONCURRENT))
    monkeypatch.setattr("ecorl.runtime.scheduling.stage_scheduler.build_policy", lambda *_: policy)
    runtime = bench.build(stages=(Stage.REWARD, Stage.REFERENCE))
    runtime.start()
    batch = toys.make_batch(4)
    bench.iteration = runtime.begin_iteration(1)
    runtime.on_stage_end(bench.start(toys.work_of(batch, Stage.GENERATION)))
    sent = bench.start(toys.work_of(batch, Stage.REWARD))
    assert runtime.submit(sent, lambda: batch)
    bench.start(toys.work_of(batch, Stage.REFERENCE), may_offload=False)
    generated = (Stage.GENERATION, Action.GPU)
    assert [state.decided for state in policy.asked] == [
        (),
        (generated,),
        (generated, (Stage.REWARD, Action.CONCURRENT)),
    ]
    assert policy.asked[2].fpga_queue == 1
    # A batch that could not be sent is answered on the GPU path.
    run = bench.start(toys.work_of(batch, Stage.REWARD))

    def broken():
        raise RuntimeError("no room")

    assert not runtime.submit(run, broken)
    assert run.placement.action is Action.GPU
    bench.start(toys.work_of(batch, Stage.REFERENCE))
    assert policy.asked[4].decided == (
        generated, (Stage.REWARD, Action.GPU), (Stage.REFERENCE, Action.GPU),
    )  # fmt: skip
    bench.iteration = runtime.begin_iteration(2)
    bench.start(toys.work_of(batch, Stage.REWARD))
    assert policy.asked[5].decided == ()
    join(runtime, sent, bench.exact(batch))
