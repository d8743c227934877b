"""ROLL's RLVR, with critic, reference and two domains, keeps what every adapter has to."""

from __future__ import annotations

import shutil
from functools import cached_property

import pytest

from ecorl.ledger import LedgerReader
from ecorl.records import NO_ABILITIES, Action, Stage
from ecorl.runtime.overhead import HookTime
from tests.fakes.recordings import blinking
from tests.frameworks.conformance import FAULTS, N_STEPS, AdapterConformance, TrainedRun
from tests.frameworks.roll import harness
from tests.frameworks.roll.attached import EXACT, GPU, merged, one_based, train
from tests.frameworks.trainings import LIMIT_S
from tests.frameworks.watching import await_checkpoint, drivers

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3 * LIMIT_S + 60)]

N_ROWS = harness.N_ROWS
ROLES = {
    "generation": N_ROWS,
    **{f"reward:{domain}": N_ROWS // 2 for domain in harness.DOMAINS},
    **dict.fromkeys(("reference", "critic", "actor_train", "critic_train"), N_ROWS),
}  # fmt: skip
TRIES = 3


class RollUnderTest:
    """RLVR over actors of Ray; the exact engine is ROLL's own class on an accelerator worker."""

    rows = ROLES
    # Each domain has half of the rows; old log-probs are training work of the policy.
    same_tokens = ("generation", "reference", "critic", "critic_train")
    offloaded = ("reference",)
    inside_rollout = tuple(f"reward:{domain}" for domain in harness.DOMAINS)
    abilities = NO_ABILITIES
    # The end of a stage is when the scheduler has heard of it.
    slack_s = 0.5

    def __init__(self, framework, tiny, cluster, plain, folder):
        assert harness.N_STEPS == N_STEPS
        self.tiny, self.cluster, self.folder = tiny, cluster, folder
        self.resume_repeats = framework == "double"
        self.plain = TrainedRun(one_based(plain.numbers), plain.weights)
        self.refusal = ""

    def attached(self, name, block, changes=None, **options):
        folder = self.folder / name
        config = harness.rlvr(self.tiny, folder) | (changes or {})
        return train(self.cluster, folder, config, block, **options)

    @cached_property
    def gpu_path(self):
        return self.attached("gpu_path", GPU).trained()

    @cached_property
    def exact(self):
        return self.attached("exact", EXACT).trained()

    @cached_property
    def faulty(self):
        more = {"engine": {"faults": list(FAULTS)}, "placement": {"deadline_s": 5.0}}
        return self.attached("faulty", merged(EXACT, more)).trained()

    @cached_property
    def paused(self):
        carbon = {"carbon": blinking(self.folder)}
        return self.attached("paused", merged(GPU, carbon)).trained()

    @cached_property
    def resumed(self):
        folder, saves = self.folder / "resumed", {"save_steps": 1}
        for _ in range(TRIES):
            # The training may be through before it is killed.
            shutil.rmtree(folder, ignore_errors=True)
            cut = self.attached("resumed", GPU, saves, beside=kill, check=False)
            if cut.result.code:
                break
        refused = self.attached("resumed", GPU, saves, check=False).result
        assert refused.code == 2, refused.text
        self.refusal = refused.text.strip().splitlines()[-1]
        newest = harness.newest_checkpoint(folder)
        goes_on = saves | {"resume_from_checkpoint": str(newest)}
        return self.attached("resumed", GPU, goes_on).trained()


def kill(record):
    """Kill the driver when its first checkpoint is in the record."""
    await_checkpoint(record)
    for process in drivers("roll_adapters.roll", record.parent):
        process.kill()


@pytest.fixture(scope="module")
def adapter(framework, tiny, cluster, plain, tmp_path_factory):
    return RollUnderTest(framework, tiny, cluster, plain, tmp_path_factory.mktemp("conformance"))


class TestRoll(AdapterConformance):
    def test_its_log_tells_the_energy(self, adapter):
        run = adapter.gpu_path
        with LedgerReader(run.folder) as reader:
            told = next(e.detail for e in reader.events() if e.kind == "hook_clock")
        spent = HookTime.read(told)
        assert spent.n_events > 10 * N_STEPS
        assert sorted(run.drawn_j.values()) == list(run.drawn_j.values()) != []

    def test_the_reference_runs_beside_values_and_old_log_probs(self, adapter):
        with LedgerReader(adapter.exact.folder) as reader:
            rows = [row.result for row in reader.executions()]
        for step in range(1, N_STEPS + 1):
            own = [r for r in rows if r.iteration == step]
            (reference,) = [r for r in own if r.stage is Stage.REFERENCE]
            (values,) = [r for r in own if r.stage is Stage.CRITIC]
            (old,) = [r for r in own if r.stage is Stage.ACTOR_TRAIN and not r.n_output_tokens]
            assert reference.action is Action.CONCURRENT
            for other in (values, old):
                assert reference.t_start_s < other.t_end_s
                assert other.t_start_s < reference.t_end_s

    def test_rewards_inside_the_rollout_are_seen(self, adapter):
        with LedgerReader(adapter.gpu_path.folder) as reader:
            rows = [row.result for row in reader.executions()]
        for step in range(1, N_STEPS + 1):
            own = {
                r.role: r for r in rows if r.iteration == step and r.stage is not Stage.ACTOR_TRAIN
            }
            for role in adapter.inside_rollout:
                generation, reward = own["generation"], own[role]
                assert generation.t_start_s < reward.t_start_s < generation.t_end_s + 0.1
                assert reward.n_sequences == N_ROWS // 2
