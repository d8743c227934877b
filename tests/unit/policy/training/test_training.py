"""Environments, network, export, and trainings that are interrupted."""

from __future__ import annotations

import tempfile
from dataclasses import replace

import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env

from ecorl.errors import ConfigError, RunError
from ecorl.policy.evaluation.comparison import ORDER, RULES
from ecorl.policy.evaluation.evaluate import FilePolicy, compare
from ecorl.policy.planners.planner import Planner
from ecorl.policy.training import ppo
from ecorl.policy.training.export import save_onnx
from ecorl.policy.training.imitation import label_episodes
from ecorl.policy.training.network import PolicyNetwork, logits_in_numpy, permitted_codes
from ecorl.policy.training.train import NetworkPolicy, TrainingPlan, train
from ecorl.scheduler.features import N_FEATURES
from ecorl.scheduler.policy_file import PolicyFile
from ecorl.sim.batched import BatchedEnv, batch_from, observe
from ecorl.sim.env import PlacementEnv, drawing_from
from ecorl.sim.families.training import paper_scenarios
from ecorl.sim.simulation import Simulation, play
from ecorl.sim.trace import draw_trace
from tests.fakes.scenarios import SCENARIO

TINY = TrainingPlan("paper", n_scenarios=2, n_iterations=8, n_rounds=2, n_epochs=2, ppo_steps=0)


def states(n=64):
    return np.random.default_rng(1).normal(size=(n, N_FEATURES)).astype(np.float32)


def network():
    torch.manual_seed(3)
    made = PolicyNetwork()
    made.trunk.normalise_by(states())
    return made


def test_the_environment_is_one_by_gymnasiums_own_check():
    check_env(PlacementEnv(drawing_from([SCENARIO])), skip_render_check=True)


def test_the_batched_environment_plays_what_the_plain_one_plays():
    env = BatchedEnv(batch_from([SCENARIO]), 3, seed=5)
    env.reset()
    trace = env._simulation.trace
    single = [Simulation(trace, i) for i in range(3)]
    rng = np.random.default_rng(0)
    for _ in range(6 * SCENARIO.n_iterations - 1):
        codes = rng.integers(0, 3, 3)
        env.step_async(codes)
        seen, rewards, over, _ = env.step_wait()
        for i, one in enumerate(single):
            assert rewards[i] == pytest.approx(one.step(int(codes[i])), abs=1e-6)
            state = np.array(one.observation()[0])
            inside = np.clip(state, env.observation_space.low, env.observation_space.high)
            assert seen[i] == pytest.approx(inside, abs=1e-5)
        assert not over.any()


def test_an_episode_ends_by_time_and_the_next_begins():
    env = BatchedEnv(batch_from([SCENARIO]), 2, seed=1)
    env.reset()
    total = np.zeros(2)
    for _ in range(6 * SCENARIO.n_iterations):
        env.step_async(np.full(2, 2))
        _, rewards, over, infos = env.step_wait()
        total += rewards
    assert over.all()
    for i, info in enumerate(infos):
        assert info["TimeLimit.truncated"]
        assert info["terminal_observation"].shape == (N_FEATURES,)
        assert info["episode"]["r"] == pytest.approx(total[i], abs=1e-4)
    assert env._simulation.iteration == 0


def test_numpy_torch_and_onnx_are_one_network(tmp_path):
    made = network()
    save_onnx(made, {"plan": {}}, tmp_path / "p.onnx")
    with torch.inference_mode():
        eager = made(torch.from_numpy(states())).numpy()
    assert logits_in_numpy(made.arrays(), states()) == pytest.approx(eager, abs=1e-4)
    assert PolicyFile(tmp_path / "p.onnx").batch(states()) == pytest.approx(eager, abs=1e-4)
    again = PolicyNetwork.from_arrays(made.arrays())
    assert sum(p.numel() for p in again.parameters()) == sum(p.numel() for p in made.parameters())


def test_what_the_guards_refuse_is_never_chosen():
    logits = np.array([[0.0, 9.0, 5.0]] * 4)
    may = (np.array([1.0, 0.0, 0.0, 1.0]), np.array([1.0, 1.0, 0.0, 0.0]))
    assert permitted_codes(logits, may).tolist() == [1, 2, 0, 1]


def test_labels_price_the_planners_choice_at_nothing_and_refused_actions_at_a1():
    scenarios = [replace(SCENARIO, n_iterations=4)] * 3
    labels = label_episodes(scenarios, Planner(scenarios), None, seed=0)
    assert len(labels) > 20
    assert labels.regrets.min(axis=1).tolist() == [0.0] * len(labels)
    assert (labels.regrets >= 0).all()
    refused = labels.states[:, 6] <= 0  # may_a2
    assert (labels.regrets[refused, 1] == labels.regrets[refused, 0]).all()


