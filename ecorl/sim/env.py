"""The simulator as a Gymnasium environment: one episode, decision by decision, in plain floats.

Action: 0, 1, 2 (a1, a2, a3). Observation: `ecorl.scheduler.features`. The episode ends after
``n_iterations`` x 6 steps; that is a truncation, since the job would go on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt

from ecorl.scheduler.features import HIGH, LOW, N_FEATURES
from ecorl.sim.scenario import Scenario
from ecorl.sim.simulation import Simulation
from ecorl.sim.trace import draw_trace

Draw = Callable[[np.random.Generator], Scenario]
"""Draws the scenario of an episode."""

OBSERVATION_LOW, OBSERVATION_HIGH = np.array(LOW, np.float32), np.array(HIGH, np.float32)


def clipped(states: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """States within the limits of the observation space; the network does the same."""
    return np.clip(states, OBSERVATION_LOW, OBSERVATION_HIGH, out=states)


def drawing_from(scenarios: Sequence[Scenario]) -> Draw:
    """Draws one of some scenarios, each as likely."""
    pool = list(scenarios)
    return lambda rng: pool[int(rng.integers(len(pool)))]


class PlacementEnv(gymnasium.Env[npt.NDArray[np.float32], np.int64]):
    """One simulated job.

    Args:
        draw: the scenario of each episode.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 - Gymnasium's own form

    def __init__(self, draw: Draw) -> None:
        self._draw = draw
        self.observation_space = gymnasium.spaces.Box(
            OBSERVATION_LOW, OBSERVATION_HIGH, (N_FEATURES,), np.float32
        )
        self.action_space = gymnasium.spaces.Discrete(3)
        self._simulation: Simulation | None = None
        self._may = (0.0, 0.0)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[npt.NDArray[np.float32], dict[str, Any]]:
        """Draw an episode; `info` holds which actions pass the guards."""
        super().reset(seed=seed)
        trace = draw_trace([self._draw(self.np_random)], self.np_random)
        self._simulation = Simulation(trace, 0)
        return self._observe()

    def step(
        self, action: np.int64
    ) -> tuple[npt.NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Place one stage; the reward is what it adds to Eq. 7."""
        if self._simulation is None:
            raise RuntimeError("reset comes before step")
        reward = float(self._simulation.step(int(action), self._may))
        if self._simulation.done:
            last = np.zeros(N_FEATURES, dtype=np.float32)
            return last, reward, False, True, {"may": (0.0, 0.0)}
        observation, info = self._observe()
        return observation, reward, False, False, info

    def _observe(self) -> tuple[npt.NDArray[np.float32], dict[str, Any]]:
        assert self._simulation is not None  # both callers have made one
        state, self._may = self._simulation.observation()
        return clipped(np.array(state, dtype=np.float32)), {"may": self._may}
