"""What the stages of a recorded run cost, alone and beside one another, from its readings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ecorl.errors import RunError
from ecorl.policy.calibration import fit
from ecorl.policy.calibration.readings import RunReadings, Side, StageReading
from ecorl.records import INFERENCE_STAGES, Action, Algorithm, DeviceKind, Stage
from ecorl.scheduler import tables
from ecorl.stages.graph import stage_graph

N_BOTH_WAYS = 2 * fit.MIN_READINGS + 4
"""Batches of a run that is meant to be calibrated, every other one on the card: a few more than
are needed, since the first readings may lack their energy."""

BOTH_WAYS = (
    'placement = {policy = {type = "threshold"}, profile_both_paths = true, n_profiling = '
    f"{N_BOTH_WAYS}}} and trainer.steps = {N_BOTH_WAYS} or more"
)
"""A config under which reward and reference run on the card and off it in turns."""

_NO_SLOWING = 0.02
"""Difference of the card's times under a2 and a3 that counts as none. Assumed: below it the error
of the fits is as large."""


@dataclass(frozen=True)
class RecordedJob:
    """A recorded run as the simulator's job: which stages, and the batches in figures.

    Attributes:
        run: the readings.
        algorithm: of the trainer.
        with_reference: whether a reference model ran.
        n_rows, prompt, length, longest: of each batch, ``[n_rollouts] float64``; `longest` is NaN
            where it is not known.
    """

    run: RunReadings
    algorithm: Algorithm
    with_reference: bool
    n_rows: tables.Float64
    prompt: tables.Float64
    length: tables.Float64
    longest: tables.Float64

    @classmethod
    def of(cls, run: RunReadings) -> RecordedJob:
        """The job of a run; its algorithm is the config's, or follows from the stages seen."""
        seen = {r.stage for r in run.readings}
        try:
            algorithm = Algorithm(str(run.head.get("algorithm")))
        except ValueError:
            has_critic = seen & {Stage.CRITIC, Stage.CRITIC_TRAIN}
            algorithm = Algorithm.PPO if has_critic else Algorithm.GRPO
        # Without a KL term no reference runs; else its absence is a gap in the record.
        prescribed = Stage.REFERENCE in stage_graph(algorithm).stages
        without_kl = run.head.get("beta") == 0 or not prescribed
        longest = [r.longest for r in run.rollouts]
        return cls(
            run=run,
            algorithm=algorithm,
            with_reference=Stage.REFERENCE in seen or not without_kl,
            n_rows=np.array([float(r.n_rows) for r in run.rollouts]),
            prompt=np.array([r.prompt_length for r in run.rollouts]),
            length=np.array([r.length for r in run.rollouts]),
            longest=np.array([np.nan if x is None else x for x in longest]),
        )

    @cached_property
    def stages(self) -> tuple[Stage, ...]:
        """The stages of an iteration."""
        return stage_graph(self.algorithm, self.with_reference).stages

    @cached_property
    def offloaded(self) -> tuple[Stage, ...]:
        """Stages that must have run on both sides: the frozen ones, and a critic that did."""
        critic = [Stage.CRITIC] if self.run.of(Stage.CRITIC, "card") else []
        frozen = [s for s in (Stage.REWARD, Stage.REFERENCE) if s in self.stages]
        return (*frozen, *critic)

    @cached_property
    def knows_longest(self) -> bool:
        """Whether enough batches tell their longest completion."""
        return int(np.isfinite(self.longest).sum()) >= fit.MIN_READINGS

    @cached_property
    def after_deferral(self) -> frozenset[int]:
        """Batches that were generated beside a critic's step that had been put off."""
        put_off = self.run.of(Stage.CRITIC_TRAIN, "gpu", Action.CONCURRENT)
        attempts = [r.attempt for r in self.run.rollouts]
        following = [r.rollout + 1 for r in put_off]
        return frozenset(
            k for k in following if k < len(attempts) and attempts[k] == attempts[k - 1]
        )

    def readings(self, stage: Stage, side: Side) -> list[StageReading]:
        """Readings of a stage alone: a1 on the GPUs, a2 and a3 on the cards."""
        if side == "card":
            return self.run.of(stage, side)
        if stage is not Stage.GENERATION:
            return self.run.of(stage, side, Action.GPU)
        found = self.run.of(stage, side)
        if self.knows_longest:
            found = [r for r in found if np.isfinite(self.longest[r.rollout])]
        return [r for r in found if r.rollout not in self.after_deferral]

    def terms(self, at: Sequence[int], stage: Stage) -> tables.Float64:
        """`cost_terms` of some batches, as the costs of a stage depend on them."""
        k = np.array(at, dtype=np.int64)
        longest = self.longest[k] if self.knows_longest and stage is Stage.GENERATION else None
        return fit.cost_terms(self.n_rows[k], self.prompt[k], self.length[k], longest)


