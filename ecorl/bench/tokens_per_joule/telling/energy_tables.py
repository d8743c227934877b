"""Tables of the joules: by cause, by stage and device, and what they emitted."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ecorl.bench.tokens_per_joule.reading.model import QualityPoint, RunFigures, StageUse
from ecorl.bench.tokens_per_joule.reading.quality import QualityTarget, first_reached
from ecorl.bench.tokens_per_joule.result import ArmEntry, BenchResult
from ecorl.bench.tokens_per_joule.summary import (
    FINAL_CORRECT,
    FINAL_REWARD,
    Getter,
    OverSeeds,
    arm_name,
    arms_with_card,
    ends,
    energy_provenance,
    figure_of,
    grouped_arms,
    is_bound,
    middle,
    over_seeds,
    per_cent,
)
from ecorl.records import Provenance, weakest
from ecorl.report.render.lines import Section, Table, table
from ecorl.report.render.numbers import MISSING, figure, share

NAMES = {"reward": "reward", "correct": "share of right answers"}


def quality_section(result: BenchResult) -> Section:
    """Make the tables of the time and the joules to each target, and of the final quality.

    Args:
        result: of the benchmark.
    """
    tables: list[Table] = []
    remarks = []
    for target in result.targets:
        name = NAMES[target.measure]
        if target.value is None:
            remarks.append(f"No target for the held-out {name}: {target.why}.")
            continue
        tables += _target_tables(result, target)
    final = [
        (
            arm.name,
            middle(over_seeds(result, arm.name, FINAL_REWARD)),
            per_cent(over_seeds(result, arm.name, FINAL_CORRECT)),
        )
        for arm in result.arms
        if any(run.final is not None for run in result.of(arm.name))
    ]
    if final:
        heads = ("arm", "reward", "right, %")
        tables.append(table(heads, final, 1, "at the end of training (measured)"))
    lead = (
        "Time and joules of the training up to the first evaluation at or above the target, "
        "warm-up included and evaluations left out; nothing is interpolated between evaluations. "
        "Medians of the runs that reached it; a dash: none did."
    )
    return Section("quality", "To a given quality", lead, "quality", tuple(tables), tuple(remarks))


def _target_tables(result: BenchResult, target: QualityTarget) -> list[Table]:
    shown = share(target.value, 1) if target.measure == "correct" else figure(target.value)
    what = f"held-out {NAMES[target.measure]} of {shown} ({target.why})"
    tables = []
    groups: dict[Provenance | None, list[ArmEntry]] = {}
    for arm in result.arms:
        if result.of(arm.name):
            groups.setdefault(energy_provenance(result.of(arm.name)), []).append(arm)
    for provenance, arms in groups.items():
        rows = [
            (
                arm.name,
                _reached(result, arm, target),
                _step(over_seeds(result, arm.name, at_target(target, lambda p: p.step))),
                middle(over_seeds(result, arm.name, at_target(target, lambda p: p.time_s))),
                middle(
                    over_seeds(result, arm.name, at_target(target, lambda p: p.energy_j)),
                    bound=">= " * any(_is_bound(run, target) for run in result.of(arm.name)),
                ),
            )
            for arm in arms
        ]
        caption = f"{what}; time measured, energy {provenance or 'missing'}"
        tables.append(table(("arm", "reached", "step", "s", "J"), rows, 1, caption))
    cards = [
        (
            arm.name,
            middle(over_seeds(result, arm.name, at_target(target, lambda p: p.with_card_s))),
            middle(over_seeds(result, arm.name, at_target(target, lambda p: p.with_card_j))),
        )
        for arm in arms_with_card(result)
    ]
    if cards:
        caption = "the same with the simulated card in its modelled time (modelled)"
        tables.append(table(("arm", "s", "J"), cards, 1, caption))
    return tables


def at_target(target: QualityTarget, take: Callable[[QualityPoint], float | None]) -> Getter:
    """Take something from the first evaluation of a run at or above a target.

    Args:
        target: the quality.
        take: takes it from the evaluation.
    """

    def found(run: RunFigures) -> float | None:
        point = first_reached(run, target)
        return None if point is None else take(point)

    return found


def _step(found: OverSeeds | None) -> str:
    return MISSING if found is None else f"{found.median:g}"


def _is_bound(run: RunFigures, target: QualityTarget) -> bool:
    point = first_reached(run, target)
    return point is not None and point.at_least


def _reached(result: BenchResult, arm: ArmEntry, target: QualityTarget) -> str:
    runs = result.of(arm.name)
    n = sum(first_reached(run, target) is not None for run in runs)
    return f"{n} of {len(runs)}"


_MILLI, _MILLION = 1e3, 1e6


def energy_section(result: BenchResult) -> Section:
    """Make the tables of what the joules were drawn for.

    Args:
        result: of the benchmark.
    """
    tables = []
    for provenance, arms in grouped_arms(result):
        if provenance is None:
            continue
        heads = ("arm", "J", "useful", "waits, idle", "beside", "no stage, %")
        rows = [_cause_row(result, arm) for arm in arms if result.of(arm.name)]
        tables.append(table(heads, rows, 1, f"this machine alone, J of a run ({provenance})"))
    rows = [_card_row(result, arm) for arm in arms_with_card(result)]
    if rows:
        heads = ("arm", "card works", "card idles", "card", "machine", "together")
        caption = "with the simulated card in its modelled time, J of a run (modelled)"
        tables.append(table(heads, rows, 1, caption))
    lead = (
        "Useful: in stages. Waits, idle: at the barrier for the card, and devices that idle. "
        "Beside: between the stages, saving and idle draw among it. No stage: share of the joules "
        "drawn while the device ran none."
    )
    return Section("energy", "Where the joules went", lead, "energy", tuple(tables))


def _cause_row(result: BenchResult, arm: ArmEntry) -> tuple[str, ...]:
    bound = ">= " * is_bound(result.of(arm.name))
    parts = ("useful_j", "wasted_j", "beside_j")
    return (
        arm_name(result, arm),
        middle(over_seeds(result, arm.name, figure_of("machine.energy_j")), bound=bound),
        *(middle(over_seeds(result, arm.name, figure_of(f"machine.{part}"))) for part in parts),
        per_cent(over_seeds(result, arm.name, lambda run: run.idle_share)),
    )


def _card_row(result: BenchResult, arm: ArmEntry) -> tuple[str, ...]:
    names = ("work_j", "idle_j", "energy_j", "machine_j", "both_j")
    cells = (middle(over_seeds(result, arm.name, figure_of(f"card.{name}"))) for name in names)
    return arm_name(result, arm), *cells


def emissions_section(result: BenchResult) -> Section:
    """Make a table for each provenance of the grams.

    Args:
        result: of the benchmark.
    """
    tables = []
    origins = {
        run.machine.carbon_provenance
        for run in result.runs
        if run.machine is not None and run.machine.carbon_provenance is not None
    }
    heads = ("arm", "gCO2e/Mtoken", "low", "high")
    for origin in sorted(origins, key=list(Provenance).index):
        rows = [
            _grams_row(result, arm, _grams_by(origin))
            for arm in result.arms
            if over_seeds(result, arm.name, _grams_by(origin)) is not None
        ]
        tables.append(table(heads, rows, 1, f"this machine alone ({origin})"))
    if origins:
        rows = [_grams_row(result, arm, _grams_with_card) for arm in arms_with_card(result)]
        weak = weakest(Provenance.MODELLED, *origins)
        if rows:
            tables.append(table(heads, rows, 1, f"with the simulated card ({weak})"))
    lead = "Grams for a million output tokens, with the PUE, by the average intensity of the grid."
    return Section("emissions", "What it emitted", lead if tables else "", "", tuple(tables))


def _grams_row(result: BenchResult, arm: ArmEntry, take: Getter) -> tuple[str, ...]:
    found = over_seeds(result, arm.name, take)
    bound = ">= " * is_bound(result.of(arm.name))
    return arm_name(result, arm), middle(found, _MILLION, bound), *ends(found, _MILLION)


def _grams_by(origin: Provenance) -> Getter:
    """Grams of one provenance for an output token."""

    def grams(run: RunFigures) -> float | None:
        m = run.machine
        if m is None or m.carbon_g is None or m.carbon_provenance is not origin or not run.n_tokens:
            return None
        return m.carbon_g / run.n_tokens

    return grams


def _grams_with_card(run: RunFigures) -> float | None:
    known = run.carbon_g_with_card
    return None if known is None or not run.n_tokens else known / run.n_tokens


# ---------------------------------------------------------------- stages


def stages_section(result: BenchResult) -> Section:
    """Make a table for each kind of device, its stages as columns.

    Args:
        result: of the benchmark.
    """
    kinds = list(
        dict.fromkeys(
            (s.device, s.time_provenance, s.energy_provenance, s.is_simulated)
            for arm in result.arms
            for run in result.of(arm.name)
            for s in run.stages
            if s.energy_provenance is not None
        )
    )
    tables = [_stage_table(result, kind) for kind in kinds]
    lead = (
        "Millijoules for each output token of the run: those of all stages of a device add up. "
        "A stage that ran in part on the card has a part on either."
    )
    return Section("stages", "Joules by stage and device", lead, "", tuple(tables))


_Kind = tuple[str, Provenance, Provenance | None, bool]


def _stage_table(result: BenchResult, kind: _Kind) -> Table:
    device, time, energy, is_simulated = kind

    def is_own(stage: StageUse) -> bool:
        return (
            stage.device, stage.time_provenance, stage.energy_provenance, stage.is_simulated
        ) == kind  # fmt: skip

    arms = [a for a in result.arms if any(map(is_own, _stages_of(result.of(a.name))))]
    roles = list(
        dict.fromkeys(s.role for a in arms for s in _stages_of(result.of(a.name)) if is_own(s))
    )

    def cost(role: str) -> Getter:
        def take(run: RunFigures) -> float | None:
            known = [s.energy_j for s in run.stages if is_own(s) and s.role == role]
            found = [value for value in known if value is not None]
            return sum(found) / run.n_tokens if found and run.n_tokens else None

        return take

    rows = [
        (
            arm_name(result, arm),
            *(middle(over_seeds(result, arm.name, cost(role)), _MILLI) for role in roles),
        )
        for arm in arms
    ]
    simulated = ", simulated" if is_simulated else ""
    caption = f"{device}{simulated}: time {time}, energy {energy}; mJ/token"
    return table(("arm", *roles), rows, 1, caption)


def _stages_of(runs: Iterable[RunFigures]) -> Iterable[StageUse]:
    return (stage for run in runs for stage in run.stages)
