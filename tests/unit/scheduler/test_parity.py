"""The network sees in a run what it saw in training: one iteration, built both ways."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ecorl.config import DeviceConfig
from ecorl.devices import load_profile
from ecorl.devices.llama import model_shape
from ecorl.records import (
    INFERENCE_STAGES,
    NO_ABILITIES,
    Abilities,
    Action,
    Algorithm,
    SchedulerState,
    Stage,
    StageWork,
)
from ecorl.scheduler import Guards, place
from ecorl.scheduler.features import N_FEATURES, NAMES
from ecorl.scheduler.learned import DecisionView, LearnedScheduler
from ecorl.scheduler.policies import RunSetting
from ecorl.scheduler.policy_file import PolicyFile
from ecorl.scheduler.run_costs import BatchKind, RunTable, priced, run_rules
from ecorl.scheduler.tables import COLUMNS, CostTable
from ecorl.sim.lengths import lengths_of
from ecorl.sim.scenario import Limits, Scenario
from ecorl.sim.simulation import _POWER_SHARE, N_STAGES, Simulation
from ecorl.sim.trace import draw_trace
from ecorl.stages.figures import ACTIONS, CONCURRENT, FPGA, GPU
from ecorl.stages.iteration import queue_s
from tests.examples import examples

LENGTHS = np.geomspace(64.0, 1024.0, 5)
COST = st.floats(0.01, 20.0)
CODES = (GPU, FPGA, CONCURRENT)
MODELS = {
    s: model_shape("1b", scalar_head=s is Stage.REWARD)
    for s in (Stage.GENERATION, Stage.REWARD, Stage.REFERENCE, Stage.ACTOR_TRAIN)
}


@st.composite
def tables(draw):
    """Costs that grow with the length, at random."""
    shortest = np.array(draw(st.lists(COST, min_size=len(COLUMNS), max_size=len(COLUMNS))))
    growth = draw(st.floats(0.5, 1.5))
    shares = st.floats(0.0, 1.0)
    return CostTable(
        lengths=LENGTHS,
        values=shortest * (LENGTHS[:, None] / LENGTHS[0]) ** growth,
        gpu_idle_w=draw(st.floats(0.0, 5.0)),
        card_active_w=draw(st.one_of(st.just(0.0), st.floats(0.01, 20.0))),
        card_idle_w=draw(st.floats(0.0, 1.0)),
        resync_s=draw(shares),
        forward_share=draw(shares),
        early_share=draw(shares),
        swap_share=draw(shares),
        contention=draw(shares),
        card_usable=(draw(st.booleans()) or draw(st.booleans()), draw(st.booleans()), True),
    )


def scenario(table, **changes):
    """A job in the simulator without surprises, that may do what a run may do."""
    made = Scenario(
        "parity",
        "fitted",
        fitted=table,
        n_cards=1,
        drift_std=0.0,
        noise_std=0.0,
        abilities=Abilities(),
        n_iterations=1,
    )
    return replace(made, **changes)


def undisturbed(job, n_others=0, up=True):
    """One iteration of it: the usual mix, even readings, `n_others` batches ahead on the card."""
    trace = draw_trace([job], np.random.default_rng(0))
    work = trace.actual
    batch_s = np.where(work.card_s[0] > 0.0, work.card_s[0], work.card_s[1])
    waiting_s = queue_s(n_others, batch_s, work.card_share)
    arriving_s = (work.generation_s + waiting_s) * (n_others > 0)
    changes = {"arriving_s": arriving_s, "cards_up": np.full_like(arriving_s, float(up))}
    if job.abilities.stream:
        # A run does not know how the ends of the rows are spread.
        changes |= {"handover_s": (work.generation_s,), "tail": (np.ones_like(arriving_s),)}
    return replace(
        trace,
        actual=work._replace(**changes),
        expected=trace.expected._replace(**changes),
        noise=np.zeros_like(trace.noise),
    )


def in_training(trace, codes):
    """What the policy sees of a simulation after some actions, and the actions that stood."""
    simulation = Simulation(trace, 0)
    stood = []
    for code in codes:
        may = (1.0, *simulation.permitted())
        stood.append(code if may[code] > 0.0 else GPU)
        simulation.step(code)
    inputs, may = simulation.observation()
    return tuple(map(float, inputs)), tuple(map(float, may)), stood


def batch(trace, stage):
    """The batch of the iteration, with the tokens that the simulator gives it, whole or not."""
    job = trace.scenarios[0]
    factor = np.full(trace.length.shape, job.length_scale)
    lengths = lengths_of(trace.shares, factor, np.array([job.max_length]))
    n, length = job.n_rows, float(trace.length[0, 0])
    assert lengths.mean[0, 0] == pytest.approx(length)
    longest = float(lengths.longest[0, 0]) + job.prompt_length
    return StageWork(
        stage, n, n * (length + job.prompt_length), n * length, longest, MODELS.get(stage)
    )


def in_a_run(table, trace, stage, queue, decided, up=True):
    """What the policy sees of the same iteration in a run."""
    job = trace.scenarios[0]
    share = _POWER_SHARE[stage]
    two = job.n_gpus > 1
    state = SchedulerState(
        iteration=1,
        algorithm=job.algorithm,
        stage=stage,
        gpu_power_share=(share - 0.04, share + 0.04) if two else (share,),
        gpu_utilisation=(share - 0.05, share + 0.05) if two else (share,),
        fpga_queue=queue,
        fpga_available=up,
        work=batch(trace, stage),
        decided=decided,
    )
    view = DecisionView(table, state)
    return view.inputs(), view.may


def assert_alike(seen, trained):
    assert len(seen) == len(trained) == N_FEATURES
    for name, run, simulated in zip(NAMES, seen, trained, strict=True):
        assert run == pytest.approx(simulated, rel=1e-9, abs=1e-9), name


def both_ways(table, trace, n_others, up=True):
    """Compare at the reward, and at the reference after each action of the reward."""
    job = trace.scenarios[0]
    generated = ((Stage.GENERATION, Action.GPU),)
    inputs, may, _ = in_training(trace, [GPU])
    seen, allowed = in_a_run(table, trace, Stage.REWARD, n_others, generated, up)
    assert allowed == may
    assert_alike(seen, inputs)
    for code in CODES:
        inputs, may, stood = in_training(trace, [GPU, code])
        decided = (*generated, (Stage.REWARD, ACTIONS[stood[1]]))
        queue = n_others + (stood[1] != GPU)
        assert queue < job.limits.q_max
        seen, allowed = in_a_run(table, trace, Stage.REFERENCE, queue, decided, up)
        assert allowed == may
        assert_alike(seen, inputs)


@st.composite
def jobs(draw):
    """A table, a job and the setting of the run that does the same."""
    table = draw(tables())
    n_cards, whole = draw(st.sampled_from([1, 2, 5])), draw(st.booleans())
    table = replace(table, card_share=1.0 / n_cards if whole else 1.0)
    abilities = Abilities(*(draw(st.booleans()) for _ in range(4)))
    limits = Limits(
        draw(st.floats(7.0, 12.0)),
        draw(st.floats(100.0, 3000.0)),
        draw(st.one_of(st.none(), st.floats(0.0, 2.0))),
    )
    job = scenario(
        table,
        algorithm=draw(st.sampled_from(list(Algorithm))),
        n_rows=draw(st.sampled_from([32, 256])),
        prompt_length=draw(st.floats(0.0, 600.0)),
        length_scale=draw(st.floats(0.02, 1.5)),
        max_length=1024.0,
        n_gpus=draw(st.sampled_from([1, 8])),
        n_cards=n_cards,
        abilities=abilities,
        limits=limits,
    )
    models = {s: m for s, m in job.models.items() if s in job.setting.stages}
    run = RunSetting(
        load_profile("h100_sxm"), load_profile("u55c"), DeviceConfig(n_gpus=job.n_gpus), models,
        limits.q_max, limits.l_max, limits.energy_margin, abilities, n_cards,
    )  # fmt: skip
    return job, run


def run_table(job, run):
    return RunTable(
        job.table, job.n_rows, run_rules(run, job.table, None), run.abilities, run.n_cards
    )


@settings(deadline=None, max_examples=examples(150))
@given(jobs(), st.integers(0, 3), st.booleans())
def test_run_and_simulator_show_the_same_iteration(made, n_others, up):
    job, run = made
    both_ways(run_table(job, run), undisturbed(job, n_others, up), n_others, up)


@settings(deadline=None, max_examples=examples(150))
@given(
    jobs(),
    st.integers(0, 3),
    st.lists(st.sampled_from(CODES), min_size=N_STAGES, max_size=N_STAGES),
)
def test_it_is_the_same_at_every_stage_whatever_was_decided_before(made, n_others, codes):
    job, run = made
    ready, trace = run_table(job, run), undisturbed(job, n_others)
    for n_done, stage in enumerate(Stage):
        inputs, may, stood = in_training(trace, codes[:n_done])
        decided = tuple((s, ACTIONS[code]) for s, code in zip(Stage, stood, strict=False))
        own = sum(action is not Action.GPU for s, action in decided if s in INFERENCE_STAGES)
        seen, allowed = in_a_run(ready, trace, stage, n_others + own, decided)
        assert allowed == may
        assert_alike(seen, inputs)


@pytest.mark.parametrize("name", [field.name for field in fields(Abilities)])
def test_each_ability_gives_the_policy_a_choice(name):
    """What the network ranks first is proposed where the framework can do it, and only there."""
    stage = {
        "stream": Stage.GENERATION, "early_forward": Stage.ACTOR_TRAIN,
        "defer_critic": Stage.CRITIC_TRAIN, "offload_critic": Stage.CRITIC,
    }[name]  # fmt: skip
    models = {s: model_shape("1b", scalar_head=s is not Stage.REFERENCE) for s in Stage}
    work = StageWork(stage, 64, 64 * 300, 64 * 200, 500, models[stage])
    state = SchedulerState(1, Algorithm.PPO, stage, (0.5,), (0.5,), 0, True, work)
    for abilities in (NO_ABILITIES, Abilities(**{name: True})):
        policy = LearnedScheduler(PolicyFile(None))
        policy.file.energy_margin = 1e9  # whatever it costs
        policy.file.logits = lambda inputs: np.array([0.0, 1.0, 2.0])
        policy.bind(
            RunSetting(
                load_profile("h100_sxm"), load_profile("u55c"), DeviceConfig(), models, 8.0, 8192.0,
                None, abilities,
            )
        )  # fmt: skip
        placed = place(state, policy, Guards(l_max=8192, abilities=abilities))
        wanted = Action.GPU if abilities == NO_ABILITIES else Action.CONCURRENT
        assert (placed.action, placed.proposed) == (wanted, wanted), placed.reason
        dear = Guards(l_max=8192, energy_margin=0.0, abilities=abilities)
        assert place(state, policy, dear).action is Action.GPU


@pytest.mark.parametrize("n_others", [0, 1, 3])
@pytest.mark.parametrize("length_scale", [0.1, 0.3, 0.5])
def test_the_same_holds_for_the_tables_that_a_run_computes(length_scale, n_others):
    gpu, card = load_profile("h100_sxm"), load_profile("u55c")
    run = RunSetting(gpu, card, DeviceConfig(n_gpus=2), MODELS, 8.0, 4096.0, 1e3)
    ready = priced(run, BatchKind(Algorithm.GRPO, 64, 4, 26), None)
    job = scenario(
        ready.table, algorithm=Algorithm.GRPO, n_rows=64, prompt_length=90.0, n_gpus=2,
        length_scale=length_scale, max_length=1024.0, limits=Limits(8.0, 4096.0, 1e3),
    )  # fmt: skip
    trace = undisturbed(job, n_others)
    _, may, _ = in_training(trace, [GPU])
    assert may == (1.0, 1.0)
    both_ways(ready, trace, n_others)


def test_a_generation_of_less_than_no_time_is_the_same_too():
    """Linear in the longest row, a table may tell such a time where rows are nearly alike."""
    values = np.ones((5, len(COLUMNS)))
    values[:, COLUMNS.index("generation_short_s")] = 5.0
    values[:, COLUMNS.index("generation_long_s")] = 0.01
    table = CostTable(LENGTHS, values, 1.0, 1.0, 0.1)
    job = scenario(table, algorithm=Algorithm.GRPO, n_rows=256, limits=Limits(8.0, 1e5, None))
    run = RunSetting(
        load_profile("h100_sxm"), load_profile("u55c"), DeviceConfig(n_gpus=32), MODELS, 8.0, 1e5,
        None,
    )  # fmt: skip
    trace = undisturbed(job)
    assert trace.actual.generation_s[0] < 0.0
    both_ways(RunTable(table, 256, run_rules(run, table, None)), trace, 0)


def test_the_comparison_would_see_what_was_different_once():
    """A clock at 0, a cold card and a forgotten decision are each told from the real thing."""
    table = CostTable(LENGTHS, np.ones((5, len(COLUMNS))), 1.0, 1.0, 0.1)
    job = scenario(table, algorithm=Algorithm.GRPO, n_rows=32, limits=Limits(8.0, 1e5, 9.0))
    trace = undisturbed(job)
    run = RunSetting(
        load_profile("h100_sxm"), load_profile("u55c"), DeviceConfig(n_gpus=32), MODELS, 8.0, 1e5,
        9.0,
    )  # fmt: skip
    ready = RunTable(table, 32, run_rules(run, table, None))
    inputs, _, _ = in_training(trace, [GPU, CONCURRENT])
    forgotten, _ = in_a_run(ready, trace, Stage.REFERENCE, 1, ())
    with pytest.raises(AssertionError):
        assert_alike(forgotten, inputs)
    named = dict(zip(NAMES, inputs, strict=True))
    assert named["pending"] > 0.0 > named["heat"]
    assert named["backlog"] > 0.0


@pytest.mark.parametrize("place", [Stage.REWARD, Stage.REFERENCE])
def test_a_batch_of_this_iteration_is_not_counted_twice(place):
    table = CostTable(LENGTHS, np.ones((5, len(COLUMNS))), 1.0, 1.0, 0.1)
    job = scenario(table, algorithm=Algorithm.GRPO, n_rows=32, limits=Limits(8.0, 1e5, None))
    trace = undisturbed(job)
    run = RunSetting(
        load_profile("h100_sxm"), load_profile("u55c"), DeviceConfig(n_gpus=32), MODELS, 8.0, 1e5,
        None,
    )  # fmt: skip
    ready = RunTable(table, 32, run_rules(run, table, None))
    decided = ((Stage.REWARD, Action.CONCURRENT),) if place is Stage.REFERENCE else ()
    seen, _ = in_a_run(ready, trace, place, 1, decided)
    assert dict(zip(NAMES, seen, strict=True))["queue_batches"] == pytest.approx(0.25)
