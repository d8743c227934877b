"""A simulated run of hidden true costs that leaves a record, as a run on machines would.

What `ecorl policy calibrate` makes of a ledger can only be checked where the truth is known. Here
an exploring policy plays a scenario, and every stage goes into a real `Ledger`: time and energy of
the GPUs, device time, energy and queue of the cards, waits at the barrier, lengths of the batches,
idle powers. Each reading is off by a few percent, as readings are. All of it is ``modelled``.

How stages are booked, where the demo's runtime has no example of it:

- generation beside a critic's step that was put off: one execution, with the time and the energy
  of both in its window;
- a critic's step that is put off: a ``concurrent`` execution of the time and energy of moving its
  state out and in;
- an actor's step whose forward pass runs before the barrier: one ``concurrent`` execution from the
  start of the forward pass, the wait at the barrier included.
"""

from __future__ import annotations

import math
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import tomlkit

from ecorl.errors import ConfigError
from ecorl.ledger import LEDGER_FILE, DeviceRecord, Ledger, encoding
from ecorl.policy.calibration.readings import LENGTH_METRIC, LONGEST_METRIC, TASK_METRICS
from ecorl.records import (
    INFERENCE_STAGES,
    BarrierWait,
    EnergyMethod,
    EventKind,
    FaultKind,
    GuardRefusal,
    Placement,
    Provenance,
    Stage,
    StageEnergy,
    StageResult,
)
from ecorl.scheduler.paper_table import paper_table
from ecorl.scheduler.tables import (
    COLUMN,
    COLUMNS,
    LONG,
    SHORT,
    CostTable,
    length_grid,
    roofline_table,
)
from ecorl.sim.families.training import paper_scenarios
from ecorl.sim.scenario import Scenario
from ecorl.sim.simulation import Simulation
from ecorl.sim.trace import Trace, draw_trace
from ecorl.stages.figures import ACTIONS, CONCURRENT, FPGA, GPU, Carry
from ecorl.stages.iteration import advance, card_done_s
from ecorl.telemetry.sources.specs import card_id

READING_NOISE = 0.03
"""Standard deviation of a reading over its value. Assumed: what repeated executions of one batch
differ by on machines that nothing else disturbs."""

_FACTOR = (0.6, 1.6)
"""Least and greatest factor on a hidden time, energy or power."""

_SHORTEST = 0.15
"""Shortest mean completion of a hidden table over the nominal one. Its lengths lie closer than
those of a computed table: what is a line between two of them should not be far off a curve."""


def hidden_scenario(
    seed: int, base: Scenario | None = None, *, n_iterations: int = 300
) -> Scenario:
    """A scenario that no calibration computes: every figure of its table is off by chance.

    Times and energies of each stage are scaled by factors between 0.6 and 1.6, idle and active
    powers as well, and the shares of overlapping (forward pass, its price, contention, swap) are
    drawn.

    Args:
        seed: of all that is hidden.
        base: whose table is scaled; by default one of the harder ones under the paper's
            calibration, with cards that neither fail nor get hot: no ledger tells of that.
        n_iterations: of an episode.
    """
    rng = np.random.default_rng([seed, 71])
    if base is None:
        (drawn,) = paper_scenarios(seed, 1, harder=True)
        base = replace(drawn, failure_rate=0.0, ambient_c=23.0)
    lengths = length_grid(_SHORTEST * base.nominal_length, base.max_length)
    make = paper_table if base.calibration == "paper" else roofline_table
    hidden = _hidden_table(make(base.setting, lengths, base.rows_at(lengths)), rng)
    base = replace(base, name=f"hidden-{seed}", n_iterations=n_iterations)
    return replace(base, calibration="fitted", fitted=hidden)


def _hidden_table(table: CostTable, rng: np.random.Generator) -> CostTable:
    def factor() -> float:
        return float(rng.uniform(*_FACTOR))

    factors = {name: factor() for name in COLUMNS}
    for unit in "sj":  # both belong to one stage: the longer row must stay the dearer one
        factors[f"generation_long_{unit}"] = factors[f"generation_short_{unit}"]
    active_w = table.card_active_w * factor()
    return replace(
        table,
        values=table.values * np.array([factors[name] for name in COLUMNS]),
        gpu_idle_w=table.gpu_idle_w * factor(),
        card_active_w=active_w,
        card_idle_w=min(table.card_idle_w * factor(), active_w),
        forward_share=table.forward_share * float(rng.uniform(0.8, 1.2)),
        early_share=float(rng.uniform(0.05, 0.20)),
        swap_share=float(rng.uniform(0.03, 0.12)),
        contention=float(rng.uniform(0.35, 0.75)),
        provenance=Provenance.MODELLED,
        notes=("made up: scaled by hidden factors",),
    )


