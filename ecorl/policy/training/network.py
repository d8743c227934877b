"""The network of the scheduler (paper, section 3.5): 256-128-64, ReLU, layer normalisation.

The gains, which the cost model predicts of the actions and which are the last inputs, pass by the
hidden layers and reach the logits as well: an untrained network takes the action of the greatest
gain, and what is learned is where that is wrong.

The normalisation of the input is part of it, so that a policy file takes the state as it is. What
runs a policy is `ecorl.scheduler.learned`; this module needs torch and is for training.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from ecorl.scheduler.features import HIGH, LOW, N_FEATURES

Float32 = npt.NDArray[np.float32]

HIDDEN = (256, 128, 64)
N_ACTIONS = 3
N_GAINS = 3
"""Last inputs that pass by the hidden layers: ``gain_a2``, ``gain_a3``, ``gain_both``."""
WIDTH = HIDDEN[-1] + N_GAINS
"""Numbers that reach the last layer."""

_GAIN_LOGIT = 20.0
"""Logit of a gain in the units of the input, at the start: 1.6 for 1 % of Eq. 7."""

_LEAST_SPREAD = 1e-3
"""A number that hardly varies in training must not be blown up where it does."""


class Trunk(nn.Module):
    """Input normalisation, the three hidden layers, and the gains beside them.

    Args:
        n_inputs: numbers of the state.
    """

    def __init__(self, n_inputs: int = N_FEATURES) -> None:
        super().__init__()
        self.low: torch.Tensor
        self.high: torch.Tensor
        self.mean: torch.Tensor
        self.scale: torch.Tensor
        self.register_buffer("low", torch.tensor(LOW if n_inputs == N_FEATURES else -1e3))
        self.register_buffer("high", torch.tensor(HIGH if n_inputs == N_FEATURES else 1e3))
        self.register_buffer("mean", torch.zeros(n_inputs))
        self.register_buffer("scale", torch.ones(n_inputs))
        sizes = (n_inputs, *HIDDEN)
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(sizes))
        self.norms = nn.ModuleList(nn.LayerNorm(b) for b in HIDDEN)

    def normalise_by(self, states: Float32) -> None:
        """Take mean and spread of states ``[n, n_inputs]`` as the normalisation."""
        states = np.clip(states, self.low.numpy(), self.high.numpy())
        spread = np.maximum(states.std(axis=0), _LEAST_SPREAD)
        self.mean.copy_(torch.from_numpy(states.mean(axis=0)))
        self.scale.copy_(torch.from_numpy((1.0 / spread).astype(np.float32)))

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """``[n, n_inputs]`` to ``[n, WIDTH]``."""
        seen = torch.clamp(states, self.low, self.high)
        x = (seen - self.mean) * self.scale
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = torch.relu(norm(layer(x)))
        return torch.cat([x, seen[:, -N_GAINS:]], dim=1)


class PolicyNetwork(nn.Module):
    """State to the logits of a1, a2, a3.

    Args:
        n_inputs: numbers of the state.
    """

    def __init__(self, n_inputs: int = N_FEATURES) -> None:
        super().__init__()
        self.trunk = Trunk(n_inputs)
        self.head = nn.Linear(WIDTH, N_ACTIONS)
        with torch.no_grad():
            past = self.head.weight[:, -N_GAINS:]
            past.zero_()
            past[1, 0] = _GAIN_LOGIT
            past[2, 1:] = _GAIN_LOGIT / 2

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """``[n, n_inputs]`` to ``[n, 3]``."""
        logits: torch.Tensor = self.head(self.trunk(states))
        return logits

    def arrays(self) -> dict[str, Float32]:
        """All weights by name, float32."""
        return {k: v.detach().cpu().numpy().copy() for k, v in self.state_dict().items()}

    @classmethod
    def from_arrays(cls, arrays: dict[str, Any]) -> PolicyNetwork:
        """A network with given weights."""
        network = cls(int(arrays["trunk.mean"].shape[0]))
        network.load_state_dict({k: torch.from_numpy(np.array(v)) for k, v in arrays.items()})
        return network


def logits_in_numpy(arrays: dict[str, Float32], states: Float32) -> Float32:
    """The network in NumPy, ``[n, n_inputs]`` to ``[n, 3]``; for worker processes."""
    seen = np.clip(states, arrays["trunk.low"], arrays["trunk.high"])
    x = (seen - arrays["trunk.mean"]) * arrays["trunk.scale"]
    for i in range(len(HIDDEN)):
        x = x @ arrays[f"trunk.layers.{i}.weight"].T + arrays[f"trunk.layers.{i}.bias"]
        x = x - x.mean(axis=1, keepdims=True)
        x = x / np.sqrt((x * x).mean(axis=1, keepdims=True) + 1e-5)
        x = x * arrays[f"trunk.norms.{i}.weight"] + arrays[f"trunk.norms.{i}.bias"]
        x = np.maximum(x, 0.0)
    x = np.concatenate([x, seen[:, -N_GAINS:]], axis=1)
    return np.asarray(x @ arrays["head.weight"].T + arrays["head.bias"])


def permitted_codes(logits: npt.NDArray[Any], may: tuple[Any, Any]) -> npt.NDArray[np.int64]:
    """The best action that the guards let through, ``[n] int64``.

    Args:
        logits: ``[n, 3]``.
        may: whether a2 and a3 pass, ``[n]`` each.
    """
    allowed = np.array(logits, dtype=np.float64)
    for code in (1, 2):
        allowed[:, code] = np.where(np.asarray(may[code - 1]) > 0.0, allowed[:, code], -np.inf)
    return np.asarray(np.argmax(allowed, axis=1))
