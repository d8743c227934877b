"""Trainings in two processes, each of which runs the script `train_script`."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from tests.forks import Fork

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "tests/integration/train_script.py"
N_ROWS, N_STEPS = 8, 3
TRAINER = {"per_device_train_batch_size": N_ROWS, "max_steps": N_STEPS}
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "ACCELERATE_USE_CPU": "true"}
LIMIT_S = 500


def training(tiny, folder, placement=None, engine=None, more=None, **settings):
    """What both processes of one training are to do; without a placement they go without ecorl.

    Args:
        more: tables of the config.
    """
    folder.mkdir(exist_ok=True)
    config = None
    if placement is not None:
        config = {
            "algorithm": settings.get("algorithm", "grpo"),
            "run_dir": str(folder / "run"),
            "placement": {"policy": placement},
            "engine": engine or {},
            "telemetry": {"gpu": {"type": "modelled", "interval_s": 0.02}},
            **(more or {}),
        }
    return {
        "tiny": {k: str(v) for k, v in asdict(tiny).items()},
        "folder": str(folder),
        "algorithm": "grpo",
        "config": config,
        **settings,
        "trainer": TRAINER | settings.get("trainer", {}),
    }


def run_trainings(*trainings, second=None, torchrun=False, check=True):
    """Run trainings one after another in the same two processes.

    Args:
        trainings: of `training`.
        second: command that runs what follows it on another host, for the second process; by
            default both are on this one.
        torchrun: whether torchrun starts them, which ends both where one fails.
        check: whether they must succeed.

    Returns:
        The exit code and the errors of each process that was started.
    """
    path = Path(trainings[0]["folder"]) / "settings.json"
    path.write_text(json.dumps(trainings), "utf-8")
    told = _by_torchrun(path) if torchrun else _as_two(path, second)
    if check:
        assert not any(code for code, _ in told), "".join(text for _, text in told)[-4000:]
    return told


def _by_torchrun(path):
    done = subprocess.run(
        [
            sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2",
            "--standalone", "--local_addr", "127.0.0.1", str(SCRIPT), str(path),
        ],
        cwd=ROOT,
        env=os.environ | ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )  # fmt: skip
    return [(done.returncode, done.stderr)]


def _as_two(path, second):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    places = [(0, 2), (1, 2)] if second is None else [(0, 1), (0, 1)]
    processes = []
    for rank, (local, n_local) in enumerate(places):
        own = {
            "RANK": str(rank), "LOCAL_RANK": str(local), "WORLD_SIZE": "2",
            "LOCAL_WORLD_SIZE": str(n_local), "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo",
        }  # fmt: skip
        env = os.environ | ENVIRONMENT | own
        if rank and second is not None:
            processes.append(_on_another_host(second, path, env))
        else:
            processes.append(Fork(str(SCRIPT), str(path), cwd=ROOT, env=env))
    try:
        texts = [process.communicate(timeout=LIMIT_S)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [(process.returncode, text) for process, text in zip(processes, texts, strict=True)]


def _on_another_host(command, path, env):
    return subprocess.Popen(
        [*command, sys.executable, str(SCRIPT), str(path)],
        cwd=ROOT, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def outcomes(folder):
    """What both processes ended with."""
    return [torch.load(folder / f"outcome-{r}.pt", weights_only=False) for r in (0, 1)]


def assert_close(plain, other):
    """Log and weights of all processes agree to 1e-6."""
    for mine, theirs in zip(plain, other, strict=True):
        for one, another in zip(mine["log"], theirs["log"], strict=True):
            assert one.keys() == another.keys()
            for key in one:
                assert float(another[key]) == pytest.approx(float(one[key]), abs=1e-6), key
        for name, weight in mine["weights"].items():
            assert torch.allclose(weight, theirs["weights"][name], rtol=0, atol=1e-6), name