def check_readings(job: RecordedJob) -> None:
    """Check that each stage ran often enough on each side that the fit needs.

    Raises:
        RunError: one line with all that is missing, and how many readings there are.
    """
    cells: list[tuple[Stage, Side]] = [(stage, "gpu") for stage in job.stages]
    cells += [(stage, "card") for stage in job.offloaded]
    missing = []
    for stage, side in sorted(cells, key=lambda cell: job.stages.index(cell[0])):
        found = job.readings(stage, side)
        n_energies = sum(r.energy_j is not None for r in found)
        if len(found) < fit.MIN_READINGS:
            missing.append(f"{stage} on {_side(job.run, side)} has {_readings(len(found))}")
        elif n_energies < fit.MIN_ENERGIES:
            where = _side(job.run, side)
            missing.append(f"energy of {stage} on {where} has {_readings(n_energies)}")
    if missing:
        raise RunError(
            f"{job.run.path}: cannot be calibrated: {', '.join(missing)}; each needs "
            f"{fit.MIN_READINGS} that are sound (no fault, no row computed by the trainer itself), "
            f"{fit.MIN_ENERGIES} of them with an energy. Such a run comes from {BOTH_WAYS}"
        )


def _side(run: RunReadings, side: Side) -> str:
    """What to call where a stage ran."""
    if side == "card":
        return "the card"
    rows = [run.devices[i] for i in run.gpu_ids if i in run.devices]
    return "the host" if rows and all(r.kind is DeviceKind.CPU for r in rows) else "the GPUs"


def _readings(n: int) -> str:
    return f"{n} reading" if n == 1 else f"{n} readings"


def idle_w(run: RunReadings, side: Side) -> float:
    """Idle power of all devices of a side, W.

    Raises:
        RunError: when the ledger does not tell one of them.
    """
    total_w = 0.0
    for device_id in run.gpu_ids if side == "gpu" else run.card_ids:
        row = run.devices.get(device_id)
        if row is None or row.idle_w is None:
            name = run.profiles.get(side, "no profile") if row is None else row.profile
            raise RunError(
                f"{run.path}: cannot be calibrated: the idle power of {device_id} ({name}) is not "
                "in the ledger; it comes from idle_w of the device's profile"
            )
        total_w += row.idle_w
    return total_w


