"""Cost tables: what the stages of an iteration cost, over the length of its completions.

Pricing a stage by `ecorl.scheduler.costs.CostModel` takes up to milliseconds. A decision has some
microseconds, a simulator less than one, so both read a table that was made once: every stage's time
and energy on GPUs and cards at `N_LENGTHS` mean lengths of completions, evenly spaced in the
logarithm, and linear in the length in between. Generation also depends on the longest row, which
decides the number of decoding steps: it is priced at a longest row of `SHORT` and `LONG` times the
mean, linear in the ratio in between and beyond.

Two calibrations can be computed, ``roofline`` and ``paper`` (`ecorl.scheduler.paper_table`);
a third is fitted from a run's ledger.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from ecorl.config import DeviceConfig
from ecorl.devices import DeviceProfile, parameter_bytes
from ecorl.errors import ConfigError, PhysicalBoundError
from ecorl.records import Algorithm, DeviceKind, ModelShape, Provenance, Role, Stage, StageWork
from ecorl.scheduler.costs import CostModel, RoleDevices
from ecorl.stages.graph import stage_graph

Float64 = npt.NDArray[np.float64]

N_LENGTHS = 12
SHORT, LONG = 1.0, 3.0
"""Longest row over the mean, at which generation is priced."""

COLUMNS = (
    "generation_short_s", "generation_long_s", "generation_short_j", "generation_long_j",
    "reward_s", "reference_s", "critic_s", "reward_j", "reference_j", "critic_j",
    "reward_card_s", "reference_card_s", "critic_card_s",
    "actor_train_s", "actor_train_j", "critic_train_s", "critic_train_j",
)  # fmt: skip
"""Columns of a table: time in s and energy in J on all GPUs, time in s on the cards."""

COLUMN = {name: i for i, name in enumerate(COLUMNS)}

FORWARD_SHARE = 1.0 / 3.0
"""Share of a training step that is its forward pass: backward is twice the forward."""

TP_EFFICIENCY = 1.0 / 1.08
"""Speed of a card that shares a model with another one: the paper prints 8 % for synchronising."""

EARLY_SHARE = 0.10
"""Price of a forward pass before the barrier, share of its time: its activations must stay while
the barrier waits, so part of them is moved out and back or computed again. Assumed."""

SWAP_SHARE = 0.06
"""Price of putting off the critic's step, share of its time: optimizer state moves out and in.
Assumed."""

CONTENTION = 0.55
"""Share by which generation slows beside the critic's step: decoding is bound by memory and leaves
arithmetic units free, but both want bandwidth. Assumed."""


@dataclass(frozen=True, slots=True)
class Setting:
    """Job and devices, as far as costs depend on them.

    Attributes:
        algorithm: of the RL trainer; it decides which stages there are.
        models: shape of each stage's model; a stage without one costs nothing.
        n_rows: completions an iteration.
        prompt_length: mean tokens of a prompt.
        gpu, n_gpus: the GPU path.
        card, n_cards: the cards, or GPUs or processors in their place; 0 switch offloading off.
        divides_rows: whether the cards divide a batch's rows among them, as the simulator's do;
            else one card answers a batch, as in a run, and more of them shorten the queue alone.
        with_reference: whether there is a KL term; None: what the algorithm prescribes.
        reward_calls: times that a row is scored while it grows (process rewards); each call
            passes over the row so far, at evenly spaced ends of steps.
        by_role: devices of the roles that the training's own do not serve.
    """

    algorithm: Algorithm
    models: Mapping[Stage, ModelShape]
    n_rows: int
    prompt_length: float
    gpu: DeviceProfile
    n_gpus: int
    card: DeviceProfile
    n_cards: int = 1
    with_reference: bool | None = None
    reward_calls: int = 1
    divides_rows: bool = True
    by_role: Mapping[Role, RoleDevices] = field(default_factory=dict)

    @property
    def cards_per_batch(self) -> int:
        """Cards that work on one batch."""
        return self.n_cards if self.divides_rows else min(self.n_cards, 1)

    @property
    def card_share(self) -> float:
        """Share of the cards that a batch keeps busy, as in `ecorl.stages.figures.Work`."""
        return self.cards_per_batch / self.n_cards if self.n_cards else 1.0

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The stages of the algorithm whose models are known."""
        graph = stage_graph(self.algorithm, self.with_reference)
        return tuple(s for s in graph.stages if s in self.models)


