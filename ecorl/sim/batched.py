"""The simulator as a stable-baselines3 vector environment: many episodes in step, in NumPy.

All episodes are equally long and start together. Where an episode ends, the state from which the
next would have gone on is not known: ``terminal_observation`` is the last one seen, and
``TimeLimit.truncated`` says that the end is one of time, as stable-baselines3 wants it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from stable_baselines3.common.vec_env.base_vec_env import VecEnv

from ecorl.scheduler.features import N_FEATURES
from ecorl.sim.env import OBSERVATION_HIGH, OBSERVATION_LOW, clipped
from ecorl.sim.scenario import Scenario
from ecorl.sim.simulation import N_STAGES, CostView, Simulation
from ecorl.sim.trace import draw_trace

Float32 = npt.NDArray[np.float32]

DrawMany = Callable[[np.random.Generator, int], Sequence[Scenario]]
"""Draws the scenarios of n episodes."""


def batch_from(scenarios: Sequence[Scenario]) -> DrawMany:
    """Draws scenarios of a pool, each as likely."""
    pool = list(scenarios)
    return lambda rng, n: [pool[i] for i in rng.integers(len(pool), size=n)]


def observe(simulation: Simulation) -> tuple[Float32, tuple[Any, Any]]:
    """The observations ``[n, N_FEATURES] float32`` of a batched simulation, and the guards."""
    state, may = simulation.observation()
    out = np.empty((simulation.trace.n, N_FEATURES), dtype=np.float32)
    for i, figure in enumerate(state):
        out[:, i] = figure
    return clipped(out), may


class BatchedEnv(VecEnv):
    """Many simulated jobs side by side.

    Args:
        draw: the scenarios of each round of episodes.
        n_envs: episodes side by side.
        seed: of all chance.
        view: what is known of costs.
        stagger: start the first round at different iterations, so that a batch of experience is
            not always from the same part of an episode.
    """

    def __init__(
        self,
        draw: DrawMany,
        n_envs: int,
        seed: int = 0,
        *,
        stagger: bool = False,
        view: CostView = CostView.MEASURED,
    ) -> None:
        box = gymnasium.spaces.Box(OBSERVATION_LOW, OBSERVATION_HIGH, (N_FEATURES,), np.float32)
        self.render_mode = None
        super().__init__(n_envs, box, gymnasium.spaces.Discrete(3))
        self._draw, self._rng = draw, np.random.default_rng(seed)
        self._stagger, self._view = stagger, view
        self._actions: npt.NDArray[np.int64] = np.zeros(n_envs, dtype=np.int64)
        self._scores = np.zeros(n_envs)
        self._no_info: list[dict[str, Any]] = [{} for _ in range(n_envs)]
        self._simulation: Simulation
        self._may: tuple[Any, Any] = (0.0, 0.0)
        self._seen: Float32 = np.zeros((n_envs, N_FEATURES), dtype=np.float32)

    def reset(self) -> Float32:
        """Draw a round of episodes."""
        trace = draw_trace(self._draw(self._rng, self.num_envs), self._rng)
        self._simulation = Simulation(trace, view=self._view)
        self._scores[:] = 0.0
        self._seen, self._may = observe(self._simulation)
        if self._stagger:
            self._stagger = False
            for _ in range(N_STAGES * int(self._rng.integers(trace.n_iterations))):
                self._simulation.step(self._rng.integers(0, 3, self.num_envs))
            self._seen, self._may = observe(self._simulation)
        return self._seen

    def step_async(self, actions: npt.NDArray[Any]) -> None:
        """Keep the actions for `step_wait`."""
        self._actions = actions

    def step_wait(self) -> tuple[Float32, Float32, npt.NDArray[np.bool_], list[dict[str, Any]]]:
        """Place one stage of each job."""
        reward = self._simulation.step(self._actions, self._may)
        self._scores += reward
        over = self._simulation.done
        infos = self._no_info
        if over:
            infos = self._ends()
            self.reset()
        else:
            self._seen, self._may = observe(self._simulation)
        return self._seen, reward.astype(np.float32), np.full(self.num_envs, over), infos

    def _ends(self) -> list[dict[str, Any]]:
        length = N_STAGES * self._simulation.trace.n_iterations
        return [
            {
                "terminal_observation": self._seen[i].copy(),
                "TimeLimit.truncated": True,
                "episode": {"r": float(self._scores[i]), "l": length, "t": 0.0},
            }
            for i in range(self.num_envs)
        ]

    def close(self) -> None:
        """Nothing is held."""

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """The same attribute for each episode."""
        return [getattr(self, attr_name) for _ in self._get_indices(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        """Refused: episodes have no attributes of their own."""
        raise NotImplementedError("episodes of a batch have no attributes of their own")

    def env_method(
        self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any
    ) -> list[Any]:
        """Refused: episodes are no environments of their own."""
        raise NotImplementedError("episodes of a batch are no environments of their own")

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        """None is."""
        return [False for _ in self._get_indices(indices)]
