"""What ecorl does in the processes of OpenRLHF's trainer: its stages meet the runtime here.

The synchronous trainer generates and trains in one actor. The asynchronous one has an actor for
each, so that two iterations are open: the rows of a batch carry the handle of the iteration in
which they were generated, and all that is done with them is booked to it.

Nothing in here raises into the training. What fails of ecorl's own leaves the call to OpenRLHF.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import ray
import torch

from ecorl.engines.validate import EngineBoundary
from ecorl.records import Action, ModelShape, Role, Stage, StageWork
from ecorl.runtime.energy.log_figures import LEGEND, log_figures
from ecorl.runtime.handles import Float32, Iteration, Landed, RunTotals, Span, StageRun
from ecorl.runtime.ray.remote import RemoteRuntime
from roll_adapters.openrlhf.checkpoints import record_saved
from roll_adapters.openrlhf.flags import steps_of, value_of
from roll_adapters.openrlhf.metrics import trainer_metrics
from roll_adapters.openrlhf.rewards import ResponseTimes
from roll_adapters.openrlhf.rows import RolloutRows, sizes_of
from roll_adapters.ray_jobs.comparison import record_comparison
from roll_adapters.ray_jobs.policy_training import PolicyTraining

logger = logging.getLogger(__name__)

current: TrainerHooks | None = None
"""The hooks of this process; None in all processes but those of the trainer."""

TAG = "_ecorl"
"""Attribute of a generated sample: the iteration that it belongs to, and its id."""


class Away(list[Any]):
    """Stands for the references of a forward whose rows are with an engine; an empty list.

    OpenRLHF may wait for its references, and has nothing to wait for.
    """

    def __init__(self, pending: _Pending) -> None:
        super().__init__()
        self.pending = pending


@dataclass(slots=True)
class _Pending:
    """A stage whose rows are with an engine, and how OpenRLHF's own actors would answer them."""

    run: StageRun
    rows: RolloutRows
    group: Any
    kwargs: dict[str, list[Any]]
    answers: list[torch.Tensor] | None = None


