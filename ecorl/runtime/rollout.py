"""The order of calls in one rollout, and what is open between them: the same for every framework.

    begin_step         an optimizer step begins; it generates one batch, several or none
    begin_generation   a batch of completions begins
    end_generation     its rows have ids from here on
    submit             an inference call is placed; its rows leave the GPU, or stay there
    join               completion barrier: answers are delivered, the exact path fills the rest
    begin_training     the forward and backward pass of a micro-batch begin
    end_training       the optimizer has stepped, or the next micro-batch begins

An adapter wraps the functions of its framework and calls these from there. What one rollout left
open because an exception cut it short is dropped when the next one begins.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from ecorl.engines.protocol import ScoreBatch
from ecorl.records import EVALUATION, ModelShape, Role, Stage, StageWork
from ecorl.runtime.handles import Float32, Iteration, StageRun, without
from ecorl.runtime.protocol import ExactRows, Runtime, TellPacking, join


@dataclass(frozen=True, slots=True)
class InferenceCall:
    """One call of a frozen model, as an adapter hands it over.

    Attributes:
        work: its rows and tokens, and the shape of its model.
        batch: makes the rows for an engine; only called when the call leaves the GPU.
        exact: the framework's own answer for some rows: one float32 scalar or vector a row.
        deliver: takes all answers, in the order of the rows, once they are joined.
        is_deferred: whether the framework itself would come to it later than now (`Rollout.restart`
            starts its clock), and not at once.
        note: takes what packing made of the rows in the engine, where it packed them.
    """

    work: StageWork
    batch: Callable[[], ScoreBatch]
    exact: ExactRows
    deliver: Callable[[list[Float32]], None]
    is_deferred: bool = False
    note: TellPacking | None = None


@dataclass(frozen=True, slots=True)
class _OpenCall:
    """A call whose rows are with an engine."""

    call: InferenceCall
    run: StageRun


@dataclass(slots=True)
class GeneratedRows:
    """Rows that were generated.

    Attributes:
        prompts: tokens of each row's prompt.
        completions: tokens of each row's completion.
        n_foreign: tokens of completions that tools or an environment wrote.
        n_dropped: tokens that the policy made and that are in no completion.
    """

    prompts: list[int] = field(default_factory=list)
    completions: list[int] = field(default_factory=list)
    n_foreign: int = 0
    n_dropped: int = 0

    def read(self, work: StageWork) -> StageWork:
        """Describe a pass that reads the rows.

        Args:
            work: of the stage; its sizes are replaced.
        """
        lengths = [p + c for p, c in zip(self.prompts, self.completions, strict=True)]
        return replace(
            work,
            n_sequences=len(lengths),
            n_tokens=sum(lengths),
            n_output_tokens=sum(self.completions),
            max_length=max(lengths, default=0),
        )

    def generated(self, work: StageWork) -> StageWork:
        """Describe the generation of the rows, whose output is what the policy made, kept or not.

        Args:
            work: of the stage; its sizes are replaced.
        """
        rows = self.read(work)
        n_output = rows.n_output_tokens - self.n_foreign + self.n_dropped
        return replace(rows, n_tokens=rows.n_tokens + self.n_dropped, n_output_tokens=n_output)


class Rollout:
    """Follows the rollouts of one training process and calls the runtime at each stage.

    One object follows one batch at a time. A framework that generates a batch beside the training
    of another has two.

    Args:
        runtime: measures, places and accounts.
        policy: shape of the model that generates and is trained; None where it is not known.
        prefix: put before the ids of rows, where several processes have rows of their own.
        width: workers of the training stage; None where nobody counts them.

    Attributes:
        iteration: the handle of the iteration under way; None before the first.
        sample_ids: ids of the batch's rows, unique within the run.
        last_work: what a pass over the newest batch's rows computes; None before the first.
        barrier_ahead: whether a batch has been generated whose rewards are still to come.
    """

    def __init__(
        self,
        runtime: Runtime,
        policy: ModelShape | None,
        prefix: str = "",
        width: int | None = None,
    ) -> None:
        self.runtime, self._policy, self._prefix = runtime, policy, prefix
        self.width = width
        self.iteration: Iteration | None = None
        self.sample_ids: tuple[str, ...] = ()
        self.last_work: StageWork | None = None
        self.barrier_ahead = False
        # What has begun and not ended: nothing of it may outlive the batch that it belongs to.
        self._calls: list[_OpenCall] = []
        self._runs: dict[int, StageRun] = {}
        self._training: StageRun | None = None
        self._n_batches = 0
        self._n_generated = 0

    # ------------------------------------------------------------ generation

    def begin_step(self, step: int, first_batch: int) -> None:
        """Begin an optimizer step.

        Args:
            step: 1-based number of the step.
            first_batch: 0-based number of the rollout batch that the step begins with. It follows
                from the step alone, so that a resumed run decides as the unbroken one.
        """
        self._n_generated = 0
        self.iteration = self.runtime.begin_iteration(step, first_batch)

    def begin_generation(
        self, step: int, first_batch: int, n_rows: int, max_completion: int
    ) -> StageRun:
        """Begin a batch of completions.

        Args:
            step: 1-based number of the optimizer step.
            first_batch: as for `begin_step`.
            n_rows: completions of the batch.
            max_completion: most tokens of a completion; 0 where there is no limit.

        Returns:
            The open stage, for `end_generation`.
        """
        # What an exception left open belongs to no batch any more: its answers would be joined
        # with rows of another one.
        self.end_training()
        self._forget()
        self.iteration = self.runtime.begin_iteration(step, first_batch + self._n_generated)
        self._n_generated += 1
        self.barrier_ahead = True
        most = n_rows * max_completion
        work = StageWork(Stage.GENERATION, n_rows, most, most, max_completion, self._policy)
        return self.start(work)

    def end_generation(self, run: StageRun, rows: GeneratedRows) -> None:
        """End a batch of completions.

        Args:
            run: from `begin_generation`.
            rows: the batch.
        """
        self.last_work = rows.read(run.work)
        self.end(run, rows.generated(run.work))
        # A step may generate several batches, so the step alone does not make an id unique.
        self._n_batches += 1
        number = self.iteration.number if self.iteration else 0
        batch = f"{self._prefix}{number}.{self._n_batches}"
        self.sample_ids = tuple(f"{batch}.{i}" for i in range(len(rows.prompts)))

    # ------------------------------------------------------------ stages of the GPU path

    def start(
        self, work: StageWork, *, may_offload: bool = True, is_deferred: bool = False
    ) -> StageRun:
        """Place a stage and start its clock.

        Args:
            work: what is to be done.
            may_offload: False when only the GPU path can take it.
            is_deferred: whether the framework comes to it later: `restart` starts its clock.
        """
        if self.iteration is None:
            self.iteration = self.runtime.begin_iteration(0, 0)
        run = self.runtime.on_stage_start(
            self.iteration, work, may_offload=may_offload, starts_now=not is_deferred
        )
        self._runs[run.stage.serial] = run
        return run

    def restart(self, run: StageRun) -> None:
        """Start the clock of a deferred stage: the framework computes it now.

        Args:
            run: from `start` or `submit`.
        """
        self.runtime.restart(run)

    def pause(self, run: StageRun) -> None:
        """Stop the clock of a stage while another one runs.

        Args:
            run: from `start` or `submit`.
        """
        self.runtime.pause(run)

    def carve(self, whole: StageRun, part: StageRun, spans: Sequence[tuple[float, float]]) -> None:
        """Give the time in which a stage ran inside another one to it, and end it.

        For what runs on a thread or in a function of the framework's, where its clock cannot be
        started in time.

        Args:
            whole: the stage whose time it is so far; its clock stands.
            part: from `start`, deferred.
            spans: begin and end of each time, in order and without overlaps, monotonic s; none: it
                has not run, and is forgotten.
        """
        if not spans:
            self._runs.pop(part.stage.serial, None)
            self.runtime.forget(part)
            return
        whole.earlier[:] = without(whole.earlier, spans)
        self.runtime.pause(whole)  # tells which devices it has held
        part.earlier.extend(spans)
        self.end(part)

    def end(self, run: StageRun, work: StageWork | None = None) -> None:
        """End a stage that the framework has computed.

        Args:
            run: from `start` or `submit`.
            work: the work as it turned out, when it was not known before.
        """
        self._runs.pop(run.stage.serial, None)
        self.runtime.on_stage_end(run, work)

    # ------------------------------------------------------------ inference of frozen models

    def expects(self, role: Role, n_rows: int) -> bool:
        """Whether a call is the one of its role between this batch's generation and its barrier.

        A framework that asks in another place, or for some rows only, gets its own answer.

        Args:
            role: of the model that is called.
            n_rows: rows of the call.
        """
        waits = any(item.call.work.role == role for item in self._calls)
        return self.barrier_ahead and not waits and n_rows == len(self.sample_ids)

    def submit(self, call: InferenceCall, *, may_offload: bool = True) -> StageRun:
        """Place an inference call and send its rows if they leave the GPU.

        Args:
            call: the call.
            may_offload: False when only the GPU path can take it.

        Returns:
            The stage: open, with its clock running, when the framework has to compute it
            (`StageRun.sent` is False); else joined later.
        """
        run = self.start(call.work, may_offload=may_offload, is_deferred=call.is_deferred)
        if run.placement.on_gpu:
            return run
        if self.runtime.submit(run, call.batch):
            self._calls.append(_OpenCall(call, run))
        elif not call.is_deferred:
            self.runtime.restart(run)
        return run

    def join(self, stage: Stage) -> None:
        """Wait at the completion barrier for a stage's rows and deliver them.

        Args:
            stage: reward or reference, with all its roles; nothing happens when no call of it is
                under way.
        """
        ready = [item for item in self._calls if item.call.work.stage is stage]
        self._calls = [item for item in self._calls if item.call.work.stage is not stage]
        for item in ready:
            rows = join(self.runtime, item.run, item.call.exact, item.call.note)
            self._runs.pop(item.run.stage.serial, None)
            with self.runtime.clock:
                item.call.deliver(rows)

    def _forget(self) -> None:
        """Drop what is under way; answers that still come will be ignored."""
        for run in self._runs.values():
            self.runtime.forget(run)
        self._calls, self._runs = [], {}

    # ------------------------------------------------------------ evaluation

    def begin_evaluation(self) -> StageRun:
        """Begin an evaluation: all that the framework does for it is one execution.

        Returns:
            The open execution, for `end_evaluation`.
        """
        return self.start(StageWork(Stage.GENERATION, 0, 0, 0, 0, self._policy, EVALUATION))

    def end_evaluation(self, run: StageRun, rows: GeneratedRows) -> None:
        """End an evaluation.

        Args:
            run: from `begin_evaluation`.
            rows: what was generated in it.
        """
        self.end(run, rows.generated(run.work))

    # ------------------------------------------------------------ training

    @property
    def training(self) -> bool:
        """Whether a micro-batch is being trained on just now."""
        return self._training is not None

    def begin_training(
        self, n_rows: int, n_tokens: int, n_output_tokens: int, gear: str | None = None
    ) -> None:
        """Begin a micro-batch; nothing happens when one is open already.

        Args:
            n_rows: its rows.
            n_tokens: tokens of prompts and completions.
            n_output_tokens: tokens of completions.
            gear: numeric format of the training stage; None: as the framework has it.
        """
        if self._training is None:
            longest = self.last_work.max_length if self.last_work else 0
            work = StageWork(
                Stage.ACTOR_TRAIN, n_rows, n_tokens, n_output_tokens, longest, self._policy
            )
            self._training = self.start(replace(work, gear=gear, width=self.width))

    def end_training(self, gear: str | None = None) -> None:
        """End the open micro-batch, if there is one.

        Args:
            gear: in which it was computed in the end; None: the one that it was begun in.
        """
        run, self._training = self._training, None
        if run is not None:
            self.end(run, None if gear is None else replace(run.work, gear=gear))
