"""Elastic trainings under whose joiners a whole machine goes away; training goes on meanwhile."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from ecorl.files import write_whole
from ecorl.trainer.elastic.records import ActorPlace, ElasticFault, Patience, Point
from tests.cluster import LOOPBACK, OBJECT_STORE_BYTES
from tests.elastic_runs import check_whole, training
from tests.toy_task import ToyTask

pytestmark = pytest.mark.timeout(900)

LIMIT_S = 240.0
"""Longest wait for what comes in seconds on a machine that is not busy, s."""

N_MACHINES = 3
"""With room for one member each: the first one's, the lost one, and another."""


@dataclass
class Waits:
    """A drill: a member comes to a point, writes down on which machine, and stays there."""

    point: Point
    member: str
    marker: Path

    def __call__(self, point, member, step):
        if (point, member) == (self.point, self.member):
            import ray

            write_whole(self.marker, ray.get_runtime_context().get_node_id())
            time.sleep(600)


@pytest.fixture
def remove(elastic_cluster):
    """Adds machines; removes one by its number."""
    machines = [
        elastic_cluster.add_node(
            wait=False,  # they start at the same time, while the training does
            num_cpus=1,
            resources={"seat": 1},
            object_store_memory=OBJECT_STORE_BYTES,
            node_ip_address=LOOPBACK,
        )
        for _ in range(N_MACHINES)
    ]

    def end(machine):
        elastic_cluster.remove_node(machine, allow_graceful=False)
        machines.remove(machine)

    yield lambda number: end(next(one for one in machines if one.node_id == number))
    for one in list(machines):
        end(one)


@pytest.mark.deep
@pytest.mark.parametrize("point", [Point.SHARING, Point.MEETING])
def test_a_machine_that_goes_away_while_its_member_joins(remove, tmp_path, point):
    """Nothing is lost, and the width is reached with another machine."""
    task, marker = ToyTask(step_s=0.02), tmp_path / "machine"
    options = {
        "drill": Waits(point, "member-2", marker),
        "place": ActorPlace(resources={"seat": 1}),
        "patience": Patience(ping_s=60.0),
        "timeout_s": 5.0,
    }
    with (
        training(tmp_path / "run", task, **options) as trainer,
        # Beside this thread, which alone may use Ray's cluster object.
        ThreadPoolExecutor(1) as pool,
    ):
        trainer.train(1)
        trainer.set_width(2)
        trains = pool.submit(
            trainer.train, 100_000, lambda done: done.width == 2 and trainer.stop()
        )
        try:
            limit_s = time.monotonic() + LIMIT_S
            while not (marker.exists() or trains.done()):
                assert time.monotonic() < limit_s
                time.sleep(0.01)
            remove(marker.read_text())
            trains.result(timeout=LIMIT_S)
        except BaseException:
            trainer.stop()  # or the pool waits for ever
            raise
        n_steps = trainer.n_done + 3
        result = trainer.train(n_steps)
        check_whole(trainer, result, task, n_steps)
    assert result.widths[-1] == 2
    # But for steps in which a busy machine was late.
    causes = [one.message for one in result.faults if one.kind is ElasticFault.STEP_REDONE]
    assert result.n_redone == sum("from now on a collective may take" in one for one in causes)
    kinds = [(one.kind, one.who) for one in result.faults]
    assert (ElasticFault.JOINER_LOST, "member-2") in kinds
    assert ElasticFault.MEMBER_LOST not in {kind for kind, _ in kinds}