def write_ledger(
    scenario: Scenario, run_dir: Path, *, seed: int = 0, noise: float = READING_NOISE
) -> Path:
    """Play a scenario with an exploring policy and write its record.

    Of the actions that the guards let pass, a stage takes the one that it took least; in 200
    iterations each comes 30 times and more.

    Args:
        scenario: what is played; synchronous, `Scenario.n_iterations` long.
        run_dir: folder of the record; made when it is absent.
        seed: of the episode, of the exploration and of the readings' errors.
        noise: standard deviation of a reading of time or energy over its value.

    Returns:
        The ledger's file.

    Raises:
        ConfigError: for an off-policy scenario.
        RunError: when there is a ledger in `run_dir` already.
        LedgerError: when it cannot be written.
    """
    if scenario.off_policy:
        raise ConfigError("scenario.off_policy", True, "a synchronous scenario")
    rng = np.random.default_rng([seed, 72])
    trace = draw_trace([scenario], rng)
    path = Path(run_dir) / LEDGER_FILE
    ledger = _SimulatedLedger.create(
        path, run_id=scenario.name, config_toml=_config(scenario), meta={"origin": "simulation"}
    )
    assert isinstance(ledger, _SimulatedLedger)
    with ledger:
        clerk = _Clerk(ledger, scenario, trace, rng, noise)
        while not clerk.simulation.done:
            clerk.stage()
        ledger.event(EventKind.FINISH, f"{scenario.n_iterations} simulated iterations")
    return path


def _config(scenario: Scenario) -> str:
    limits = {"q_max": scenario.limits.q_max, "l_max": scenario.limits.l_max}
    if scenario.limits.energy_margin is not None:
        limits["energy_margin"] = scenario.limits.energy_margin
    config = {"algorithm": str(scenario.algorithm), "name": scenario.name}
    trainer = {"max_completion_length": int(scenario.max_length)}
    return tomlkit.dumps({**config, "trainer": trainer, "placement": limits})


class _SimulatedLedger(Ledger):
    """A ledger on the simulator's clock: rows are stamped with `now_s`."""

    now_s: float = 0.0

    def placement(self, p: Placement) -> None:
        """Record one decision, taken at `now_s`."""
        t_s = self.now_s
        self._insert("placement", lambda: {"t_s": t_s, **encoding.columns_of(Placement, p)})

    def barrier(self, wait: BarrierWait) -> None:
        """Record one wait that ended at `now_s`."""
        t_s = self.now_s
        self._insert("barrier", lambda: {"t_s": t_s, **encoding.columns_of(BarrierWait, wait)})


