"""OpenRLHF's PPO, with critic, reward model and reference, keeps what every adapter has to."""

from __future__ import annotations

from functools import cached_property

import pytest

from ecorl.ledger import LedgerReader
from ecorl.records import NO_ABILITIES, Stage
from ecorl.runtime.overhead import HookTime
from tests.fakes.recordings import blinking
from tests.frameworks.conformance import FAULTS, N_STEPS, AdapterConformance, TrainedRun
from tests.frameworks.openrlhf import harness
from tests.frameworks.openrlhf.attached import EXACT, GPU, held, toml, train
from tests.frameworks.trainings import LIMIT_S
from tests.frameworks.watching import await_checkpoint, processes

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3 * LIMIT_S + 60)]

ROLES = ("generation", "reward", "reference", "critic", "actor_train", "critic_train")
GEARS = (
    'gears = {allowed = ["BF16", "FP8"], simulate_fp8 = true, measure_every = 1, '
    "mismatch_limit = 3.0}\n"
)
"""The actor's own gear, and one that is measured at each step: nothing may change by it."""


class OpenRlhfUnderTest:
    """PPO in actors of Ray; the exact engine is OpenRLHF's own classes on accelerator workers."""

    rows = dict.fromkeys(ROLES, harness.N_ROWS)
    # Old log-probs are training work of the policy, which then reads the tokens twice.
    same_tokens = tuple(role for role in ROLES if role != "actor_train")
    offloaded = ("reward", "reference")
    inside_rollout = ()
    abilities = NO_ABILITIES
    # The end of a stage is when the scheduler has heard of it.
    slack_s = 0.5
    # It does not restore the random state with which it shuffles.
    resume_repeats = False

    def __init__(self, tiny, cluster, plain, folder):
        assert harness.N_STEPS == N_STEPS
        self.tiny, self.cluster, self.folder = tiny, cluster, folder
        self.plain = TrainedRun(plain.numbers, plain.weights)
        self.refusal = ""

    def attached(self, name, config, changes=None, **options):
        return train(self.cluster, self.tiny, self.folder / name, config, changes, **options)

    def left_by(self, run):
        drawn = run.result.metrics.get("train/energy/total_j", {})
        return TrainedRun(run.numbers, run.result.weights, run.record, drawn)

    @cached_property
    def gpu_path(self):
        return self.left_by(self.attached("gpu_path", GPU))

    @cached_property
    def exact(self):
        return self.left_by(self.attached("exact", EXACT))

    @cached_property
    def faulty(self):
        faults = f"engine.faults = {toml(FAULTS)}\nplacement.deadline_s = 5.0\n"
        return self.left_by(self.attached("faulty", EXACT + faults))

    @cached_property
    def paused(self):
        config = f"{GPU}{GEARS}carbon = {toml(blinking(self.folder))}\n"
        return self.left_by(self.attached("paused", config))

    @cached_property
    def resumed(self):
        with held(self.cluster, 3, self.kill) as beside:
            cut = self.attached("resumed", GPU, harness.SAVES, beside=beside, check=False)
        assert cut.result.code
        refused = self.attached("resumed", GPU, harness.SAVES, check=False).result
        assert refused.code == 2
        self.refusal = refused.text.strip().splitlines()[-1]
        return self.left_by(self.attached("resumed", GPU, harness.RESUMES))

    def kill(self, record):
        """Kill the trainer; its only checkpoint is that of the step before."""
        await_checkpoint(record)
        for process in processes("PPOTrainer", self.cluster):
            process.kill()


@pytest.fixture(scope="module")
def adapter(tiny, cluster, plain, tmp_path_factory):
    return OpenRlhfUnderTest(tiny, cluster, plain, tmp_path_factory.mktemp("conformance"))


class TestOpenRlhf(AdapterConformance):
    def test_its_log_tells_the_energy(self, adapter):
        run = adapter.gpu_path
        with LedgerReader(run.folder) as reader:
            told = next(e.detail for e in reader.events() if e.kind == "hook_clock")
        spent = HookTime.read(told)
        assert spent.n_events > 10 * N_STEPS  # the trainer's process is counted
        assert spent.beside_s > 0.0
        assert sorted(run.drawn_j.values()) == list(run.drawn_j.values()) != []

    def test_a_gear_is_measured_and_its_own_gear_changes_no_bit(self, adapter):
        """Whether the numbers are the same is the suite's: this is about the record."""
        with LedgerReader(adapter.paused.folder) as reader:
            trained = [
                row.result
                for row in reader.executions()
                if row.result.stage is Stage.ACTOR_TRAIN and row.result.n_output_tokens
            ]
            told = [m.iteration for m in reader.metrics() if m.name == "probability_mismatch_FP8"]
        assert {(r.gear, r.width) for r in trained} == {("BF16", 1)}
        assert told == list(range(1, N_STEPS + 1))