@dataclass(frozen=True, slots=True)
class CostTable:
    """Costs over the mean length of completions.

    Attributes:
        lengths: ``[n_lengths] float64``, tokens, evenly spaced in the logarithm.
        values: ``[n_lengths, len(COLUMNS)] float64``, s and J.
        gpu_idle_w: all GPUs waiting, W.
        card_active_w: all cards busy, W.
        card_idle_w: all cards waiting, W.
        resync_s: bringing the critic's new weights to the cards, s.
        forward_share: share of the actor's training step before the barrier.
        early_share, swap_share, contention: see `EARLY_SHARE`, `SWAP_SHARE`, `CONTENTION`.
        card_share: share of the cards that a batch keeps busy, as in `ecorl.stages.figures.Work`.
        card_usable: whether cards can run reward, reference and critic (they fit and are priced).
        provenance: of all figures.
        notes: what to know about them.
    """

    lengths: Float64
    values: Float64
    gpu_idle_w: float
    card_active_w: float
    card_idle_w: float
    resync_s: float = 0.0
    forward_share: float = FORWARD_SHARE
    early_share: float = EARLY_SHARE
    swap_share: float = SWAP_SHARE
    contention: float = CONTENTION
    card_share: float = 1.0
    card_usable: tuple[bool, bool, bool] = (True, True, True)
    provenance: Provenance = Provenance.MODELLED
    notes: tuple[str, ...] = field(default=())

    def at(self, length: float | Float64) -> Float64:
        """Interpolate the row of a mean length, ``[..., len(COLUMNS)] float64``.

        Outside of the table's lengths it is that of the nearest end.
        """
        held = np.clip(np.asarray(length, dtype=np.float64), self.lengths[0], self.lengths[-1])
        low = np.clip(np.searchsorted(self.lengths, held, "right") - 1, 0, len(self.lengths) - 2)
        below, above = self.lengths[low], self.lengths[low + 1]
        share = ((held - below) / (above - below))[..., None]
        return np.asarray(self.values[low] * (1.0 - share) + self.values[low + 1] * share)


def length_grid(shortest: float, longest: float, n_lengths: int = N_LENGTHS) -> Float64:
    """Space lengths evenly in the logarithm, ``[n_lengths] float64``, tokens.

    Args:
        shortest: the first, tokens.
        longest: the last, tokens.
        n_lengths: how many.

    Raises:
        ConfigError: when they are not positive and rising.
    """
    if not 0 < shortest < longest:
        raise ConfigError("lengths", (shortest, longest), "above 0 and rising")
    return np.geomspace(shortest, longest, n_lengths)


def roofline_table(setting: Setting, lengths: Float64, rows: Float64 | None = None) -> CostTable:
    """Compute the physical calibration's table: roofline on the GPUs, cycle model on the cards.

    Args:
        setting: what runs on what.
        lengths: ``[n_lengths] float64``, mean lengths of completions, tokens.
        rows: ``[n_lengths] float64``, completions at each length; `Setting.n_rows` when None.

    Returns:
        The table, its provenance modelled.

    Raises:
        ConfigError: when a GPU stage cannot be priced: a figure is missing, or the model does not
            fit.
    """
    device = DeviceConfig(n_gpus=setting.n_gpus)
    costs = CostModel(setting.gpu, setting.card, device, setting.models, setting.by_role)
    values = np.zeros((len(lengths), len(COLUMNS)))
    usable, notes = _usable_cards(setting, costs, float(lengths[0]))
    n_rows = np.full(len(lengths), float(setting.n_rows)) if rows is None else rows
    for i, length in enumerate(lengths):
        values[i] = _roofline_row(setting, costs, float(length), round(float(n_rows[i])), usable)
    card, n_cards = setting.card, setting.n_cards
    idle_w = setting.gpu.value("idle_w")
    middle = len(lengths) // 2
    active_w = _active_w(
        setting, costs, float(lengths[middle]), round(float(n_rows[middle])), usable
    )
    return CostTable(
        lengths=lengths,
        values=values,
        gpu_idle_w=setting.n_gpus * idle_w,
        card_active_w=max(n_cards, 1) * active_w,
        card_idle_w=n_cards * (card.get("idle_w") or 0.0),
        resync_s=_resync_s(setting) if any(usable) else 0.0,
        card_share=setting.card_share,
        card_usable=usable,
        notes=notes,
    )