@dataclass(frozen=True)
class Costs:
    """Fitted costs of the stages.

    Attributes:
        job: whose they are.
        fits: by stage and side, ``_s`` or ``_j`` at the end: ``reward_s``, ``reward_card_s``.
        card_active_w: all cards busy, W.
        slow: factor by which the cards slow while the GPUs work, 1 or more.
    """

    job: RecordedJob
    fits: Mapping[str, fit.LinearFit]
    card_active_w: float
    slow: float

    def at(self, name: str, batches: Sequence[int]) -> tables.Float64:
        """A cost of some of the run's batches, s or J."""
        stage = Stage(name.rpartition("_")[0].removesuffix("_card"))
        return self.fits[name].at(self.job.terms(batches, stage))

    def columns(self, lengths: tables.Float64, n_rows: float, prompt: float) -> tables.Float64:
        """The values of a `CostTable` at mean lengths of completions, for usual batches.

        A table is a line between its lengths, and above a curve: its values are those with which
        it comes closest to the fit all along, not those of the fit at its lengths.
        """
        fine, shares = _between(lengths)
        rows, prompts = np.full_like(fine, n_rows), np.full_like(fine, prompt)
        values = np.zeros((len(lengths), len(tables.COLUMNS)))

        def column(fitted: fit.LinearFit, longest: tables.Float64 | None = None) -> tables.Float64:
            exact = np.maximum(fitted.at(fit.cost_terms(rows, prompts, fine, longest)), 1e-300)
            found, *_ = np.linalg.lstsq(shares / exact[:, None], np.ones_like(exact), rcond=None)
            return np.asarray(np.maximum(found, 0.0))

        for name, fitted in self.fits.items():
            if not name.startswith(Stage.GENERATION):
                values[:, tables.COLUMN[name]] = column(fitted)
                continue
            for row, ratio in (("short", tables.SHORT), ("long", tables.LONG)):
                longest = ratio * fine if self.job.knows_longest else None
                values[:, tables.COLUMN[f"generation_{row}_{name[-1]}"]] = column(fitted, longest)
        return values


_FINE = 16
"""Points between two lengths of a table at which it is held against the fit."""


def _between(lengths: tables.Float64) -> tuple[tables.Float64, tables.Float64]:
    """Lengths between those of a table ``[m]``, and the weights of its rows there ``[m, n]``."""
    n = len(lengths)
    place = np.linspace(0.0, n - 1.0, _FINE * (n - 1) + 1)
    fine = np.exp(np.interp(place, np.arange(n), np.log(lengths)))
    return fine, np.maximum(0.0, 1.0 - np.abs(place[:, None] - np.arange(n)[None, :]))


def fit_costs(job: RecordedJob) -> Costs:
    """Fit time and energy of each stage on the GPUs, and its time on the cards."""
    slow = _slow(job)
    fits = {}
    for stage in job.stages:
        found = job.readings(stage, "gpu")
        fits[f"{stage}_s"] = _fit(job, found, lambda r: r.time_s)
        fits[f"{stage}_j"] = _fit(job, found, lambda r: r.energy_j)
    for stage in job.offloaded:
        found = job.readings(stage, "card")
        fits[f"{stage}_card_s"] = _fit(
            job, found, lambda r: r.time_s / (slow if r.action is Action.CONCURRENT else 1.0)
        )
    pairs = [
        (r.energy_j, r.time_s)
        for stage in job.offloaded
        for r in job.readings(stage, "card")
        if r.energy_j is not None
    ]
    energy_j, time_s = np.array(pairs, dtype=np.float64).T
    return Costs(job, fits, fit.fit_ratio(energy_j, time_s), slow)


def _fit(
    job: RecordedJob,
    readings: Sequence[StageReading],
    value: Callable[[StageReading], float | None],
) -> fit.LinearFit:
    pairs = [(r.rollout, v) for r in readings if (v := value(r)) is not None]
    terms = job.terms([k for k, _ in pairs], readings[0].stage)
    return fit.fit_linear(terms, np.array([v for _, v in pairs]))


def _slow(job: RecordedJob) -> float:
    """Times of the cards under a3 over those under a2, where both were seen."""
    ratios = []
    for stage in job.offloaded:
        alone = job.run.of(stage, "card", Action.FPGA)
        beside = job.run.of(stage, "card", Action.CONCURRENT)
        if min(len(alone), len(beside)) >= fit.MIN_READINGS:
            fitted = _fit(job, alone, lambda r: r.time_s)
            expected = fitted.at(job.terms([r.rollout for r in beside], stage))
            ratios.append(fit.fit_ratio(np.array([r.time_s for r in beside]), expected))
    slow = float(np.mean(ratios)) if ratios else 1.0
    return slow if slow > 1.0 + _NO_SLOWING else 1.0


