"""PPO by stable-baselines3 on the batched simulator: alone, or from an imitated network on."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor

from ecorl.files import write_whole
from ecorl.policy.training.network import WIDTH, PolicyNetwork, Trunk
from ecorl.sim.batched import BatchedEnv, batch_from
from ecorl.sim.scenario import Scenario
from ecorl.sim.simulation import CostView

N_ENVS = 64
N_STEPS = 60
"""Ten iterations of each job: couplings last for a few."""

GAMMA = 0.99
"""What a reading of the cards is worth comes in later iterations, six decisions each."""
N_EPOCHS = 6
CLIP = 0.2
CHUNK = 100_000
"""Steps between checkpoints."""

REWARD_SCALE = 10.0
"""An iteration is worth some 0.1 of Eq. 7; the value network learns better on units."""


class _Extractor(BaseFeaturesExtractor):
    """The three hidden layers as stable-baselines3 wants them."""

    def __init__(self, space: gymnasium.spaces.Box) -> None:
        super().__init__(space, features_dim=WIDTH)
        self.trunk = Trunk(int(space.shape[0]))

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        """``[n, n_inputs]`` to ``[n, WIDTH]``."""
        made: torch.Tensor = self.trunk(observations)
        return made


class _Scaled(BatchedEnv):
    """Rewards in units that a value network learns well."""

    def step_wait(self) -> Any:
        seen, reward, over, infos = super().step_wait()
        return seen, reward * REWARD_SCALE, over, infos


class _Report(BaseCallback):
    """Tell how far it is, and keep the learning curve."""

    def __init__(self, on_progress: Callable[[int, float | None], None] | None) -> None:
        super().__init__()
        self.curve: list[tuple[int, float]] = []
        self._on_progress = on_progress

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        found = [info["r"] for info in self.model.ep_info_buffer or ()]
        mean = float(np.mean(found)) if found else None
        if mean is not None:
            self.curve.append((int(self.num_timesteps), mean))
        if self._on_progress is not None:
            self._on_progress(int(self.num_timesteps), mean)


def train_ppo(
    scenarios: Sequence[Scenario],
    n_steps: int,
    *,
    start: PolicyNetwork | None = None,
    normalise_by: np.ndarray | None = None,
    seed: int = 0,
    view: CostView = CostView.MEASURED,
    learning_rate: float = 3e-4,
    tensorboard: Path | None = None,
    checkpoint: Path | None = None,
    on_progress: Callable[[int, float | None], None] | None = None,
) -> tuple[PolicyNetwork, list[tuple[int, float]]]:
    """Train a network by PPO.

    Args:
        scenarios: pool of which each episode takes one.
        n_steps: decisions in all.
        start: network to go on from; None: from nothing.
        normalise_by: states ``[n, n_features] float32`` for the normalisation of a new network.
        seed: of all chance.
        view: what the network knows of costs.
        learning_rate: of Adam; the paper's 3e-4 from nothing, less to go on.
        tensorboard: folder for its log; None: nothing is logged.
        checkpoint: file from which to go on, if it is there, and to which the state is written
            every `CHUNK` steps.
        on_progress: called after each round of experience with the steps and the mean episode's
            Eq. 7, or None before an episode has ended.

    Returns:
        The network, and (steps, mean Eq. 7 of an episode) over training.
    """
    model = _model(scenarios, seed, view, learning_rate, goes_on=start is not None)
    _log_to(model, tensorboard)
    policy: Any = model.policy
    trunks = (policy.pi_features_extractor.trunk, policy.vf_features_extractor.trunk)
    resumed = checkpoint is not None and checkpoint.is_file()
    if start is not None and not resumed:
        for trunk in trunks:
            trunk.load_state_dict(start.trunk.state_dict())
        policy.action_net.load_state_dict(start.head.state_dict())
        _warm_up_value(model, n_rounds=8)
    elif normalise_by is not None:
        for trunk in trunks:
            trunk.normalise_by(normalise_by)
    report = _Report(on_progress)
    model = _learn(model, scenarios, n_steps, seed, report, checkpoint, tensorboard, view)
    policy = model.policy
    trunks = (policy.pi_features_extractor.trunk, policy.vf_features_extractor.trunk)
    network = PolicyNetwork(trunks[0].layers[0].in_features)
    network.trunk.load_state_dict(trunks[0].state_dict())
    network.head.load_state_dict(policy.action_net.state_dict())
    return network, report.curve


def _model(
    scenarios: Sequence[Scenario], seed: int, view: CostView, learning_rate: float, *, goes_on: bool
) -> PPO:
    """Set the learner up; one that goes on from a network moves it less at a time."""
    env = _Scaled(batch_from(scenarios), N_ENVS, seed, stagger=True, view=view)
    return PPO(
        "MlpPolicy", env, n_steps=N_STEPS, batch_size=N_ENVS * N_STEPS // 4, n_epochs=N_EPOCHS,
        gamma=GAMMA, gae_lambda=0.95, learning_rate=learning_rate,
        ent_coef=0.0 if goes_on else 0.002, clip_range=CLIP / 2 if goes_on else CLIP, seed=seed,
        device="cpu",
        policy_kwargs={
            "features_extractor_class": _Extractor, "net_arch": [],
            "share_features_extractor": False,
        },
    )  # fmt: skip


def _learn(
    model: PPO,
    scenarios: Sequence[Scenario],
    n_steps: int,
    seed: int,
    report: _Report,
    checkpoint: Path | None,
    tensorboard: Path | None,
    view: CostView,
) -> PPO:
    """Learn in chunks, each of which leaves a checkpoint.

    Each chunk begins with episodes and chance of its own, so that a training that was interrupted
    between two of them comes to the same network as an unbroken one.
    """
    done, chunk = 0, 0
    kept = None if checkpoint is None else checkpoint.with_suffix(".json")
    if checkpoint is not None and checkpoint.is_file() and kept is not None and kept.is_file():
        state = json.loads(kept.read_text("utf-8"))
        model = PPO.load(checkpoint, device="cpu")
        _log_to(model, tensorboard)
        done, chunk = int(model.num_timesteps), int(state["chunks"])
        report.curve = [(int(n), float(mean)) for n, mean in state["curve"]]
    while done < n_steps:
        env = _Scaled(batch_from(scenarios), N_ENVS, seed * 1000 + chunk, stagger=True, view=view)
        model.set_env(env)
        model.set_random_seed(seed * 1000 + chunk)
        model.ep_info_buffer = None  # `learn` begins an empty one
        model.num_timesteps = done
        model.learn(min(CHUNK, n_steps - done), callback=report, reset_num_timesteps=False)
        done, chunk = int(model.num_timesteps), chunk + 1
        if checkpoint is not None and kept is not None:
            made = io.BytesIO()
            model.save(made)
            write_whole(checkpoint, made.getvalue())
            write_whole(kept, json.dumps({"chunks": chunk, "curve": report.curve}))
    return model


def _log_to(model: PPO, tensorboard: Path | None) -> None:
    """Log to TensorBoard or not at all: left to itself PPO makes a temporary folder that stays."""
    model.tensorboard_log = None if tensorboard is None else str(tensorboard)
    if tensorboard is None:
        model.set_logger(Logger(folder=None, output_formats=[]))


def _warm_up_value(model: PPO, n_rounds: int) -> None:
    """Teach the value network what the imitated policy is worth before the policy may move.

    An untrained value network makes the first advantages noise, and they would undo the imitation.
    """
    policy: Any = model.policy
    frozen = [*policy.pi_features_extractor.parameters(), *policy.action_net.parameters()]
    for parameter in frozen:
        parameter.requires_grad_(False)
    model.learn(n_rounds * N_ENVS * N_STEPS)
    for parameter in frozen:
        parameter.requires_grad_(True)
