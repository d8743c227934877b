"""The result in sentences: what came out, what is missing, and how the figures came about."""

from __future__ import annotations

from ecorl.bench.stats import LEAST_VALUES
from ecorl.bench.tokens_per_joule.arms import ADAPTIVE
from ecorl.bench.tokens_per_joule.reading.model import RunFigures
from ecorl.bench.tokens_per_joule.reading.quality import QualityTarget, first_reached
from ecorl.bench.tokens_per_joule.result import ArmEntry, BenchResult
from ecorl.bench.tokens_per_joule.running.known_truth import LIMIT
from ecorl.bench.tokens_per_joule.summary import (
    TOKENS_PER_J,
    WITH_CARD,
    OverSeeds,
    energy_provenance,
    has_card,
    is_bound,
    is_simulating,
    over_baseline,
    over_seeds,
    ratio_bound,
)
from ecorl.bench.tokens_per_joule.telling.energy_tables import NAMES, at_target
from ecorl.report.render.numbers import figure, share

_MOST_GAPS = 6
"""Sentences about gaps of single runs that are shown; the JSON has all."""


def verdict(result: BenchResult) -> list[str]:
    """What came out, a sentence each.

    Args:
        result: of the benchmark.
    """
    base = result.baseline
    runs = result.of(base)
    found = over_seeds(result, base, TOKENS_PER_J)
    if found is None:
        known = [a.name for a in result.arms if over_seeds(result, a.name, TOKENS_PER_J)]
        if not known:
            return ["No run has an energy figure: there are no tokens per joule."]
        return [f"{base} has no energy figure: nothing can be held against it. Others have one."]
    most = "at most " * is_bound(runs)
    told = [
        f"{base} gives {most}{figure(found.median)} output tokens for a joule of this machine "
        f"({energy_provenance(runs)}{_interval(found)})."
    ]
    others = [a for a in result.arms if a.name != base and result.of(a.name)]
    same = [a for a in others if energy_provenance(result.of(a.name)) is energy_provenance(runs)]
    told += _machine_sentence(result, same)
    told += _packing_sentences(result)
    told += _card_sentences(result, [a for a in others if has_card(result, a)])
    for target in result.targets:
        told += _target_sentence(result, target)
    truth = result.known_truth
    if truth is not None and truth.error is not None:
        verdict_of_it = "within" if truth.error <= LIMIT else "beyond"
        told.append(
            f"A run of known energy came out {figure(100 * truth.error, 2)} % off, {verdict_of_it} "
            f"the {share(LIMIT, 1)} that are allowed (replayed)."
        )
    return told


def _interval(found: OverSeeds) -> str:
    if found.interval is None:
        return ""
    low, high = found.interval
    return f", {found.spread_name} {figure(low)} to {figure(high)}"


def _machine_sentence(result: BenchResult, arms: list[ArmEntry]) -> list[str]:
    """Which arms are told apart from the baseline, by the joules of the machine alone."""
    groups: dict[str, list[str]] = {"more": [], "fewer": [], "open": [], "bounded": []}
    for arm in arms:
        if is_simulating(result, arm):
            continue  # its machine computed what the card would
        ratio = over_baseline(result, arm.name, TOKENS_PER_J)
        bound = ratio_bound(result, arm.name)
        if ratio is None or bound is None:
            continue
        if bound:
            words = "at most" if bound == "<= " else "at least"
            groups["bounded"].append(f"{arm.name} {words} {figure(ratio.median)} times")
            continue
        kind = "open"
        if ratio.interval is not None and not ratio.interval[0] <= 1.0 <= ratio.interval[1]:
            kind = "more" if ratio.median > 1.0 else "fewer"
        groups[kind].append(f"{arm.name} {figure(ratio.median)} times")
    is_few = len(result.seeds) < LEAST_VALUES
    titles = {
        "more": "More than that with every seed" if is_few else "More than that, seed by seed",
        "fewer": "Fewer with every seed" if is_few else "Fewer, seed by seed",
        "open": "Not told apart from it by these seeds",
        "bounded": "Some joules of these are missing",
    }
    return [f"{titles[kind]}: {', '.join(names)}." for kind, names in groups.items() if names]