def stage_work(setting: Setting, stage: Stage, length: float, n_rows: int) -> StageWork:
    """Describe the work of one stage on rows that are all alike.

    Args:
        setting: job and devices.
        stage: the stage.
        length: completion of each row, tokens.
        n_rows: rows.
    """
    n_output = round(n_rows * length)
    n_tokens = round(n_rows * (length + setting.prompt_length))
    longest = round(length + setting.prompt_length)
    return StageWork(stage, n_rows, n_tokens, n_output, longest, setting.models[stage])


def _roofline_row(
    setting: Setting, costs: CostModel, length: float, n_rows: int, usable: tuple[bool, ...]
) -> Float64:
    row = np.zeros(len(COLUMNS))
    for stage in setting.stages:
        work = stage_work(setting, stage, length, n_rows)
        calls = stage_calls(setting, stage)
        if stage is Stage.GENERATION:
            for name, ratio in (("short", SHORT), ("long", LONG)):
                longest = round(ratio * length + setting.prompt_length)
                time_s, energy_j = _on_gpus(costs, replace(work, max_length=longest))
                row[COLUMN[f"generation_{name}_s"]] = time_s
                row[COLUMN[f"generation_{name}_j"]] = energy_j
            continue
        time_s, energy_j = _on_gpus(costs, work)
        row[COLUMN[f"{stage}_s"]], row[COLUMN[f"{stage}_j"]] = calls * time_s, calls * energy_j
        name = f"{stage}_card_s"
        if name in COLUMN and usable[_CARD_STAGES.index(stage)]:
            row[COLUMN[name]] = calls * _on_cards(setting, costs, work)
    return row


_CARD_STAGES = (Stage.REWARD, Stage.REFERENCE, Stage.CRITIC)

_PRECISIONS = {DeviceKind.FPGA: "INT8", DeviceKind.GPU: "BF16", DeviceKind.CPU: "FP32"}
"""What devices in the cards' place compute in, for messages; see `parameter_bytes`."""


def stage_calls(setting: Setting, stage: Stage) -> float:
    """Return the work of a stage in passes over whole rows.

    Of n evenly spaced reward calls the j-th reads j / n of the row, together (n + 1) / 2 rows.

    Args:
        setting: the job.
        stage: the stage.
    """
    return (setting.reward_calls + 1) / 2 if stage is Stage.REWARD else 1.0


def _on_gpus(costs: CostModel, work: StageWork) -> tuple[float, float]:
    cost = costs.gpu_cost(work)
    if cost.time_s is None or cost.energy_j is None:
        raise ConfigError(f"costs of {work.stage} on {cost.device}", None, cost.note)
    return cost.time_s, cost.energy_j


def _active_w(
    setting: Setting, costs: CostModel, length: float, n_rows: int, usable: tuple[bool, ...]
) -> float:
    """Return what one card draws while it works, W.

    An FPGA's kernels draw its profile's load power whatever they do. A GPU or processor starts
    kernels at its idle power between them, so it is the mean over the stages that it can run.
    """
    load_w = setting.card.get("active_w") or 0.0
    if setting.card.kind == DeviceKind.FPGA:
        return load_w
    time_s = energy_j = 0.0
    for stage, can_run in zip(_CARD_STAGES, usable, strict=True):
        if can_run:
            cost = costs.fpga_cost(_part(setting, stage_work(setting, stage, length, n_rows)))
            calls = stage_calls(setting, stage)
            time_s += calls * (cost.time_s or 0.0)
            energy_j += calls * (cost.energy_j or 0.0)
    return energy_j / time_s if time_s > 0.0 else load_w


