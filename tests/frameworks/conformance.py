"""What every framework's adapter has to keep: one suite over the runs that an adapter hands over.

A test module subclasses `AdapterConformance` and has a fixture ``adapter`` that gives an
`AdapterUnderTest`, of the module or the session: each of its six trainings is done once, when a
test asks for it first.

    plain      without ecorl
    gpu_path   attached, all stages on the GPU path
    exact      attached, `offloaded` answered by an engine that computes as the framework does
    faulty     the same, with `FAULTS` injected into the engines
    resumed    attached, cut off after a checkpoint that is not its last step, and gone on with
    paused     attached, all stages on the GPU path, standing still while a replayed grid is dirty

All train the same models on the same rows for `N_STEPS` steps.
"""

from __future__ import annotations

import contextlib
import json
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pytest

from benchmarks.studies.frameworks.samples import count_samples
from ecorl.control import Why
from ecorl.controllers.waiting import paused_spans
from ecorl.ledger import LedgerReader
from ecorl.records import (
    INFERENCE_STAGES,
    Abilities,
    Action,
    EventKind,
    FaultKind,
    Provenance,
    Role,
    Stage,
    StageResult,
)
from ecorl.runtime.energy.run_energy import recorded_totals
from tests.fakes.recordings import SILENT
from tests.frameworks.joules import assert_counted_once

N_STEPS = 4
STEPS = tuple(range(1, N_STEPS + 1))
TOLERANCE = 1e-6
SLACK_S = 0.02
"""What lies between a decision and its row in the record, at most, s."""
ENGINE_SHARE = 0.99
"""Of the rows that an engine has to answer before its run counts as one of it."""

FAULTS: tuple[dict[str, Any], ...] = (
    {"kind": "raise", "calls": [0]},
    {"kind": "nan", "calls": [1], "rows": [0, 2]},
    {"kind": "shape", "calls": [2]},
    # The last one: a thread that hangs cannot be started anew.
    {"kind": "hang", "calls": [3]},
)
"""``engine.faults`` of the faulty run, one kind a step. An engine is called once a step."""

FALLBACKS: dict[int, tuple[FaultKind, int | None]] = {
    1: (FaultKind.ENGINE_CRASHED, None),
    2: (FaultKind.INVALID_RESULT, 2),
    3: (FaultKind.INVALID_RESULT, None),
    4: (FaultKind.ENGINE_TIMEOUT, None),
}
"""By step: the fault that stands in the record, and its rows; None: all of the batch."""


@dataclass(frozen=True)
class TrainedRun:
    """What a training left.

    Attributes:
        numbers: the framework's own metrics that are not times, by name and step.
        weights: tensors of the trained models by name.
        folder: of the run's record; None without ecorl.
        drawn_j: ``energy/total_j`` in the framework's own log, by step.
        ticks: how often the control path was asked; None where nobody counted.
    """

    numbers: Mapping[str, Mapping[int, float]]
    weights: Mapping[str, Any]
    folder: Path | None = None
    drawn_j: Mapping[int, float] = field(default_factory=dict)
    ticks: int | None = None


class AdapterUnderTest(Protocol):
    """An adapter with its six trainings, each done once.

    Attributes:
        rows: rows that each role has in each step; training counts a row once a pass.
        same_tokens: roles that read the same tokens and answer for the same completions.
        offloaded: roles that the engine answers in `exact` and `faulty`.
        inside_rollout: roles that answer while other rows are still generated.
        abilities: that the adapter states.
        slack_s: how much later than it was the end of a stage may be noted, s.
        resume_repeats: whether the framework resumed trains as it would have unbroken.
    """

    rows: Mapping[Role, int]
    same_tokens: Collection[Role]
    offloaded: Collection[Role]
    inside_rollout: Collection[Role]
    abilities: Abilities
    slack_s: float
    resume_repeats: bool

    @property
    def plain(self) -> TrainedRun: ...
    @property
    def gpu_path(self) -> TrainedRun: ...
    @property
    def exact(self) -> TrainedRun: ...
    @property
    def faulty(self) -> TrainedRun: ...
    @property
    def resumed(self) -> TrainedRun: ...
    @property
    def paused(self) -> TrainedRun: ...

    @property
    def refusal(self) -> str:
        """What a user is told who starts the cut run's folder again without resuming.

        The start was refused with a `UserError`, between the two attempts of `resumed`.
        """
        ...


@contextlib.contextmanager
def record_of(run: TrainedRun) -> Iterator[LedgerReader]:
    assert run.folder is not None
    with LedgerReader(run.folder) as reader:
        yield reader


def kept(reader: LedgerReader) -> list[StageResult]:
    return [row.result for row in reader.executions() if not row.superseded]