def _packing_sentences(result: BenchResult) -> list[str]:
    """What adaptive micro-batches left out, without which an arm of them says nothing of them."""
    told = []
    for arm in result.arms:
        packed = [run.packing for run in result.of(arm.name) if run.packing is not None]
        if arm.extra != ADAPTIVE or not result.of(arm.name):
            continue
        n_computed, n_all = (
            sum(getattr(one, name) for one in packed) for name in ("n_computed", "n_unpacked")
        )
        if n_computed == n_all:
            told.append(
                f"{arm.name} packed nothing: rows this short, or this alike, are computed as they "
                "are, and the arm says what looking for it takes."
            )
            continue
        apart = [one.difference for one in packed if one.difference is not None]
        differs = f"; results differ by {figure(max(apart), 2)} of the largest value at most"
        told.append(
            f"{arm.name} left out {share(1 - n_computed / n_all)} of the tokens, padding included"
            f"{differs if apart else ''} (measured)."
        )
    return told


def _card_sentences(result: BenchResult, arms: list[ArmEntry]) -> list[str]:
    if not arms:
        return []
    parts, idles = [], []
    for arm in arms:
        found = over_seeds(result, arm.name, WITH_CARD)
        ratio = over_baseline(result, arm.name, WITH_CARD, TOKENS_PER_J)
        idle = over_seeds(result, arm.name, _card_idle_share)
        if found is None or ratio is None:
            continue
        parts.append(f"{arm.name} {figure(found.median)} ({figure(ratio.median)} times)")
        idles += [] if idle is None else [idle.median]
    if not parts:
        return ["What the simulated card would draw while it idles is unknown."]
    told = [
        f"With the simulated card's draw (modelled), against {result.baseline} without one: "
        f"{', '.join(parts)}."
    ]
    if idles:
        span = share(min(idles), 0)
        span = span if max(idles) - min(idles) < 0.01 else f"{span} to {share(max(idles), 0)}"
        told.append(f"Of the card's own joules {span} would be idle draw (modelled).")
    return told


def _card_idle_share(run: RunFigures) -> float | None:
    card_j = None if run.card is None else run.card.energy_j
    return run.card.idle_j / card_j if run.card and run.card.idle_j is not None and card_j else None


def _target_sentence(result: BenchResult, target: QualityTarget) -> list[str]:
    """What it took to reach a target where nothing is simulated."""
    if target.value is None:
        return []
    shown = share(target.value, 1) if target.measure == "correct" else figure(target.value)
    parts = []
    for arm in result.arms:
        runs = result.of(arm.name)
        if not runs or has_card(result, arm):
            continue
        energy = over_seeds(result, arm.name, at_target(target, lambda p: p.energy_j))
        time = over_seeds(result, arm.name, at_target(target, lambda p: p.time_s))
        if energy is None or time is None:
            n = sum(first_reached(run, target) is not None for run in runs)
            parts += [f"{arm.name} did not reach it"] * (n == 0)
            continue
        least = "at least " * is_bound(runs)
        parts.append(
            f"{arm.name} {least}{figure(energy.median)} J ({energy_provenance(runs)}) and "
            f"{figure(time.median)} s (measured)"
        )
    if not parts:
        return []
    return [f"To a held-out {NAMES[target.measure]} of {shown}: {', '.join(parts)}."]


