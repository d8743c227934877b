"""Trainings with OpenRLHF itself and with ROLL's double, for `benchmarks.adapter`.

OpenRLHF runs in an environment of its own. ROLL is in no package registry; its double runs on a Ray
node of this machine, and `make test-roll` compares with ROLL itself: plain RLVR with critic,
reference and two domains, and the same with ecorl, where ROLL's own class on an accelerator worker
answers the reference; then once more with faults in that worker.
"""

from __future__ import annotations

import ast
import io
import json
import os
import subprocess
import tempfile
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.harness import Figure, FigureTable
from benchmarks.studies.frameworks.samples import count_samples
from benchmarks.studies.frameworks.text_serving import measure_text_ratio
from ecorl.bench.machine import repository
from ecorl.errors import EngineError
from ecorl.records import Action, EventKind, Stage
from ecorl.runtime.overhead import HookTime
from tests.frameworks.roll import harness
from tests.frameworks.roll.attached import EXACT, Attached, largest_difference, merged, train
from tests.frameworks.tiny import make_tiny

FIGURES = FigureTable("adapter")
LEAST_ANSWERED = 0.99
"""Share of rows that the workers must have answered for the equality to count."""

LIMIT_S = 300.0
"""Longest time of both trainings with OpenRLHF, s: four times what the slowest known machine
needs."""

N_STEPS = 4
FAULTS = [{"kind": "shape", "calls": [0]}, {"kind": "raise", "calls": [1]}]


def equality(key: str, worst: float, answered: int, n_rows: int, who: str = "workers") -> Figure:
    """How far numbers are from those of a training without ecorl, where workers answered.

    Args:
        key: of the figure.
        worst: largest difference of any number.
        answered: rows that the workers answered.
        n_rows: rows in all.
        who: the workers.
    """
    why = f"the {who} answered only {answered} of {n_rows} rows"
    enough = n_rows > 0 and answered >= LEAST_ANSWERED * n_rows
    words = {"answered": answered, "n_rows": n_rows}
    return FIGURES.figure(key, worst if enough else None, why=why, judged=enough, words=words)


# ---------------------------------------------------------------- OpenRLHF


