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
from dataclasses import dataclass

from ecorl.engines.containment import EngineBoundary
from ecorl.engines.protocol import ScoreBatch
from ecorl.records import Action, ModelShape, Stage, StageWork
from ecorl.runtime.local import ExactRows, LocalRuntime, StageRun
from ecorl.runtime.offload import Float32


@dataclass(frozen=True, slots=True)
class InferenceCall:
    """One call of a frozen model, as an adapter hands it over.

    Attributes:
        work: its rows and tokens, and the shape of its model.
        batch: makes the rows for an engine; only called when the call leaves the GPU.
        exact: the framework's own answer for some rows: one float32 scalar or vector a row.
        deliver: takes all answers, in the order of the rows, once they are joined.
    """

    work: StageWork
    batch: Callable[[], ScoreBatch]
    exact: ExactRows
    deliver: Callable[[list[Float32]], None]


@dataclass(frozen=True, slots=True)
class _OpenCall:
    """A call whose rows are with an engine."""

    call: InferenceCall
    run: StageRun


class Rollout:
    """Follows the rollouts of one training process and calls the runtime at each stage.

    Args:
        runtime: measures, places and accounts.
        policy: shape of the model that generates and is trained; None where it is not known.

    Attributes:
        sample_ids: ids of the batch's rows, unique within the run.
        last_work: the newest generation as it turned out; None before the first.
        barrier_ahead: whether a batch has been generated whose rewards are still to come.
    """

    def __init__(self, runtime: LocalRuntime, policy: ModelShape | None) -> None:
        self.runtime, self._policy = runtime, policy
        self.sample_ids: tuple[str, ...] = ()
        self.last_work: StageWork | None = None
        self.barrier_ahead = False
        self._open: list[_OpenCall] = []
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
        self.runtime.begin_iteration(step, first_batch)

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
        self.runtime.begin_iteration(step, first_batch + self._n_generated)
        self._n_generated += 1
        self.barrier_ahead = True
        most = n_rows * max_completion
        return self.runtime.on_stage_start(
            StageWork(Stage.GENERATION, n_rows, most, most, max_completion, self._policy)
        )

    def end_generation(
        self, run: StageRun, prompts: Sequence[int], completions: Sequence[int]
    ) -> None:
        """End a batch of completions.

        Args:
            run: from `begin_generation`.
            prompts: tokens of each row's prompt.
            completions: tokens of each row's completion.
        """
        lengths = [p + c for p, c in zip(prompts, completions, strict=True)]
        done = StageWork(
            stage=Stage.GENERATION,
            n_sequences=len(lengths),
            n_tokens=sum(lengths),
            n_output_tokens=sum(completions),
            max_length=max(lengths, default=0),
            model=self._policy,
        )
        self.runtime.on_stage_end(run, done)
        self.last_work = done
        # A step may generate several batches, so the step alone does not make an id unique.
        self._n_batches += 1
        batch = f"{self.runtime.iteration}.{self._n_batches}"
        self.sample_ids = tuple(f"{batch}.{i}" for i in range(len(lengths)))

    # ------------------------------------------------------------ inference of frozen models

    def expects(self, stage: Stage, n_rows: int) -> bool:
        """Whether a call is the one of its stage between this batch's generation and its barrier.

        A framework that asks in another place, or for some rows only, gets its own answer.

        Args:
            stage: reward or reference.
            n_rows: rows of the call.
        """
        waits = any(item.call.work.stage is stage for item in self._open)
        return self.barrier_ahead and not waits and n_rows == len(self.sample_ids)

    def submit(self, call: InferenceCall, *, may_offload: bool = True) -> StageRun:
        """Place an inference call and send its rows if they leave the GPU.

        Args:
            call: the call.
            may_offload: False when only the GPU path can take it.

        Returns:
            The stage: open, with its clock running, when the framework has to compute
            (`StageRun.pending` is None); else joined later.
        """
        run = self.runtime.on_stage_start(call.work, may_offload=may_offload)
        if run.placement.action is not Action.GPU and self._send(run, call):
            self._open.append(_OpenCall(call, run))
        return run

    def join(self, stage: Stage) -> None:
        """Wait at the completion barrier for a stage's rows and deliver them.

        Args:
            stage: reward or reference; nothing happens when no call of it is under way.
        """
        ready = [item for item in self._open if item.call.work.stage is stage]
        self._open = [item for item in self._open if item.call.work.stage is not stage]
        for item in ready:
            rows = self.runtime.join(item.run, item.call.exact)
            with self.runtime.clock:
                item.call.deliver(rows)

    def _send(self, run: StageRun, call: InferenceCall) -> bool:
        """Make a batch and send it; when that fails the GPU path answers. True when it was sent."""
        with EngineBoundary() as boundary:
            with self.runtime.clock:
                batch = call.batch()
            self.runtime.submit(run, batch)
        if boundary.error is not None:
            self.runtime.refuse(run, boundary.error)
        return boundary.error is None

    def _forget(self) -> None:
        """Drop the calls that are under way; their answers will be ignored."""
        for item in self._open:
            self.runtime.forget(item.run)
        self._open = []

    # ------------------------------------------------------------ training

    @property
    def training(self) -> bool:
        """Whether a micro-batch is being trained on just now."""
        return self._training is not None

    def begin_training(self, n_rows: int, n_tokens: int, n_output_tokens: int) -> None:
        """Begin a micro-batch; nothing happens when one is open already.

        Args:
            n_rows: its rows.
            n_tokens: tokens of prompts and completions.
            n_output_tokens: tokens of completions.
        """
        if self._training is None:
            longest = self.last_work.max_length if self.last_work else 0
            self._training = self.runtime.on_stage_start(
                StageWork(
                    Stage.ACTOR_TRAIN, n_rows, n_tokens, n_output_tokens, longest, self._policy
                )
            )

    def end_training(self) -> None:
        """End the open micro-batch, if there is one."""
        run, self._training = self._training, None
        if run is not None:
            self.runtime.on_stage_end(run)
