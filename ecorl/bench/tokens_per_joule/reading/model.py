"""The figures of one run. A missing figure is None, never 0, and stands beside its provenance.

A simulated card is no part of the machine: its joules stand apart, and figures of both together are
modelled, whatever the machine's are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ecorl.records import Provenance


@dataclass(frozen=True, slots=True)
class MachineEnergy:
    """What the devices of this machine drew in the steps that count, idle draw included.

    Attributes:
        provenance: the weakest of its parts.
        energy_j: J; ``useful_j`` of it went into stages and ``wasted_j`` into waits at the barrier
            and devices that idle; the rest was drawn beside the stages (``beside_j``: saving, the
            framework's own work, idle draw between stages), or while the run was paused.
        by_cause: J by cause; see `ecorl.report.energy.model.Cause`.
        at_least: whether something is missing from it.
        carbon_g: what it emitted with the PUE, g; None where nothing is known of that.
        carbon_provenance: of ``carbon_g``.
    """

    provenance: Provenance
    energy_j: float
    useful_j: float
    wasted_j: float
    beside_j: float
    by_cause: Mapping[str, float]
    at_least: bool
    carbon_g: float | None = None
    carbon_provenance: Provenance | None = None


@dataclass(frozen=True, slots=True)
class CardEnergy:
    """What a simulated card would have drawn, had it answered in its modelled time; all modelled.

    Attributes:
        work_j: on its calls, J; None where that of a call is missing.
        idle_j: while it ran nothing, J; None where its idle power is unknown.
        time_s: the time of the steps that count, with the modelled waits in place of the measured.
        waits_s: those waits, s; in the run they took ``measured_waits_s``, for this host computed
            what the card would.
        machine_j: what the machine would have drawn in that time, J: all that it drew, less the
            part of its waits that the card would have spared it.
    """

    work_j: float | None
    idle_j: float | None
    time_s: float
    waits_s: float
    measured_waits_s: float
    machine_j: float | None

    @property
    def energy_j(self) -> float | None:
        """Work and idle draw, J."""
        if self.idle_j is None or self.work_j is None:
            return None
        return self.work_j + self.idle_j

    @property
    def both_j(self) -> float | None:
        """Machine and card together, J."""
        card_j = self.energy_j
        return None if card_j is None or self.machine_j is None else card_j + self.machine_j


@dataclass(frozen=True, slots=True)
class StageUse:
    """Executions of one stage on one kind of device.

    Attributes:
        role: the stage, or which of its models.
        device: profile name.
        time_s: on the device, s.
        energy_j: J; of the calls that have an energy.
        is_simulated: whether the device is a card that stands for no hardware.
    """

    role: str
    device: str
    time_provenance: Provenance
    energy_provenance: Provenance | None
    n_calls: int
    n_output_tokens: int
    time_s: float | None
    energy_j: float | None
    is_simulated: bool


@dataclass(frozen=True, slots=True)
class QualityPoint:
    """A held-out evaluation, and what the training up to it took, evaluations apart.

    Attributes:
        step: after which it was made; 0: before the first.
        reward, correct: means over the held-out prompts; None where that was not evaluated.
        time_s: s, measured.
        energy_j: drawn by this machine, J; at least so much where ``at_least``.
        with_card_s, with_card_j: the same with a simulated card in its modelled time, modelled.
    """

    step: int
    reward: float | None
    correct: float | None
    time_s: float
    energy_j: float | None
    provenance: Provenance | None
    at_least: bool = False
    with_card_s: float | None = None
    with_card_j: float | None = None


@dataclass(frozen=True, slots=True)
class PackedRun:
    """What adaptive micro-batches made of a run, in the steps that count.

    Attributes:
        n_computed: tokens of the micro-batches, padding included.
        n_unpacked: tokens without packing, padding included.
        difference: largest difference of results with and without, as a share of the largest of
            them, measured; None where they were not compared.
    """

    n_computed: int
    n_unpacked: int
    difference: float | None


@dataclass(frozen=True, slots=True)
class RunFigures:
    """One arm and seed.

    Attributes:
        missing: why there are no figures; empty where there are.
        n_steps: steps that count: all but the warm-up.
        n_tokens: output tokens of the actor in them; of supervised training those trained on.
        n_samples: completions that were generated in them; likewise.
        time_s: of these steps, s, measured.
        busy_s: the part of it in which the framework's devices ran a stage, s.
        machine: None where no energy is known.
        card: None where no card was simulated.
        offloaded: share of the batches that left, by stage.
        n_faults: faults in the record of the whole run.
        gaps: what is missing or doubtful, one sentence each.
        n_all_tokens: of supervised training, the tokens of the prompts among them.
        packing: None where no rows were packed.
    """

    arm: str
    seed: int
    missing: str = ""
    n_steps: int = 0
    n_tokens: int = 0
    n_samples: int = 0
    time_s: float | None = None
    busy_s: float | None = None
    machine: MachineEnergy | None = None
    card: CardEnergy | None = None
    stages: tuple[StageUse, ...] = ()
    quality: tuple[QualityPoint, ...] = ()
    offloaded: Mapping[str, float] = field(default_factory=dict)
    n_faults: int = 0
    gaps: tuple[str, ...] = ()
    n_all_tokens: int | None = None
    packing: PackedRun | None = None

    @property
    def tokens_per_j(self) -> float | None:
        """Output tokens over all joules of this machine; at most so many where joules lack."""
        return None if self.machine is None else _ratio(self.n_tokens, self.machine.energy_j)

    @property
    def tokens_per_j_with_card(self) -> float | None:
        """Output tokens over the joules of machine and simulated card, modelled."""
        return None if self.card is None else _ratio(self.n_tokens, self.card.both_j)

    @property
    def j_per_sample(self) -> float | None:
        """Joules of this machine for a completion."""
        return None if self.machine is None else _ratio(self.machine.energy_j, self.n_samples)

    @property
    def j_per_sample_with_card(self) -> float | None:
        """Joules of machine and simulated card for a completion, modelled."""
        return None if self.card is None else _ratio(self.card.both_j, self.n_samples)

    @property
    def samples_per_s(self) -> float | None:
        """Completions in a second, measured."""
        return _ratio(self.n_samples, self.time_s)

    @property
    def samples_per_s_with_card(self) -> float | None:
        """Completions in a second, had the card answered in its modelled time."""
        return None if self.card is None else _ratio(self.n_samples, self.card.time_s)

    @property
    def bubble(self) -> float | None:
        """Share of the time in which the framework's devices ran no stage, measured."""
        return _rest(self.busy_s, self.time_s)

    @property
    def bubble_with_card(self) -> float | None:
        """The same, had the card answered in its modelled time."""
        return None if self.card is None else _rest(self.busy_s, self.card.time_s)

    @property
    def idle_share(self) -> float | None:
        """Share of this machine's joules that was drawn while its devices ran no stage.

        None where joules are missing: whose they would be is not known.
        """
        m = self.machine
        if m is None or m.at_least:
            return None
        return _ratio(m.wasted_j + m.beside_j, m.energy_j)

    @property
    def carbon_g_with_card(self) -> float | None:
        """What machine and simulated card would have emitted, g, at the machine's own intensity."""
        if self.card is None or self.machine is None or self.machine.carbon_g is None:
            return None
        per_j = _ratio(self.machine.carbon_g, self.machine.energy_j)
        both_j = self.card.both_j
        return None if per_j is None or both_j is None else per_j * both_j

    @property
    def final(self) -> QualityPoint | None:
        """The evaluation after training; None without one."""
        return self.quality[-1] if self.quality and self.quality[-1].step > 0 else None


def _ratio(value: float | None, over: float | None) -> float | None:
    return value / over if value is not None and over else None


def _rest(part_s: float | None, whole_s: float | None) -> float | None:
    share = _ratio(part_s, whole_s)
    return None if share is None else max(0.0, 1.0 - share)