def train_with_openrlhf(folder: Path) -> dict[str, Any]:
    """Run OpenRLHF without and with ecorl; what the runs tell.

    Args:
        folder: for what they leave.

    Raises:
        EngineError: when they do not end well.
    """
    folder.mkdir(parents=True)
    run = ("tests/frameworks/run.sh", "openrlhf", "-m", "benchmarks.adapter_openrlhf_training")
    command = [*run, str(folder)]
    # Another environment than this one: nothing of it may be found there.
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    try:
        done = subprocess.run(
            command, cwd=repository(), env=env, capture_output=True, text=True, check=False,
            timeout=LIMIT_S,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise EngineError(f"OpenRLHF took longer than {LIMIT_S:g} s") from error
    if done.returncode != 0:
        raise EngineError(f"the trainings with OpenRLHF failed: {done.stderr[-3000:]}")
    told: dict[str, Any] = json.loads((folder / "told.json").read_text("utf-8"))
    return told


def openrlhf_figures(told: dict[str, Any]) -> list[Figure]:
    """Equality, and ecorl's own time.

    Args:
        told: from `train_with_openrlhf`.
    """
    step_s = told["steps_s"] / told["n_steps"]
    share, id = told["hook_s"] / told["steps_s"], "adapter.openrlhf_max_abs_diff"
    return [
        equality(id, told["max_abs_diff"], told["answered"], told["n_rows"]),
        FIGURES.figure("adapter.hook_share_openrlhf", share, told=told, step_s=step_s),
    ]


def remote_reward_figure() -> Figure:
    """Tokens per second of the service for many one-sample clients, over one client."""
    told, name = measure_text_ratio(), "openrlhf_remote_reward_ratio"
    return FIGURES.figure(f"adapter.{name}", told[name], told["spread"])


# ---------------------------------------------------------------- ROLL


def train_with_roll(folder: Path) -> dict[str, Any]:
    """Run the trainings; what they left, by name.

    Args:
        folder: for what they leave.
    """
    folder.mkdir(parents=True)
    tiny = make_tiny(folder / "tiny")
    # Not below a folder whose path may be too long for Ray's sockets.
    with (
        tempfile.TemporaryDirectory(prefix="ecorl-", ignore_cleanup_errors=True) as short,
        harness.cluster(Path(short), "double", n_fpgas=1) as cluster,
    ):

        def config(name: str) -> dict[str, Any]:
            own = folder / name
            own.mkdir()
            return harness.rlvr(tiny, own, n_steps=N_STEPS)

        plain = harness.run_training(cluster, folder / "plain", config("plain"))
        exact = train(cluster, folder / "exact", config("exact"), EXACT)
        spoilt = merged(EXACT, {"engine": {"faults": FAULTS}})
        faulted = train(cluster, folder / "faulted", config("faulted"), spoilt)
    return {"plain": plain, "exact": exact, "faulted": faulted}


def roll_figures(told: dict[str, Any]) -> list[Figure]:
    """The figures of ROLL's adapter.

    Args:
        told: from `train_with_roll`.
    """
    exact: Attached = told["exact"]
    rows = exact.rows()
    answered = sum(r.n_sequences - r.n_rows_fallback for r in rows if r.action is not Action.GPU)
    worst = max(largest_difference(told["plain"], told[run]) for run in ("exact", "faulted"))
    n_rows = harness.N_ROWS * N_STEPS
    # Time that ecorl itself took of the driver's threads, a dispatched stage.
    with exact.read() as reader:
        (clock,) = (e.detail for e in reader.events() if e.kind is EventKind.HOOK_CLOCK)
    spent, inside = HookTime.read(clock), (Stage.GENERATION, Stage.REWARD)
    n_stages = sum(r.stage not in inside for r in rows)
    hook_ms = 1e3 * spent.hook_s / n_stages
    return [
        equality("adapter.roll_max_abs_diff", worst, answered, n_rows, "worker"),
        FIGURES.figure("adapter.roll_hook_ms", hook_ms, spent=spent, n_stages=n_stages),
        _lines(),
    ]


def roll_samples(told: dict[str, Any]) -> tuple[int, int, int]:
    """Lost and doubled samples of the runs with ecorl, and their faults.

    Args:
        told: from `train_with_roll`.
    """
    roles = {"reference": harness.N_ROWS}
    roles |= {f"reward:{domain}": harness.N_ROWS // 2 for domain in harness.DOMAINS}
    expected = {(step, role): n for step in range(1, N_STEPS + 1) for role, n in roles.items()}
    lost = doubled = n_faults = 0
    for run in ("exact", "faulted"):
        with told[run].read() as reader:
            own_lost, own_doubled = count_samples(reader, expected)
            n_faults += len(reader.faults())
        lost, doubled = lost + own_lost, doubled + own_doubled
    return lost, doubled, n_faults


def _lines() -> Figure:
    """Lines of ROLL's adapter that are neither blank nor comments."""
    files = sorted((repository() / "roll_adapters" / "roll").rglob("*.py"))
    texts = [file.read_text("utf-8") for file in files]
    n_lines = sum(len(set(_code_lines(text))) for text in texts)
    n_told = sum(sum(_docstring_lines(ast.parse(text))) for text in texts)
    return FIGURES.figure("adapter.lines_roll", float(n_lines), n_files=len(files), n_told=n_told)


def _code_lines(text: str) -> Iterator[int]:
    skipped = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
               tokenize.ENDMARKER, tokenize.ENCODING)  # fmt: skip
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in skipped:
            yield from range(token.start[0], token.end[0] + 1)


def _docstring_lines(tree: ast.AST) -> Iterator[int]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Constant):
            continue
        if isinstance(node.value.value, str) and node.end_lineno is not None:
            yield node.end_lineno - node.lineno + 1
