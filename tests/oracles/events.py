"""An event-driven simulation of an iteration: the independent check of the stage function.

`ecorl.stages.iteration.advance` prices a placement by closed formulas. Here the same iteration is
played through, one event after another, on floats: the GPUs work one stage after another, finished
rows are handed over one by one, and the cards are a server with a queue. Nothing is known
beforehand of how long anybody waits; joules add up from the power between two events. It is slow,
and used to check the formulas (`check_episode`), never to train on.

The rules, beside those of `ecorl.stages.iteration`:

- The cards serve what comes first. Of the rows that generation hands over, those of the reward go
  before those of the reference, so that a stage that the GPUs wait for is not held up by a later
  one.
- Critic training that was put off is spread evenly over the generation, at most 1 s of it beside
  each second of generation; each such second makes the generation longer by ``contention``.
- The speed of the cards is set at the start of the iteration. Other jobs' work is given in s of
  the cards as they are and does not change with it.
- Sleeping cards wake up when the first stage is sent, or, for rows that are streamed, when
  generation starts. In an iteration in which they wake up they draw idle power throughout.
- The cards' temperature moves towards that of their mean power over the iteration.
- After an episode's last iteration, what it put off is done and what is still due is waited for;
  backlog and temperature stay those of the iteration's end.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from ecorl.sim.scenario import Scenario
from ecorl.sim.simulation import N_STAGES, Simulation
from ecorl.sim.trace import draw_trace
from ecorl.stages.figures import CONCURRENT, GPU, THROTTLE_SPAN_C, Between, IterationTotals, Work
from tests.oracles.card_queue import CardQueue, QueuedWork

_GENERATION, _REWARD, _REFERENCE, _CRITIC, _ACTOR_TRAIN, _CRITIC_TRAIN = range(N_STAGES)

_FIRST, _STREAMED, _LATER = 0, 1, 3
"""Ranks in the queue: what was there at the start, rows handed over (1 for the reward, 2 for the
reference), and all that comes from the end of generation on."""


class _Busy(NamedTuple):
    """The GPUs work for `seconds`."""

    seconds: float


class _Until(NamedTuple):
    """The GPUs stand still until the results of some stages are there."""

    stages: tuple[int, ...]


class _Still(NamedTuple):
    """The GPUs stand still for `seconds`."""

    seconds: float


class _Iteration:
    """One iteration under way."""

    def __init__(self, work: Work, before: Between, actions: Sequence[int], last: bool) -> None:
        self.work, self.before, self.actions, self.last = work, before, actions, last
        self.now_s = 0.0
        self.events: list[tuple[float, int, int | None]] = []
        """Time, number, and the cards' version; None for the GPUs."""
        self.n_events = 0
        self.cards = CardQueue()
        self.waiting: tuple[int, ...] | None = None
        self.asked: list[int] = []
        """Stages whose results nobody has waited for."""
        self.redo_s = self.redo_j = 0.0
        self.gpu_j = self.card_j = self.all_card_j = self.bubble_s = 0.0
        self.end: IterationTotals
        self.ended = False
        self.still = False
        others_s = before.backlog_s + self._arriving_s()
        self.asleep = bool(before.asleep)
        self.others_s, self.own_s, self.silent_s = others_s, 0.0, 0.0
        # Card time that others and this job have sent, and how long a failed card is silent.
        used = any(actions[s] != GPU for s in (_REWARD, _REFERENCE, _CRITIC))
        self.idle_w = work.card_idle_w
        if self.asleep and not used:
            self.idle_w = work.asleep_w
        self.ready_s = 0.0
        self.over = False
        # Whether the iteration has ended and only what it left is being done.
        hot = min(1.0, max(0.0, (before.temperature_c - work.limit_c) / THROTTLE_SPAN_C))
        self.speed = work.cards_up * (1.0 - hot * (1.0 - work.throttle))

    def run(self) -> IterationTotals:
        """Play it to its end."""
        self._send_others(_FIRST, self.before.backlog_s)
        self._send_others(_FIRST, self._arriving_s())
        self.program = self._stages()
        self._resume()
        while not self.ended:
            time_s, _, version = heapq.heappop(self.events)
            self._pass_to(time_s)
            if version is None:
                self._resume()
            elif version == self.cards.version and self.cards.serving is not None:
                stage = self.cards.serving.stage
                if stage is not None and self.actions[stage] == CONCURRENT:
                    self.ready_s = self.now_s
                self.cards.end()
                self._start_cards()
                if self.waiting is not None and self._there(self.waiting):
                    self._resume()
        return self._totals()

    def _arriving_s(self) -> float:
        return self.work.arriving_s * (1.0 - self.work.yielding * self.before.occupancy)

    # ------------------------------------------------------------ the clock

    def _pass_to(self, time_s: float) -> None:
        """Let time go by; every device draws its power meanwhile."""
        passed_s = time_s - self.now_s
        served = self.cards.serving
        active_w, idle_w = self.work.card_active_w, self.idle_w
        own = served is not None and served.stage is not None and not self.over
        # By the rise over idle power, which sleeping cards do not have.
        above_w = active_w - self.work.card_idle_w
        self.card_j += passed_s * (idle_w + (above_w if own else 0.0))
        self.all_card_j += passed_s * (active_w if served is not None else idle_w)
        if served is not None:
            served.left_s = max(0.0, served.left_s - passed_s)
        if self.waiting is not None or self.still:
            self.gpu_j += passed_s * self.work.gpu_idle_w
            self.bubble_s += passed_s
        self.now_s = time_s

    def _note(self, after_s: float, version: int | None) -> None:
        heapq.heappush(self.events, (self.now_s + after_s, self.n_events, version))
        self.n_events += 1

    def _resume(self) -> None:
        """The GPUs go on with their program until they are busy or have to wait."""
        self.waiting = None
        self.still = False
        for step in self.program:
            if isinstance(step, _Still):
                self.still = True
                self._note(step.seconds, None)
                return
            if isinstance(step, _Busy):
                self._note(step.seconds, None)
                return
            if not self._there(step.stages):
                self.waiting = step.stages
                return
        self.ended = True

    # ------------------------------------------------------------ the cards

    def _there(self, stages: tuple[int, ...]) -> bool:
        return all(self.cards.missing[stage] == 0 for stage in stages)

    def _wake(self, rank: int) -> None:
        if self.asleep:
            self.asleep = False
            self.others_s += self.work.wake_s
            self._send_others(rank, self.work.wake_s)

    def _send_others(self, rank: int, seconds: float) -> None:
        self.cards.arrive(rank, QueuedWork(seconds, None))
        self._start_cards()

    def _send(self, stage: int, rank: int, share: float) -> None:
        """Send a share of a stage's rows to the cards."""
        if self.speed <= 0:
            raise ValueError(f"stage {stage} was sent to cards of which none is up")
        place = stage - _REWARD
        seconds = self.work.card_s[place] / self.speed
        if self.actions[stage] == CONCURRENT:
            seconds *= self.work.slow
        if stage == _CRITIC:
            seconds += self.work.resync_s
        self.own_s += share * seconds
        self._wake(rank)
        self.cards.arrive(rank, QueuedWork(share * seconds, stage))
        self._start_cards()

    def _start_cards(self) -> None:
        seconds = self.cards.start()
        if seconds is not None:
            self._note(seconds, self.cards.version)

    # ------------------------------------------------------------ the GPUs

    def _stages(self) -> Iterator[_Busy | _Until | _Still]:
        """What the GPUs do, one thing after another."""
        work = self.work
        yield from self._generation()
        for stage in (_REWARD, _REFERENCE, _CRITIC):
            yield from self._inference(stage)
        early = self.actions[_ACTOR_TRAIN] == CONCURRENT and not work.off_policy
        if early:
            yield _Busy(work.early_s)
            yield _Busy(work.forward_s)
            self.gpu_j += work.early_j
        if not work.off_policy:
            yield from self._barrier()
        if not early:
            yield _Busy(work.forward_s)
        yield _Busy(work.backward_s)
        self.gpu_j += work.actor_j
        if self.actions[_CRITIC_TRAIN] == CONCURRENT:
            yield _Busy(work.swap_s)
            self.gpu_j += work.swap_j
        else:
            yield _Busy(work.critic_s)
            self.gpu_j += work.critic_j
        if work.off_policy:
            yield from self._barrier()
        self.end = self._stand()
        # Beyond the end: what it takes to do at once what was put off, then what is still due.
        self.over = True
        self.idle_w = work.asleep_w if self.end.after.asleep else work.card_idle_w
        yield _Busy(self.end.after.deferred_s)
        self.gpu_j += self.end.after.deferred_j
        self.booked = (self.now_s, self.gpu_j, self.card_j, self.bubble_s)
        if work.stale:
            yield _Until(tuple(self.asked))
            if self.last:
                self.booked = (self.now_s, self.gpu_j, self.card_j, self.bubble_s)

    def _generation(self) -> Iterator[_Busy]:
        work = self.work
        streamed = [
            stage
            for stage in (_REWARD, _REFERENCE)
            if self.actions[_GENERATION] == CONCURRENT and self.actions[stage] != GPU
        ]
        if streamed:
            self._wake(_FIRST)
        for stage in streamed:
            self.cards.missing[stage] = len(work.tail)
        # Training from the iteration before, s a second of generation.
        beside = min(1.0, self.before.deferred_s / work.generation_s)
        left_s = self.before.deferred_s
        made_s = 0.0
        later = (*work.tail[1:], 0.0)
        for handover_s, tail, rest in zip(work.handover_s, work.tail, later, strict=True):
            part_s = handover_s - made_s
            yield _Busy(part_s + work.contention * part_s * beside)
            made_s, left_s = handover_s, left_s - part_s * beside
            for stage in streamed:
                self._send(stage, _STREAMED + stage - _REWARD, tail - rest)
        self.gpu_j += work.generation_j
        self.others_s += work.late_arriving_s
        self._send_others(_LATER, work.late_arriving_s)
        yield _Busy(max(0.0, left_s))
        self.gpu_j += self.before.deferred_j

    def _inference(self, stage: int) -> Iterator[_Busy | _Until]:
        work, place = self.work, stage - _REWARD
        if self.actions[stage] == GPU:
            yield _Busy(work.gpu_s[place])
            self.gpu_j += work.gpu_j[place]
            return
        if stage not in self.cards.missing:
            self.cards.missing[stage] = 1
            self._send(stage, _LATER, 1.0)
        if work.lost > 0.0:
            self.silent_s = work.timeout_s
        self.redo_s += work.lost * work.gpu_s[place]
        self.redo_j += work.lost * work.gpu_j[place]
        if self.actions[stage] == CONCURRENT:
            self.asked.append(stage)
        else:
            yield _Until((stage,))

    def _barrier(self) -> Iterator[_Busy | _Until | _Still]:
        if self.work.off_policy and self.work.stale:
            yield _Still(max(0.0, self.before.due_s - self.now_s))
        else:
            yield _Until(tuple(self.asked))
        yield _Still(self.silent_s)
        yield _Busy(self.redo_s)
        self.gpu_j += self.redo_j

    # ------------------------------------------------------------ the end

    def _stand(self) -> IterationTotals:
        """How things stand now; nothing is booked yet."""
        work, time_s = self.work, self.now_s
        power_w = self.all_card_j / time_s / work.n_cards
        target_c = work.ambient_c + work.rise_c_per_w * power_w
        kept = math.exp(-time_s / work.tau_s)
        temperature_c = self.before.temperature_c * kept + target_c * (1.0 - kept)
        put_off = self.actions[_CRITIC_TRAIN] == CONCURRENT
        deferred = (work.critic_s, work.critic_j) if put_off else (0.0, 0.0)
        asleep = float(work.sleeps and self.own_s <= 0.0)
        # When what is still on its way comes is only known later (`_totals`).
        occupancy = min(1.0, self.own_s / time_s)
        after = Between(self.cards.left_s, temperature_c, *deferred, asleep, 0.0, occupancy)
        # What the cards still have to do for this iteration is booked in it.
        self.card_j += (work.card_active_w - work.card_idle_w) * self.cards.own_left_s
        return IterationTotals(time_s, self.gpu_j, self.card_j, self.bubble_s, 0.0, 0.0, after)

    def _totals(self) -> IterationTotals:
        """The end of the iteration, its own work booked as if nothing were put off."""
        brought_s, (now_s, gpu_j, card_j, bubble_s) = self.before.deferred_s, self.booked
        rests_w = self.work.asleep_w if self.before.asleep else self.work.card_idle_w
        brought_j = self.before.deferred_j + rests_w * brought_s
        due_s = self.work.stale * max(0.0, self.ready_s - self.end.time_s)
        end = self.end._replace(
            booked_s=now_s - brought_s,
            booked_j=gpu_j + card_j - brought_j,
            after=self.end.after._replace(due_s=due_s),
        )
        if not self.last:
            return end
        after = end.after._replace(deferred_s=0.0, deferred_j=0.0, due_s=0.0)
        return end._replace(
            time_s=now_s, gpu_j=gpu_j, card_j=card_j, bubble_s=bubble_s, after=after
        )