def _resync_s(setting: Setting) -> float:
    """Return how long the critic's new weights take to the cards, s; 0.0 without a critic.

    They cross the host's link, but within a processor's own memory, which reads and writes them.
    """
    critic, card = setting.models.get(Stage.CRITIC), setting.card
    if critic is None or setting.n_cards < 1:
        return 0.0
    moved = parameter_bytes(card) * float(critic.n_params)
    if card.kind == DeviceKind.CPU:
        return 2.0 * moved / card.value("memory_bytes_per_s")
    return moved / card.value("link_bytes_per_s")


def _part(setting: Setting, work: StageWork) -> StageWork:
    """Return the part of a batch's work that one of its cards does."""
    n_rows = -(-work.n_sequences // setting.cards_per_batch)
    share = n_rows / work.n_sequences
    # The critic is a transformer with a scalar head like the reward model and is priced as one:
    # the cycle model knows no critic.
    return replace(
        work,
        n_sequences=n_rows,
        n_tokens=round(work.n_tokens * share),
        n_output_tokens=round(work.n_output_tokens * share),
        stage=Stage.REWARD if work.stage is Stage.CRITIC else work.stage,
    )


def _on_cards(setting: Setting, costs: CostModel, work: StageWork) -> float:
    """Return the time of the cards that work on a batch for a stage, s."""
    time_s = costs.fpga_cost(_part(setting, work)).time_s
    if time_s is None:
        raise ConfigError(f"costs of {work.stage} on {setting.card.name}", None, "known costs")
    # A batch that one card answers needs no other card.
    shares_model = setting.divides_rows and not _fits_together(setting)
    return time_s / (TP_EFFICIENCY if shares_model else 1.0)


def _fits_together(setting: Setting) -> bool:
    """Tell whether one card holds reward and reference model together; else cards divide them."""
    memory = setting.card.get("memory_bytes") or 0.0
    models = [setting.models[s] for s in (Stage.REWARD, Stage.REFERENCE) if s in setting.stages]
    return parameter_bytes(setting.card) * sum(m.n_params for m in models) <= memory


def _usable_cards(
    setting: Setting, costs: CostModel, length: float
) -> tuple[tuple[bool, bool, bool], tuple[str, ...]]:
    """Find out which inference stages the cards can run, and why they cannot run the others.

    The weights, in the precision of the cards, must fit into the memory of all cards together,
    those of reward and reference before those of the critic, and the model of the cards' costs must
    know the shape.
    """
    if setting.n_cards < 1:
        return (False, False, False), ("there is no card",)
    memory = setting.n_cards * (setting.card.get("memory_bytes") or 0.0)
    each = float(parameter_bytes(setting.card))
    needed = sum(each * setting.models[s].n_params
                 for s in (Stage.REWARD, Stage.REFERENCE) if s in setting.stages)  # fmt: skip
    if needed > memory:
        precision = _PRECISIONS[setting.card.kind]
        note = f"{needed / 1e9:.3g} GB of {precision} weights, {memory / 1e9:.3g} GB on the cards"
        return (False, False, False), (note,)
    usable, notes = [], []
    for stage in _CARD_STAGES:
        known = False
        if stage is Stage.CRITIC and stage in setting.stages:
            needed += each * setting.models[stage].n_params
        if needed > memory:
            notes.append(f"the critic does not fit beside the others: {needed / 1e9:.3g} GB")
        elif stage in setting.stages:
            work = stage_work(
                setting, stage, length, max(setting.n_rows // setting.cards_per_batch, 1)
            )
            as_reward = replace(work, stage=Stage.REWARD) if stage is Stage.CRITIC else work
            try:
                cost = costs.fpga_cost(as_reward)
                known = cost.known
                notes += [] if known else [cost.note]
            except (ConfigError, PhysicalBoundError) as error:
                notes.append(str(error))
        usable.append(known)
    return (usable[0], usable[1], usable[2]), tuple(notes)