class _Clerk:
    """Plays a simulation stage by stage and books what each stage did."""

    def __init__(
        self,
        ledger: _SimulatedLedger,
        scenario: Scenario,
        trace: Trace,
        rng: np.random.Generator,
        noise: float,
    ) -> None:
        self.ledger, self.scenario, self.trace, self.rng = ledger, scenario, trace, rng
        self.simulation, self.noise = Simulation(trace, 0), noise
        self.start_s = time.monotonic()  # of the iteration, on the ledger's clock
        self.gpus = tuple(f"gpu{i}" for i in range(scenario.n_gpus))
        self.cards = tuple(map(card_id, range(scenario.n_cards)))
        self.used: dict[tuple[Stage, int], int] = {}
        self.flights: list[tuple[Stage, float]] = []
        self.lost: list[Stage] = []
        self.counts = (0, 0, 0)
        self._devices()

    def stage(self) -> None:
        """Place, play and book the next stage."""
        simulation, stage = self.simulation, self.simulation.stage
        if stage is Stage.GENERATION:
            self._batch()
        if stage not in self.scenario.setting.stages:
            simulation.step(GPU)
        else:
            may = (1.0, *simulation.permitted())
            proposed = self._explore(stage)
            action = proposed if may[proposed] else GPU
            self.used[stage, action] = self.used.get((stage, action), 0) + 1
            before = simulation.carry
            after = advance(stage, before, simulation.actual, action)
            self._place(stage, proposed, action)
            self._book(stage, action, before, after)
            simulation.step(action, (may[1], may[2]))
        if simulation.place == 0:
            assert simulation.totals is not None
            self.start_s += simulation.totals.time_s
            self.flights.clear()
            self.lost.clear()

    # ------------------------------------------------------------ what is chosen

    def _explore(self, stage: Stage) -> int:
        """The action that the stage took least, at random among equals."""
        rules = self.simulation.rules
        choices = [GPU]
        if stage in INFERENCE_STAGES:
            choices += [FPGA, CONCURRENT] if rules.usable[INFERENCE_STAGES.index(stage)] else []
        elif {
            Stage.GENERATION: rules.stream,
            Stage.ACTOR_TRAIN: rules.early,
            Stage.CRITIC_TRAIN: rules.defer,
        }[stage]:
            choices.append(CONCURRENT)
        # Without chance the stages would go in step, and nobody could tell their effects apart.
        order = self.rng.permutation(choices)
        return int(min(order, key=lambda a: self.used.get((stage, int(a)), 0)))

    def _place(self, stage: Stage, proposed: int, action: int) -> None:
        self.ledger.now_s = self.start_s + self.simulation.carry.t_s
        reason, refusal = "exploring: the action that this stage took least", None
        if proposed != action:
            refusal, words = self._objection()
            reason = f"{ACTIONS[proposed]} proposed; kept on the GPU: {words}"
        actions = ACTIONS[proposed], ACTIONS[action]
        placement = Placement(self.iteration, stage, *actions, "explore", reason, refusal=refusal)
        self.ledger.placement(placement)

    def _objection(self) -> tuple[GuardRefusal | None, str]:
        length, limits = self.simulation.row_length(), self.scenario.limits
        if length > limits.l_max:
            words = f"the mean length of {length:.0f} is above l_max = {limits.l_max:g}"
            return GuardRefusal.TOO_LONG, words
        if self.simulation.actual.cards_up <= 0:
            return GuardRefusal.UNAVAILABLE, "the FPGA path is not available"
        if limits.energy_margin is not None:
            # Which of the two it was cannot be told from here.
            return None, "its energy or the queue is above the limit"
        words = f"the queue of other jobs has reached q_max = {limits.q_max:g}"
        return GuardRefusal.QUEUE_FULL, words

    # ------------------------------------------------------------ what is booked

    @property
    def iteration(self) -> int:
        """1-based, as a trainer's step."""
        return self.simulation.iteration + 1

    def _devices(self) -> None:
        setting, table = self.scenario.setting, self.scenario.table
        for device_ids, profile, idle_w in (
            (self.gpus, setting.gpu, table.gpu_idle_w),
            (self.cards, setting.card, table.card_idle_w),
        ):
            known = profile.name, Provenance.MODELLED, "simulation", idle_w / len(device_ids)
            for one in device_ids:
                self.ledger.device(DeviceRecord(one, *known, kind=profile.kind))

    def _batch(self) -> None:
        """The facts of the batch, as a trainer logs them."""
        k = self.simulation.iteration
        length = float(self.trace.length[k, 0])
        self.ledger.metric(self.iteration, LENGTH_METRIC, length)
        longest = self._longest(length)
        if longest is not None:
            self.ledger.metric(self.iteration, LONGEST_METRIC, longest)
        for name, share in zip(TASK_METRICS, self.trace.shares[k, 0], strict=True):
            self.ledger.metric(self.iteration, name, float(share))
        rows = float(self.trace.n_rows[k, 0])
        prompts = self.scenario.prompt_length
        self.counts = (round(rows), round(rows * (length + prompts)), round(rows * length))

    def _longest(self, length: float) -> float | None:
        """Read back from the price of generation, which is linear in it; None where it is not."""
        row = self.scenario.table.at(length)
        short_s = float(row[COLUMN["generation_short_s"]])
        slope_s = (float(row[COLUMN["generation_long_s"]]) - short_s) / (LONG - SHORT)
        if slope_s <= 0:
            return None
        generation_s = float(self.simulation.actual.generation_s)
        return length * (SHORT + (generation_s - short_s) / slope_s)

    def _book(self, stage: Stage, action: int, before: Carry, after: Carry) -> None:
        if stage in INFERENCE_STAGES and action != GPU:
            self._on_cards(stage, action, before)
        elif stage is Stage.ACTOR_TRAIN:
            self._actor_train(action, before, after)
        else:
            taken_s, taken_j = after.t_s - before.t_s, after.gpu_j - before.gpu_j
            self._on_gpus(stage, action, before.t_s, taken_s, taken_j)

    def _on_cards(self, stage: Stage, action: int, before: Carry) -> None:
        work = self.simulation.actual
        done_s, card_s = card_done_s(stage, before, work, float(action == CONCURRENT))
        # Rows that are handed over during generation reach the cards before it ends.
        streamed = before.streaming and stage is not Stage.CRITIC
        sent_s = work.handover_s[0] * before.stretch if streamed else before.t_s
        end_s, wait_s = done_s, 0.0
        time_s = card_s * self._error()
        if not streamed:
            end_s = done_s - card_s + time_s
        if action == FPGA:
            wait_s = max(0.0, done_s - before.t_s)
            self._wait(stage, before.t_s, wait_s)
        else:
            self.flights.append((stage, done_s))
        n_lost = math.ceil(work.lost * self.counts[0])
        self.lost += [stage] if n_lost else []
        energy_j = self.scenario.table.card_active_w * card_s * self._error()
        span = sent_s, end_s
        self._execution(stage, action, span, time_s, energy_j, wait_s=wait_s, n_lost=n_lost)

    def _actor_train(self, action: int, before: Carry, after: Carry) -> None:
        work, error = self.simulation.actual, self._error()
        early = action == CONCURRENT
        ahead_s = (work.forward_s + work.early_s) if early else 0.0
        # Where the forward pass ends is read with the same error as the whole.
        t_s = before.t_s + ahead_s * error
        late_s = 0.0
        for stage, done_s in self.flights:
            wait_s = max(0.0, done_s - before.t_s - ahead_s - late_s)
            self._wait(stage, t_s + late_s, wait_s)
            late_s += wait_s
        for stage in self.lost:
            place = INFERENCE_STAGES.index(stage)
            again_s, again_j = work.lost * work.gpu_s[place], work.lost * work.gpu_j[place]
            self._on_gpus(stage, GPU, t_s + late_s, again_s, again_j)
        rest_s = after.t_s - before.t_s - ahead_s - late_s - before.redo_s
        inside_s = late_s + before.redo_s
        start_s = before.t_s if early else before.t_s + inside_s
        taken_s = (ahead_s + rest_s) * error + (inside_s if early else 0.0)
        energy_j = (work.actor_j + (work.early_j if early else 0.0)) * self._error()
        energy_j += (work.gpu_idle_w * late_s + before.redo_j) if early else 0.0
        span = (start_s, start_s + taken_s)
        self._execution(Stage.ACTOR_TRAIN, action, span, taken_s, energy_j, on_cards=False)

    def _on_gpus(
        self, stage: Stage, action: int, start_s: float, time_s: float, energy_j: float
    ) -> None:
        time_s = time_s * self._error()
        span = (start_s, start_s + time_s)
        self._execution(stage, action, span, time_s, energy_j * self._error(), on_cards=False)

    def _wait(self, stage: Stage, start_s: float, wait_s: float) -> None:
        self.ledger.now_s = self.start_s + start_s + wait_s
        self.ledger.barrier(BarrierWait(self.iteration, stage, wait_s, self.counts[0], 0, 0))

    def _error(self) -> float:
        return float(np.exp(self.noise * self.rng.standard_normal()))

    def _execution(
        self,
        stage: Stage,
        action: int,
        span_s: tuple[float, float],
        time_s: float,
        energy_j: float,
        *,
        on_cards: bool = True,
        wait_s: float = 0.0,
        n_lost: int = 0,
    ) -> None:
        """One row; `span_s` on the iteration's clock."""
        setting = self.scenario.setting
        device_ids = self.cards if on_cards else self.gpus
        start_s, end_s = self.start_s + span_s[0], self.start_s + span_s[1]
        energy = StageEnergy(
            device_ids=device_ids,
            t_start_s=start_s,
            t_end_s=end_s,
            energy_j=energy_j,
            mean_power_w=energy_j / time_s if time_s > 0 else None,
            counter_energy_j=None,
            integral_energy_j=None,
            n_samples=0,
            coverage=1.0,
            method=EnergyMethod.CYCLE_MODEL if on_cards else EnergyMethod.MODEL,
            provenance=Provenance.MODELLED,
        )
        self.ledger.result(
            StageResult(
                iteration=self.iteration,
                stage=stage,
                action=ACTIONS[action],
                device_ids=device_ids,
                device=(setting.card if on_cards else setting.gpu).name,
                t_start_s=start_s,
                t_end_s=end_s,
                time_s=time_s,
                time_provenance=Provenance.MODELLED,
                host_time_s=time_s,
                wait_s=wait_s,
                n_sequences=self.counts[0],
                n_tokens=self.counts[1],
                n_output_tokens=self.counts[2],
                energy=energy,
                n_rows_fallback=n_lost,
                fault=FaultKind.ENGINE_CRASHED if n_lost else None,
            )
        )