def play_iteration(
    work: Work, before: Between, actions: Sequence[int], last: bool = False
) -> IterationTotals:
    """Play one iteration, event by event.

    Args:
        work: what its stages cost; floats, generation longer than 0 s.
        before: what the iteration before left.
        actions: code of the action of each of the six stages, after the guards. An action that
            means nothing for its stage is a1.
        last: whether nothing follows, so that training that was put off is done at the end.

    Raises:
        ValueError: when a stage is sent to cards of which none is up, or the number of actions is
            not six.
    """
    if len(actions) != N_STAGES:
        raise ValueError(f"{len(actions)} actions: {N_STAGES} are needed, one a stage")
    return _Iteration(work, before, actions, last).run()


def play_episode(
    works: Sequence[Work], actions: Sequence[Sequence[int]], before: Between
) -> list[IterationTotals]:
    """Play iterations one after another; each takes over what the one before left.

    Training that the last one puts off is done at its end.

    Args:
        works: what the stages of each iteration cost.
        actions: for each iteration, as in `play_iteration`.
        before: what is there at the start.
    """
    made: list[IterationTotals] = []
    for work, codes in zip(works, actions, strict=True):
        made.append(play_iteration(work, before, codes, last=len(made) + 1 == len(works)))
        before = made[-1].after
    return made