class TrainerHooks:
    """Follows one process of OpenRLHF's trainer and calls the runtime at each stage.

    Args:
        runtime: opened from the run's handle.
        args: OpenRLHF's flags, nested.
        from_step: step that the training goes on from, 0 for a fresh one.
        normalised: roles of whose model OpenRLHF gives (value - mean) / std, with these two, and
            their engines the value.
        compared: stages whose first batch from an engine is compared with the exact path.
        training: what of the policy's training can be changed; None: this process drives no
            training.
    """

    def __init__(
        self,
        runtime: RemoteRuntime,
        args: Any,
        from_step: int,
        normalised: Mapping[Role, tuple[float, float]],
        compared: Sequence[Stage] = (),
        training: PolicyTraining | None = None,
    ) -> None:
        self.runtime, self._args, self._step = runtime, args, from_step
        self._normalised, self._compared = normalised, set(compared)
        self._training = training or PolicyTraining()
        self._stood_before: int | None = None
        self._iteration: Iteration | None = None
        self._rows: RolloutRows | None = None
        self._ids: Sequence[str] = ()
        self._times: ResponseTimes | None = None
        self._numbers = itertools.count()
        self._logged: RunTotals | None = None
        self.is_async = bool(value_of(args, "train.async_enable", False))

    # ------------------------------------------------------------ generation

    def generate(self, generate: Callable[[], Any]) -> Any:
        """Generate a batch of samples, and give each its id.

        Args:
            generate: OpenRLHF's own method; its first answer are the samples.

        Raises:
            WidthLeft: when the training is left for another number of processes.
        """
        run = None
        if not self.is_async:
            with EngineBoundary() as boundary:
                self._stand()
            self._tell(boundary)
            self._training.take_leave()
        with EngineBoundary() as boundary:
            iteration = self.runtime.begin_iteration(self._step + 1, self._step)
            self._times = ResponseTimes()
            run = self.runtime.on_stage_start(
                iteration, StageWork(Stage.GENERATION, 0, 0, 0, 0, self._shape(Stage.GENERATION))
            )
        self._tell(boundary)
        try:
            output = generate()
        except BaseException:
            if run is not None:
                self.runtime.forget(run)
            raise
        with EngineBoundary() as boundary:
            samples = output[0]
            if samples and self.is_async:
                # This process sees no training step: each batch that it hands over is one.
                self._step += 1
            if run is not None:
                self._end_generation(run, samples)
        self._tell(boundary)
        return output

    def _end_generation(self, run: StageRun, samples: Sequence[Any]) -> None:
        times, self._times = self._times, None
        iteration = run.stage.iteration
        with self.runtime.clock:
            for sample in samples:
                tag = (iteration, f"{iteration.number}.{next(self._numbers)}")
                # A sample of an earlier call that was kept back has its id already.
                tag = (iteration, getattr(sample, TAG, tag)[1])
                setattr(sample, TAG, tag)
        if times is None or not times.n_responses:
            self.runtime.forget(run)
            return
        start_s = run.t_start_s or time.monotonic()
        spans = times.generation or [(start_s, time.monotonic())]
        shape = self._shape(Stage.GENERATION)
        self._account(run, times.work(Stage.GENERATION, shape), spans)
        if times.rewards:
            work = times.work(Stage.REWARD, None)
            reward = self.runtime.on_stage_start(
                iteration, work, may_offload=False, starts_now=False
            )
            self._account(reward, work, times.rewards)

    def _account(
        self, run: StageRun, work: StageWork, spans: Sequence[tuple[float, float]]
    ) -> None:
        """Record a stage of the GPU path over times that were taken elsewhere."""
        stage = run.stage
        stage = type(stage)(stage.serial, stage.iteration, work, stage.placement)
        held = [Span(start_s, end_s) for start_s, end_s in spans]
        self.runtime.account(stage, held, self.runtime.training.home)

    def responded(self, response: Mapping[str, Any]) -> None:
        """Note the tokens and times of one response.

        Args:
            response: as OpenRLHF's executor gives it.
        """
        if self._times is not None:
            with EngineBoundary() as boundary, self.runtime.clock:
                self._times.add(response)
            self._tell(boundary)

    # ------------------------------------------------------------ forward passes

    def begin_experience(self, samples: Sequence[Any]) -> None:
        """Take over the samples of a step.

        Args:
            samples: as they were generated, one row each.
        """
        # Those of an earlier step are not this one's, whatever fails below.
        self._iteration, self._ids, self._rows = None, (), None
        with EngineBoundary() as boundary, self.runtime.clock:
            tags = [getattr(sample, TAG, None) for sample in samples]
            first = next((tag for tag in tags if tag is not None), None)
            number = self._step + 1
            fresh = f"{number}.{self.runtime.training.home}"
            self._iteration = first[0] if first else self.runtime.begin_iteration(number)
            self._ids = [
                tag[1] if tag is not None else f"{fresh}.{i}" for i, tag in enumerate(tags)
            ]
            # Decided while OpenRLHF makes its micro-batches of them. A reference that is given
            # images stays, and a decision that is not kept must not stand in the record.
            images = [getattr(sample, "mm_train_inputs", None) for sample in samples]
            stages = [Stage.REWARD] if _has_images(images) else [Stage.REWARD, Stage.REFERENCE]
            sizes = sizes_of(samples)
            works = [sizes.work(stage, self._shape(stage)) for stage in stages]
            self.runtime.expect_stages(self._iteration, works)
        self._tell(boundary)

    def begin_forward(self, micro_batches: Sequence[Any]) -> None:
        """Take over the micro-batches whose forward passes are about to be dispatched.

        Args:
            micro_batches: OpenRLHF's experiences, with the rows of several samples each.
        """
        self._rows = None
        with EngineBoundary() as boundary, self.runtime.clock:
            if all(part.index is not None for part in micro_batches):
                self._rows = RolloutRows(micro_batches, self._ids)
        self._tell(boundary)

    def forward(
        self, group: Any, kwargs: dict[str, list[Any]], send: Callable[[], list[Any]]
    ) -> list[Any]:
        """Place a forward pass of all rows; send it to OpenRLHF's actors or to an engine.

        Args:
            group: that the call is for.
            kwargs: lists of one entry a micro-batch.
            send: dispatches it to the group's actors.

        Returns:
            References of the answers, or `Away`.
        """
        run = None
        with EngineBoundary() as boundary:
            run = self._place(group, kwargs)
            if run is not None and run.sent:
                assert self._rows is not None
                pending = _Pending(run, self._rows, group, kwargs)
                away = Away(pending)
                if run.placement.action is Action.FPGA:
                    # Action a2 is sequential: nothing of the GPU path runs beside the card.
                    self._join(pending)
                return away
        self._tell(boundary)
        return self._ended_when_ready(run, send())

    def _place(self, group: Any, kwargs: dict[str, list[Any]]) -> StageRun | None:
        """Decide where a forward pass runs, and send its rows if they leave the GPU."""
        rows, iteration = self._rows, self._iteration
        if rows is None or iteration is None:
            return None
        stage = _FORWARDS[group.stage]
        with self.runtime.clock:
            is_training = stage is Stage.ACTOR_TRAIN
            work = rows.sizes.work(stage, self._shape(stage), has_output=not is_training)
        # Images are no tokens: what an engine would make of them is not known.
        may = not _has_images(kwargs.get("mm_train_inputs_list") or ())
        run = self.runtime.on_stage_start(iteration, work, may_offload=may, starts_now=False)
        if run.placement.on_gpu:
            self.runtime.restart(run)
            return run
        temperature = float(value_of(self._args, "rollout.temperature", 1.0))
        if not self.runtime.submit(run, lambda: rows.batch(stage, temperature), lands_here=True):
            self.runtime.restart(run)
        return run

    def gather(self, refs: Sequence[Any], gather: Callable[[], list[Any]]) -> list[Any]:
        """Give the answers of a forward pass, one entry a micro-batch.

        Args:
            refs: from `forward`.
            gather: OpenRLHF's own way to get them.
        """
        if not isinstance(refs, Away):
            return gather()
        return self._join(refs.pending)

    def _join(self, pending: _Pending) -> list[torch.Tensor]:
        """Wait at the completion barrier; what did not arrive is OpenRLHF's own answer."""
        if pending.answers is not None:
            return pending.answers
        rows, stage = pending.rows, pending.run.work.stage
        with EngineBoundary() as boundary:
            landed = self._normal(stage, self.runtime.land(pending.run))
            values = self.runtime.fill(pending.run, landed, lambda bad: self._exact(pending, bad))
            self._compare(pending, values)
            with self.runtime.clock:
                if stage is Stage.REFERENCE:
                    pending.answers = rows.logprobs(values)
                else:
                    pending.answers = rows.rewards(values)
        if pending.answers is None:
            self._tell(boundary)
            # Whatever went wrong here, the training gets OpenRLHF's own answers.
            everything = list(range(len(next(iter(pending.kwargs.values())))))
            found = pending.group.run_batches(pending.kwargs, everything)
            pending.answers = [found[i] for i in everything]
        return pending.answers

    def _compare(self, pending: _Pending, values: list[Float32]) -> None:
        """Have OpenRLHF's actors compute the first batch that an engine has answered too."""
        stage = pending.run.work.stage
        if stage not in self._compared:
            return
        self._compared.discard(stage)
        with EngineBoundary() as boundary:
            exact = self._exact(pending, range(len(pending.rows)))
            record_comparison(self.runtime.record, stage, values, exact)
        self._tell(boundary)

    def _exact(self, pending: _Pending, bad: Sequence[int]) -> list[Float32]:
        rows, stage = pending.rows, pending.run.work.stage
        numbers = rows.micro_batches_of(bad)
        return rows.picked(stage, bad, pending.group.run_batches(pending.kwargs, numbers))

    def _normal(self, stage: Stage, landed: Landed) -> Landed:
        """What an engine answered, as OpenRLHF's own model would give it."""
        if stage not in self._normalised:
            return landed
        mean, std = (np.float32(figure) for figure in self._normalised[stage])
        values = {i: np.asarray((v - mean) / std) for i, v in landed.values.items()}
        return Landed(values, landed.bad_rows)

    # ------------------------------------------------------------ training

    def train(self, stage: Stage, send: Callable[[], list[Any]]) -> list[Any]:
        """Train the policy or the critic on the step's rows.

        Args:
            stage: which of them.
            send: dispatches it to the group's actors.
        """
        run = None
        with EngineBoundary() as boundary:
            if self._rows is not None and self._iteration is not None:
                passes = int(value_of(self._args, "train.max_epochs", 1))
                work = self._rows.sizes.work(stage, self._shape(stage), passes=passes)
                if stage is Stage.ACTOR_TRAIN:
                    work = self._training.begin(work)
                run = self.runtime.on_stage_start(self._iteration, work, may_offload=False)
            # For the end of the step, which then has not to wait for them.
            self.runtime.expect_totals()
        self._tell(boundary)
        return self._ended_when_ready(run, send())

    def _ended_when_ready(self, run: StageRun | None, refs: list[Any]) -> list[Any]:
        """Record a stage of the GPU path when its actors have answered, and not when asked."""
        with EngineBoundary() as boundary:
            if run is not None:
                self.runtime.end_when_ready(run, refs)
        self._tell(boundary)
        return refs

    def step(self, train: Callable[[], tuple[Any, int]]) -> tuple[Any, int]:
        """Run one step of training.

        Args:
            train: OpenRLHF's own method; it answers the metrics and the number of the step.
        """
        if self.is_async:
            with EngineBoundary() as boundary:
                self._stand()
            self._tell(boundary)
        status, self._step = train()
        self._rows = None
        with EngineBoundary() as boundary:
            self._training.end(self._step)
        self._tell(boundary)
        return status, self._step

    def save(self, step: int, status: dict[str, Any] | None, save: Callable[[], None]) -> None:
        """Log a step's metrics and the run's energy, and save a checkpoint if one is due.

        Args:
            step: its number, 1-based.
            status: OpenRLHF's metrics; the energy's figures are added for its loggers.
            save: OpenRLHF's own method.
        """
        with EngineBoundary() as boundary, self.runtime.clock:
            for name, value in trainer_metrics(status or {}):
                self.runtime.record.metric(step, name, value)
            if status is not None:
                self._log(status)
            self.runtime.settle()
        self._tell(boundary)
        save()
        with EngineBoundary() as boundary:
            memory = self._training.memory()
            is_complete = record_saved(self.runtime, self._args, step, memory)
            self._training.saved(self.runtime, step, is_complete=is_complete)
        self._tell(boundary)

    def _log(self, status: dict[str, Any]) -> None:
        now = self.runtime.totals()
        if not now.roles:
            return  # nothing has ended yet, or the scheduler does not answer just now
        if self._logged is None:
            logger.info(LEGEND)
        status.update(log_figures(self._logged or RunTotals(), now))
        self._logged = now

    # ------------------------------------------------------------ inside

    def _stand(self) -> None:
        """Stand still before a step for as long as the control path asks for it.

        A step may generate several times: it has begun with the first.
        """
        if self._stood_before != self._step:
            self._stood_before = self._step
            total = steps_of(self._args, self._training.make_ready(self._step + 1))
            left = None if total is None else max(0, total - self._step)
            self._training.stand(self.runtime, self._step + 1, left)

    def _shape(self, role: Role) -> ModelShape | None:
        return self.runtime.training.models.get(role)

    def _tell(self, boundary: EngineBoundary) -> None:
        """Say what failed of ecorl's own; the training goes on without it."""
        if boundary.error is not None:
            logger.warning("ecorl: %s: %s", type(boundary.error).__name__, boundary.error)


_FORWARDS = {
    Stage.ACTOR_TRAIN: Stage.ACTOR_TRAIN,
    Stage.CRITIC_TRAIN: Stage.CRITIC,
    Stage.REFERENCE: Stage.REFERENCE,
    Stage.REWARD: Stage.REWARD,
}
"""The stage of a group's forward pass; old log-probs are training work of the policy."""


def _has_images(given: Sequence[Sequence[Any] | None]) -> bool:
    """Whether rows come with images; OpenRLHF lists a None for each row without one."""
    return any(item is not None for part in given for item in part or ())


def gathered(refs: Sequence[Any]) -> list[Any]:
    """Answers of a forward pass, one entry a micro-batch, from its references.

    Args:
        refs: one an actor, each a list with one answer a micro-batch.
    """
    return list(itertools.chain.from_iterable(ray.get(list(refs))))