def missing(result: BenchResult) -> list[str]:
    """What has no figures or doubtful ones, a sentence each.

    Args:
        result: of the benchmark.
    """
    told = [f"{arm.name}: {arm.why}." for arm in result.arms if arm.why]
    for run in (*result.runs, *result.supervised):
        if run.missing:
            told.append(f"{run.arm}, seed {run.seed}: {run.missing}.")
    if result.known_truth is not None and result.known_truth.error is None:
        told.append(f"A run of known energy: {result.known_truth.why}.")
    gaps = dict.fromkeys(
        f"{run.arm}: {gap}." for run in (*result.runs, *result.supervised) for gap in run.gaps
    )
    told += list(gaps)[:_MOST_GAPS]
    if len(gaps) > _MOST_GAPS:
        told.append(f"{len(gaps) - _MOST_GAPS} more gaps of single runs are in the JSON.")
    faults = sum(run.n_faults for run in result.runs)
    if faults:
        told.append(f"The runs' records have {faults} faults: see their reports.")
    return told


def notes(result: BenchResult) -> list[str]:
    """How the figures came about, a sentence each.

    Args:
        result: of the benchmark.
    """
    plan = result.plan
    told = [
        f"Each run has {plan['steps']} steps, of which the first {plan['warm_up']} are a warm-up: "
        "they are in no token, no joule and no second of these figures, but for the way to a "
        "quality, which begins at the first step. Evaluations are in none.",
        "The same models, prompts and seeds in all arms; each run begins with the untrained "
        "policy, in a process of its own. Each seed is a round of all arms, forwards and backwards "
        "in turn.",
        "gpu_only: all stages stay where the framework computes, a GPU or this host. "
        "fpga_sequential: rewards and reference leave, and training waits. concurrent: they leave "
        "while it goes on. lookahead and learned choose for each batch.",
        f"{_metered(result)}. A joule counts for the arm in whose run it was drawn, whatever it "
        "was drawn for: stages, waits, saving, the framework's own work, idle draw.",
        "The rate is that of the EcoRL-Sched paper (output tokens of the actor over all energy, "
        "idle draw included). The paper prints 28.7 tokens/J for a 70 B policy on 32 H100, and "
        "32.1 for supervised training (its Table 6; published): other models and machines, and "
        "nothing to compare with.",
    ]
    if any(run.card is not None for run in result.runs):
        told.append(
            "A simulated card is no part of this machine. Its joules and times are modelled; with "
            "it means: its waits as long as the card would have taken, it idles for the rest, and "
            "this machine draws less by what it drew in the waits that fall away. The figures of "
            "this machine alone hold the waits as they were, in which it computed the simulation. "
            "Where a card works beside generation or training (concurrent, lookahead, learned), "
            "its simulation takes processor time from them: that they take longer is in all "
            "figures, and speaks for gpu_only."
        )
    n_seeds = len(result.seeds)
    if n_seeds < LEAST_VALUES:
        told.append(
            f"{n_seeds} seeds are too few for an interval: the spread is the lowest and the "
            "highest of the runs (those of three hold the true median three times in four). A "
            "machine that has other work meanwhile widens it."
        )
    n_profiling = _profiling(result)
    if n_profiling is not None and n_profiling > plan["warm_up"]:
        told.append(
            f"lookahead and learned take both sides in turn in the first {n_profiling} batches "
            f"(placement.n_profiling), of which {n_profiling - plan['warm_up']} are in the figures."
        )
    return told


def _metered(result: BenchResult) -> str:
    """Say which devices are in the joules of this machine."""
    names = list(dict.fromkeys(reading.device_id for reading in result.idle))
    if not names:
        return "This machine's joules are those of the devices whose power was read"
    told = f"This machine's joules are those of {', '.join(names)}"
    return (
        told
        if any(name.startswith("cpu") for name in names)
        else (f"{told}; those of the host's processor and memory are not read")
    )


def _profiling(result: BenchResult) -> int | None:
    """Batches in which a policy that chooses sees both sides; None where it does not."""
    from ecorl.config import parse_config

    placement = parse_config(result.plan["config"], "the plan").placement
    choosing = any(a.placement in ("lookahead", "learned") for a in result.arms)
    return placement.n_profiling if choosing and placement.profile_both_paths else None
