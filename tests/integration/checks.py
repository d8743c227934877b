"""A config for a tiny run, and comparisons of two trainers after training."""

from __future__ import annotations

from typing import Any

import torch

from ecorl.config import Config, validate_config

MODELLED = {"gpu": {"type": "modelled", "interval_s": 0.02}, "stale_after_s": 600.0}
"""A table ``[telemetry]`` under which readings that a busy machine takes late are no fault."""

BOTH = {"type": "static", "reward": "concurrent", "reference": "concurrent"}


def config(tmp_path, algorithm: str = "grpo", **placement: Any) -> Config:
    policy = placement.pop("policy", {"type": "static"})
    engine = placement.pop("engine", {})
    more = placement.pop("more", {})
    return validate_config(
        {
            "algorithm": algorithm,
            "run_dir": str(tmp_path / "run"),
            "placement": {"policy": policy, **placement},
            "engine": engine,
            "telemetry": MODELLED,
            **more,
        }
    )


def outcome(trainer: Any) -> dict[str, Any]:
    """All that training leaves behind: the log and the weights."""
    keys = ("loss", "reward", "reward_std", "kl", "entropy", "grad_norm")
    log = [
        {k: row[k] for k in keys if k in row} for row in trainer.state.log_history if "loss" in row
    ]
    weights = {k: v.clone() for k, v in trainer.model.state_dict().items()}
    return {"log": log, "weights": weights}


def assert_same_bits(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one["log"] == other["log"]
    assert len(one["log"]) > 0
    for name, weight in one["weights"].items():
        assert torch.equal(weight, other["weights"][name]), name