def by_step_and_role(reader: LedgerReader) -> dict[tuple[int, Role], list[StageResult]]:
    found = defaultdict(list)
    for result in kept(reader):
        found[result.iteration, result.role].append(result)
    return found


def trains(result: StageResult) -> bool:
    """Whether an execution changes weights: a forward of the policy before has no output."""
    return is_training(result.role) and result.n_output_tokens > 0


def engine_share(reader: LedgerReader, role: Role, n_rows: int) -> float:
    """Share of a role's rows that its engine has answered."""
    own = [r for r in kept(reader) if r.role == role and r.action is not Action.GPU]
    return sum(r.n_sequences - r.n_rows_fallback for r in own) / (n_rows * N_STEPS)


# ---------------------------------------------------------------- comparisons


def assert_same_numbers(plain: TrainedRun, other: TrainedRun, tolerance: float = 0.0) -> None:
    """Compare all of a plain training with another; without a tolerance bit for bit."""
    assert plain.numbers
    assert plain.weights
    assert other.numbers.keys() >= plain.numbers.keys()
    for name, steps in plain.numbers.items():
        assert other.numbers[name].keys() == steps.keys(), name
        right, found = ([own[step] for step in steps] for own in (steps, other.numbers[name]))
        np.testing.assert_allclose(found, right, tolerance, tolerance, err_msg=name)
    assert other.weights.keys() == plain.weights.keys()
    for name, weight in plain.weights.items():
        found = other.weights[name]
        assert (found.shape, found.dtype) == (weight.shape, weight.dtype), name
        right, found = weight.double().cpu().numpy(), found.double().cpu().numpy()
        np.testing.assert_allclose(found, right, 0.0, tolerance, err_msg=name)


# ---------------------------------------------------------------- the suite