@dataclass(frozen=True, slots=True)
class Overlap:
    """What overlapping costs; names as in `CostTable`, and notes on what is assumed."""

    forward_share: float
    early_share: float
    swap_share: float
    contention: float
    counts: Mapping[str, int]
    notes: tuple[str, ...]


def fit_overlap(costs: Costs) -> Overlap:
    """Fit the shares as far as the run overlapped its stages; else they are the assumed ones."""
    job, notes = costs.job, []
    early = [
        r
        for r in job.run.of(Stage.ACTOR_TRAIN, "gpu", Action.CONCURRENT)
        if r.rollout not in job.run.unsound
    ]
    put_off = job.run.of(Stage.CRITIC_TRAIN, "gpu", Action.CONCURRENT)
    beside = [r for r in job.run.of(Stage.GENERATION, "gpu") if r.rollout in job.after_deferral]
    forward, price = tables.FORWARD_SHARE, tables.EARLY_SHARE
    if len(early) >= fit.MIN_READINGS:
        forward, price, told = _early(costs, early)
        notes += (
            [] if told else [f"forward share {forward:.3g}: assumed, nothing waited at a barrier"]
        )
    else:
        notes.append(f"forward share {forward:.3g} and its price {price:g}: assumed")
    swap, contention = tables.SWAP_SHARE, tables.CONTENTION
    if len(put_off) >= fit.MIN_READINGS:
        step_s = costs.at("critic_train_s", [r.rollout for r in put_off])
        swap = fit.fit_ratio(np.array([r.time_s for r in put_off]), step_s)
    elif Stage.CRITIC_TRAIN in job.stages:
        notes.append(f"price {swap:g} of putting off the critic's step: assumed")
    if len(beside) >= fit.MIN_READINGS:
        contention = _contention(costs, beside)
    elif Stage.CRITIC_TRAIN in job.stages:
        notes.append(f"contention {contention:g} of generation and critic's step: assumed")
    counts = {"early_forward": len(early), "put_off": len(put_off), "beside_put_off": len(beside)}
    return Overlap(forward, price, swap, contention, counts, tuple(notes))


def _early(costs: Costs, readings: Sequence[StageReading]) -> tuple[float, float, bool]:
    """Forward share, its price, and whether barriers tell the former."""
    job = costs.job
    beside = {
        (r.rollout, r.stage)
        for stage in job.offloaded
        for r in job.run.of(stage, "card", Action.CONCURRENT)
    }
    net_s, ahead_s = [], []
    for r in readings:
        batch = job.run.rollouts[r.rollout]
        rows = job.run.barriers.get((batch.attempt, batch.iteration), ())
        inside = [
            (b.t_s - b.wait_s, b.wait_s)
            for b in rows
            if b.wait_s is not None
            and (r.rollout, b.stage) in beside  # an a2 was waited for before
            and r.start_s <= b.t_s - b.wait_s <= r.end_s
        ]
        net_s.append(r.end_s - r.start_s - sum(wait_s for _, wait_s in inside))
        ahead_s.append(min(begin_s for begin_s, _ in inside) - r.start_s if inside else np.nan)
    step_s = costs.at("actor_train_s", [r.rollout for r in readings])
    found = fit.fit_early(step_s, np.array(net_s), np.array(ahead_s))
    forward = tables.FORWARD_SHARE if found.forward_share is None else found.forward_share
    return forward, found.price / forward, found.forward_share is not None


def _contention(costs: Costs, readings: Sequence[StageReading]) -> float:
    batches = [r.rollout for r in readings]
    return fit.fit_contention(
        costs.at("generation_s", batches),
        costs.at("critic_train_s", [k - 1 for k in batches]),
        np.array([r.time_s for r in readings]),
    )


def on_card(costs: Costs) -> tuple[bool, bool, bool]:
    """Which of reward, reference and critic the cards can run."""
    usable = [stage in costs.job.offloaded for stage in INFERENCE_STAGES]
    return usable[0], usable[1], usable[2]
