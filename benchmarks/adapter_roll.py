"""Figures of `benchmarks.adapter` with ROLL's double, on a Ray node of this machine.

ROLL itself is in no package registry; `make test-roll` compares with it. Plain RLVR with critic,
reference and two domains, and the same with ecorl: ROLL's own class on an accelerator worker
answers the reference; then once more with faults in that worker.
"""

from __future__ import annotations

import ast
import io
import tempfile
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.harness.figures import Figure, Target, missing
from benchmarks.studies.frameworks.samples import count_samples
from ecorl.bench.machine import repository
from ecorl.records import Action, EventKind, Provenance, Stage
from ecorl.runtime.overhead import HookTime
from tests.frameworks.roll import harness
from tests.frameworks.roll.attached import EXACT, Attached, largest_difference, merged, train
from tests.frameworks.tiny import make_tiny

MEASURED = Provenance.MEASURED
N_STEPS = 4
LEAST_ANSWERED = 0.99
FAULTS = [{"kind": "shape", "calls": [0]}, {"kind": "raise", "calls": [1]}]


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
    name = "adapter.roll_max_abs_diff"
    n_rows = harness.N_ROWS * N_STEPS
    answered = sum(
        r.n_sequences - r.n_rows_fallback for r in exact.rows() if r.action is not Action.GPU
    )
    if answered < LEAST_ANSWERED * n_rows:
        figure = missing(name, "1", f"the worker answered only {answered} of {n_rows} rows")
    else:
        worst = max(largest_difference(told["plain"], told[run]) for run in ("exact", "faulted"))
        figure = Figure(
            name, worst, "1", MEASURED, target=Target(high=1e-6),
            note=f"ROLL's double, GAE with two domains, metrics and weights; the worker answered "
            f"{answered} of {n_rows} reference rows; the same with faults in the worker counted in",
        )  # fmt: skip
    return [figure, _hook_ms(exact), _lines()]


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


def _hook_ms(run: Attached) -> Figure:
    """Time that ecorl itself took of the driver's threads, a dispatched stage."""
    with run.read() as reader:
        (told,) = (e.detail for e in reader.events() if e.kind is EventKind.HOOK_CLOCK)
    spent = HookTime.read(told)
    inside = (Stage.GENERATION, Stage.REWARD)
    n_stages = sum(r.stage not in inside for r in run.rows())
    return Figure(
        "adapter.roll_hook_ms", 1e3 * spent.hook_s / n_stages, "ms", MEASURED,
        note=f"{spent.hook_s:.4f} s on the driver's threads for {n_stages} dispatched stages, with "
        f"what the rollouts tell; {spent.beside_s:.4f} s of processor beside them",
    )  # fmt: skip


def _lines() -> Figure:
    """Lines of ROLL's adapter that are neither blank nor comments."""
    files = sorted((repository() / "roll_adapters" / "roll").rglob("*.py"))
    texts = [file.read_text("utf-8") for file in files]
    n_lines = sum(len(set(_code_lines(text))) for text in texts)
    n_told = sum(sum(_docstring_lines(ast.parse(text))) for text in texts)
    return Figure(
        "adapter.lines_roll", float(n_lines), "1", MEASURED,
        note=f"neither blank nor comment, in {len(files)} modules; {n_told} of them are "
        "docstrings. The paper promises about 200",
    )  # fmt: skip


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