def check_episode(scenario: Scenario, seed: int, actions: Sequence[Sequence[int]]) -> float:
    """Play an episode twice, by the stage function and event by event.

    Each way carries its own backlog, temperature and deferred training along. Both take the
    actions that the simulator's guards leave.

    Args:
        scenario: what the episode is drawn from.
        seed: of the draw.
        actions: codes of the stages of each of its iterations, before the guards.

    Returns:
        The worst difference of any figure of any iteration, relative to it (`difference`).
    """
    simulation = Simulation(draw_trace([scenario], np.random.default_rng(seed)), 0)
    before, works, made = simulation.between, [], []
    guarded: list[list[int]] = []
    for codes in actions:
        works.append(simulation.actual)
        guarded.append([])
        for code in codes:
            may = simulation.permitted()
            guarded[-1].append(code if code == GPU or may[code - 1] else GPU)
            simulation.step(code, may)
        assert simulation.totals is not None
        made.append(simulation.totals)
    played = play_episode(works, guarded, before)
    return max(difference(one, other) for one, other in zip(made, played, strict=True))


def difference(one: IterationTotals, other: IterationTotals, idle_w: float = 0.0) -> float:
    """The worst difference of two ends of an iteration.

    Times count relative to the longer iteration with what it leaves behind, energies to the greater
    energy with what was put off or what is booked, or to that of `idle_w` over that time where
    there is less (idle energy comes from a difference of times), temperatures to the greater one,
    or to a degree where they are nearer to 0: a backlog of nearly 0 s is the difference of two long
    times and has no more digits than they have. Infinite where a figure is not a number.
    """
    a, b = one.after, other.after
    time_s = max(t.time_s + t.after.backlog_s + t.after.deferred_s for t in (one, other))
    energy_j = max(idle_w * time_s, *(t.energy_j + t.after.deferred_j for t in (one, other)))
    energy_j = max(energy_j, abs(one.booked_j), abs(other.booked_j))
    pairs = (
        (one.time_s, other.time_s, time_s),
        (one.booked_s, other.booked_s, time_s),
        (one.bubble_s, other.bubble_s, time_s),
        (a.backlog_s, b.backlog_s, time_s),
        (a.deferred_s, b.deferred_s, time_s),
        (one.gpu_j, other.gpu_j, energy_j),
        (one.card_j, other.card_j, energy_j),
        (one.booked_j, other.booked_j, energy_j),
        (a.deferred_j, b.deferred_j, energy_j),
        (a.asleep, b.asleep, 1.0),
        (a.due_s, b.due_s, time_s + max(a.due_s, b.due_s)),
        (a.occupancy, b.occupancy, 1.0),
        (a.temperature_c, b.temperature_c, max(1.0, abs(a.temperature_c), abs(b.temperature_c))),
    )
    worst = [abs(x - y) / scale if x != y else 0.0 for x, y, scale in pairs]
    return max(math.inf if math.isnan(x) else x for x in worst)