class AdapterConformance:
    """The checks; a subclass named ``Test...`` runs them, with a fixture ``adapter``."""

    @pytest.fixture(
        params=[
            "gpu_path", "exact", "faulty",
            pytest.param("resumed", marks=pytest.mark.deep_on_double),
            pytest.param("paused", marks=pytest.mark.deep_on_double),
        ]
    )  # fmt: skip
    def attached(self, request, adapter) -> TrainedRun:
        """Each of the runs with ecorl, for laws that all of them keep."""
        return getattr(adapter, request.param)

    # ------------------------------------------------------------ stages

    def test_each_step_has_its_stages_and_no_others(self, adapter, attached):
        with record_of(attached) as reader:
            found = by_step_and_role(reader)
            placed = {(r.placement.iteration, r.placement.role) for r in reader.placements()}
            # A generation that brings nothing, after the last step, is placed and no execution.
            placed -= {(N_STEPS + 1, str(Stage.GENERATION))}
        assert set(found) == {(step, role) for step in STEPS for role in adapter.rows}
        assert placed == set(found)

    def test_an_execution_tells_what_ran_where_when_and_how_it_is_known(self, attached):
        with record_of(attached) as reader:
            results = kept(reader)
        for r in results:
            assert r.t_start_s < r.t_end_s
            assert r.n_sequences > 0
            assert 0 <= r.n_output_tokens < r.n_tokens
            assert r.device_ids
            assert r.device
            assert r.node
            if r.action is Action.GPU:
                assert r.time_provenance is Provenance.MEASURED
                assert r.time_s is not None
                assert r.time_s > 0

    def test_rows_and_tokens_of_a_step(self, adapter):
        with record_of(adapter.gpu_path) as reader:
            found = by_step_and_role(reader)
        for (step, role), own in found.items():
            if is_training(role):
                own[:] = [r for r in own if trains(r)]
            assert sums(own)[0] == adapter.rows[role], (step, role)
        for step in STEPS:
            tokens = {role: sums(found[step, role])[1:] for role in adapter.same_tokens}
            assert len(set(tokens.values())) == 1, (step, tokens)

    def test_an_engine_is_given_what_the_gpu_path_computes(self, adapter):
        with record_of(adapter.gpu_path) as reader:
            own = by_step_and_role(reader)
        for run in (adapter.exact, adapter.faulty):
            with record_of(run) as reader:
                found = by_step_and_role(reader)
            for step in STEPS:
                for role in adapter.offloaded:
                    sent = [r for r in found[step, role] if r.action is not Action.GPU]
                    assert len(sent) == 1, (step, role)
                    (n_rows, n_tokens, n_output), right = map(sums, (sent, own[step, role]))
                    assert (n_rows, n_output) == (right[0], right[2]), (step, role)
                    # A model of another vocabulary may read other tokens than the policy's.
                    if role in adapter.same_tokens:
                        assert n_tokens == right[1], (step, role)

    def test_stages_follow_each_other(self, adapter, attached):
        with record_of(attached) as reader:
            results = kept(reader)
        for step in STEPS:
            own = [r for r in results if r.iteration == step]
            generation = [r for r in own if r.stage is Stage.GENERATION]
            inference = [r for r in own if r.stage in INFERENCE_STAGES]
            later = [r for r in inference if r.role not in adapter.inside_rollout]
            training = [r for r in own if trains(r)]
            for before, after in ((generation, later), (inference, training)):
                ended_s = max(r.t_end_s for r in before)
                assert ended_s <= min(r.t_start_s for r in after) + adapter.slack_s, step

    # ------------------------------------------------------------ energy

    def test_energy_is_accounted_once(self, attached):
        with record_of(attached) as reader:
            assert_counted_once(reader)

    def test_each_role_of_the_gpu_path_has_its_energy(self, adapter):
        with record_of(adapter.gpu_path) as reader:
            found = by_step_and_role(reader)
        for role in adapter.rows:
            energies = [r.energy for step in STEPS for r in found[step, role]]
            assert any(e is not None and e.energy_j is not None for e in energies), role

    def test_missing_energy_is_none_and_never_zero(self, attached):
        with record_of(attached) as reader:
            energies = [r.energy for r in kept(reader) if r.energy is not None]
        assert all(e.energy_j is None or e.energy_j > 0 for e in energies)
        totals = recorded_totals(attached.folder)
        assert totals.drawn_j is None or totals.drawn_j > 0
        for role, sums in totals.roles.items():
            assert sums.energy_j > 0 or sums.n_missing == sums.n_executions, role

    # ------------------------------------------------------------ barrier and ids

    def test_a_batch_is_waited_for_once_and_before_it_is_trained_on(self, adapter):
        for run in (adapter.exact, adapter.faulty):
            with record_of(run) as reader:
                waits, results = reader.barriers(), kept(reader)
            counted = Counter((wait.iteration, wait.role) for wait in waits)
            assert counted == dict.fromkeys(
                ((step, role) for step in STEPS for role in adapter.offloaded), 1
            )
            for wait in waits:
                assert wait.n_rows == adapter.rows[wait.role]
                assert wait.wait_s >= 0
                trained = [r for r in results if r.iteration == wait.iteration and trains(r)]
                assert all(wait.t_s <= r.t_start_s + adapter.slack_s for r in trained)
                if run is adapter.exact:
                    n_astray = (wait.n_missing, wait.n_late, wait.n_duplicates, wait.n_unknown)
                    assert n_astray == (0, 0, 0, 0)

    def test_each_sample_is_answered_exactly_once(self, adapter, attached):
        inference = {role for role in adapter.rows if not is_training(role)}
        expected = {(step, role): adapter.rows[role] for step in STEPS for role in inference}
        with record_of(attached) as reader:
            assert count_samples(reader, expected) == (0, 0)

    # ------------------------------------------------------------ numbers

    def test_the_gpu_path_changes_no_bit(self, adapter):
        assert_same_numbers(adapter.plain, adapter.gpu_path)
        with record_of(adapter.gpu_path) as reader:
            assert {r.action for r in kept(reader)} == {Action.GPU}
            assert reader.faults() == []

    @pytest.mark.deep_on_double
    def test_a_training_that_stands_still_for_a_while_changes_no_bit(self, adapter):
        assert_same_numbers(adapter.plain, adapter.paused)
        with record_of(adapter.paused) as reader:
            choices, rows = reader.choices(), kept(reader)
            spans = paused_spans(choices, reader.last_times())[1]
            assert {row.kind for row in reader.faults()} <= SILENT
        assert Why.DIRTY in {row.choice.why for row in choices}
        assert {row.choice.g_per_kwh for row in choices} <= {400.0, 200.0, None}
        # Nothing of a step runs while it stands.
        for start_s, end_s in spans:
            for r in rows:
                inside_s = min(r.t_end_s, end_s) - max(r.t_start_s, start_s)
                assert inside_s <= adapter.slack_s + SLACK_S, r

    @pytest.mark.deep_on_double
    def test_a_finished_run_leaves_its_footprint(self, adapter):
        folder = adapter.paused.folder
        told = json.loads((folder / "footprint.json").read_text("utf-8"))
        assert told["energy"]["energy_j"] > 0
        assert told["emissions"]["average"]["feeds"][0]["feed"] == "replay"
        assert told["waiting"]["n_pauses"] >= 1
        assert len((folder / "emissions.csv").read_text("utf-8").splitlines()) > 1

    def test_an_exact_engine_trains_as_the_framework_does(self, adapter):
        with record_of(adapter.exact) as reader:
            for role in adapter.offloaded:
                assert engine_share(reader, role, adapter.rows[role]) >= ENGINE_SHARE, role
            assert reader.faults() == []
        assert_same_numbers(adapter.plain, adapter.exact, TOLERANCE)

    def test_faults_change_no_number(self, adapter):
        assert_same_numbers(adapter.plain, adapter.faulty, TOLERANCE)

    def test_the_record_says_which_rows_fell_back_and_why(self, adapter):
        with record_of(adapter.faulty) as reader:
            faults, found = reader.faults(), by_step_and_role(reader)
        for role in adapter.offloaded:
            own = {f.iteration: (f.kind, f.n_rows) for f in faults if f.where == role and f.n_rows}
            n_rows = adapter.rows[role]
            expected = {
                step: (kind, n_rows if n is None else n) for step, (kind, n) in FALLBACKS.items()
            }
            assert own == expected
            for step, (kind, n_bad) in expected.items():
                (sent,) = [r for r in found[step, role] if r.action is not Action.GPU]
                (again,) = [r for r in found[step, role] if r.action is Action.GPU]
                assert (sent.fault, sent.n_rows_fallback) == (kind, n_bad)
                assert again.n_sequences == n_bad

    # ------------------------------------------------------------ resume

    @pytest.mark.deep_on_double
    def test_a_resumed_run_goes_on_in_one_folder(self, adapter):
        with record_of(adapter.resumed) as reader:
            attempts = [(a.attempt, a.from_step) for a in reader.attempts()]
            metrics = [(m.name, m.iteration) for m in reader.metrics() if not m.superseded]
            thrown_away = {r.result.iteration for r in reader.executions() if r.superseded}
            trained = Counter(r.iteration for r in kept(reader) if r.stage is Stage.GENERATION)
            events = [e.kind for e in reader.events()]
            checkpoints = {c.iteration for c in reader.checkpoints() if c.attempt == 1}
            (_, start), (_, from_step) = attempts
        assert start == 0
        assert 0 < from_step < N_STEPS
        assert from_step in checkpoints
        assert all(step > from_step for step in thrown_away)
        assert len(set(trained.values())) == 1
        assert set(trained) == set(STEPS)
        assert len(metrics) == len(set(metrics))
        assert {step for _, step in metrics} == set(STEPS)
        course = (EventKind.START, EventKind.RESUME, EventKind.FINISH)
        assert [kind for kind in events if kind in course] == list(course)

    @pytest.mark.deep_on_double
    def test_the_totals_of_a_resumed_run_go_on(self, adapter):
        run = adapter.resumed
        with record_of(run) as reader:
            rows = reader.executions()
            from_step = reader.attempts()[-1].from_step
        totals = recorded_totals(run.folder)
        for role, sums in totals.roles.items():
            assert sums.n_executions == sum(row.result.role == role for row in rows)
        energies = [row.result.energy for row in rows if row.attempt == 1]
        before_j = sum(e.energy_j for e in energies if e is not None and e.energy_j is not None)
        after_j = [j for step, j in sorted(run.drawn_j.items()) if step > from_step]
        assert after_j == sorted(after_j)
        assert 0 < before_j < after_j[0]

    @pytest.mark.deep_on_double
    def test_a_resumed_training_repeats_the_unbroken_one(self, adapter):
        if not adapter.resume_repeats:
            pytest.skip("the framework itself does not")
        assert_same_numbers(adapter.plain, adapter.resumed)

    @pytest.mark.deep_on_double
    def test_a_run_is_not_written_over(self, adapter):
        assert str(adapter.resumed.folder) in adapter.refusal
        assert "\n" not in adapter.refusal.strip()

    # ------------------------------------------------------------ control path

    def test_the_record_tells_the_abilities(self, adapter, attached):
        told = [f.name for f in fields(Abilities) if getattr(adapter.abilities, f.name)]
        with record_of(attached) as reader:
            found = [e.detail for e in reader.events() if e.kind is EventKind.ABILITIES]
            assert len(found) >= len(reader.attempts())
        assert set(found) == {", ".join(told) or "none"}

    def test_the_control_path_is_asked_once_a_step(self, adapter):
        counted = [run.ticks for run in (adapter.gpu_path, adapter.exact, adapter.faulty)]
        if counted == [None] * 3:
            pytest.skip("the adapter's runtime is in another process")
        assert counted == [N_STEPS] * 3


def is_training(role: Role) -> bool:
    return role in (Stage.ACTOR_TRAIN, Stage.CRITIC_TRAIN)


def sums(results: Sequence[StageResult]) -> tuple[int, int, int]:
    """Rows, tokens and output tokens of some executions."""
    counts = ((r.n_sequences, r.n_tokens, r.n_output_tokens) for r in results)
    n_rows, n_tokens, n_output = map(sum, zip(*counts, strict=True))
    return n_rows, n_tokens, n_output