@pytest.mark.parametrize(
    ("n_scenarios", "n_iterations"), [(2, 10), pytest.param(6, 20, marks=pytest.mark.deep)]
)
def test_a_trained_network_is_nearer_to_the_planner_than_an_untrained_one(
    tmp_path, n_scenarios, n_iterations
):
    drawn = paper_scenarios(2, n_scenarios, harder=True)
    pool = [replace(s, n_iterations=n_iterations) for s in drawn]
    plan = TrainingPlan(
        "paper",
        n_scenarios=n_scenarios,
        n_iterations=n_iterations,
        n_rounds=2,
        n_epochs=15,
        ppo_steps=0,
    )
    made = train(plan, tmp_path / "run", scenarios=pool, tensorboard=False)
    trace = draw_trace(pool, np.random.default_rng(77))
    ours = play(Simulation(trace), NetworkPolicy(made.network.arrays()))[0].mean()
    blank = play(Simulation(trace), NetworkPolicy(PolicyNetwork().arrays()))[0].mean()
    planner = play(Simulation(trace), Planner(pool))[0].mean()
    assert ours > 0.5 * planner
    assert ours > blank


@pytest.mark.parametrize("stop_at", ["round 1 of 2: fit", "round 2 of 2: labels"])
def test_an_interrupted_imitation_goes_on_to_the_same_network(tmp_path, stop_at):
    whole = train(TINY, tmp_path / "a", tensorboard=False)

    def tell(step, share):
        if stop_at in step:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(TINY, tmp_path / "b", tensorboard=False, tell=tell)
    resumed = train(TINY, tmp_path / "b", tensorboard=False)
    _assert_equal(whole.network, resumed.network)


def test_an_interrupted_ppo_goes_on_to_the_same_network(tmp_path, monkeypatch):
    monkeypatch.setattr(ppo, "CHUNK", 3840)
    plan = replace(TINY, ppo_steps=11_520, imitate=False)
    whole = train(plan, tmp_path / "a", tensorboard=False)

    def tell(step, share):
        if "11,520 of" in step:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(plan, tmp_path / "b", tensorboard=False, tell=tell)
    resumed = train(plan, tmp_path / "b", tensorboard=False)
    _assert_equal(whole.network, resumed.network)


@pytest.mark.parametrize("tensorboard", [None, "tensorboard"])
def test_ppo_leaves_nothing_in_the_temporary_folder(tmp_path, monkeypatch, tensorboard):
    monkeypatch.setattr(ppo, "CHUNK", 3840)
    monkeypatch.delenv("SB3_LOGDIR", raising=False)
    temporary, checkpoint = tmp_path / "tmp", tmp_path / "ppo.zip"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    ppo.train_ppo([SCENARIO], 3840, start=network(), checkpoint=checkpoint)
    log = tensorboard and tmp_path / tensorboard
    ppo.train_ppo([SCENARIO], 7680, start=network(), checkpoint=checkpoint, tensorboard=log)
    assert list(temporary.iterdir()) == []
    assert (tmp_path / "tensorboard").exists() == bool(tensorboard)


def _assert_equal(one, other):
    theirs = other.arrays()
    for name, array in one.arrays().items():
        assert np.array_equal(array, theirs[name]), name


def test_a_folder_of_another_plan_is_refused(tmp_path):
    train(TINY, tmp_path / "a", tensorboard=False)
    with pytest.raises(RunError, match="another plan"):
        train(replace(TINY, seed=1), tmp_path / "a", tensorboard=False)


@pytest.mark.parametrize(
    "changes", [{"n_scenarios": 0}, {"n_rounds": 0}, {"imitate": False, "ppo_steps": 0}]
)
def test_a_plan_that_cannot_be_is_refused(changes):
    with pytest.raises(ConfigError, match=r"train\."):
        replace(TINY, **changes)


def test_a_comparison_has_the_scale_of_its_ends(tmp_path):
    save_onnx(network(), {}, tmp_path / "p.onnx")
    scenario = replace(SCENARIO, n_iterations=10)
    found = compare([scenario], {"learned": FilePolicy(PolicyFile(tmp_path / "p.onnx"))}, n_seeds=3)
    (result,) = found.results
    assert result.share("dp") == 1.0
    assert result.share("always_gpu") == pytest.approx(0.0, abs=1e-9)
    assert result.share("planner", "planner") == 1.0
    assert found.policies[: len(RULES)] == RULES
    assert {*ORDER, "learned"} == set(found.policies)
    assert result.worst_loss("always_gpu") == pytest.approx(0.0, abs=1e-12)
    assert found.as_dict()["scenarios"][0]["scores"]["dp"]["score"]


def test_a_policy_keeps_the_guard_that_it_learned_beside(tmp_path):
    bold = network()
    with torch.no_grad():
        bold.head.bias.copy_(torch.tensor([-1e3, 0.0, 1e3]))
    save_onnx(bold, {"energy_margin": 0.0}, tmp_path / "p.onnx")
    policy = FilePolicy(PolicyFile(tmp_path / "p.onnx"))
    trace = draw_trace([SCENARIO] * 4, np.random.default_rng(2))
    simulation = Simulation(trace)
    for _ in range(4 * 6):
        limit = simulation.rules.energy_limit
        codes = policy(simulation)
        assert simulation.rules.energy_limit is limit
        if simulation.stage.value == "critic_train":
            assert codes.tolist() == [0] * 4  # putting it off costs energy
        simulation.step(codes)
    assert observe(simulation)[0].dtype == np.float32
