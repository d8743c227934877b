"""The reference of RLVR: started where ROLL computes it, joined where its log-probs are used first.

ROLL's pipeline awaits the reference before values and old log-probs are computed, and uses it only
after them. `start` stands in the place of ROLL's function that computes it: rows that the policy
places on a card are sent there; with `overlap` the reference's own GPUs work on them in a thread.
`join` is called when a domain's rewards are put together. Between the two ROLL reorders the rows,
so that what is started has a copy of the batch, and rows are found by their ``prompt_id``.

What an engine does not answer, or not well, is computed by ROLL's own function on the copy: with
the settings of the call that was put off, when no other stage of the step runs.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import torch

from ecorl.engines.protocol import Float32
from ecorl.engines.validate import EngineBoundary
from ecorl.records import Action, ModelShape, Role, Stage, role_of
from ecorl.runtime.handles import Iteration, StageRun
from ecorl.runtime.ray.remote import RemoteRuntime
from roll_adapters.ray_jobs.comparison import record_comparison
from roll_adapters.roll.stages.roles import reference_name
from roll_adapters.roll.stages.rows import ORDER, StepRows, sizes_of

logger = logging.getLogger(__name__)

Compute = Callable[..., Any]
"""ROLL's ``compute_ref_log_probs_with_routing``."""


@dataclass(slots=True)
class ReferenceRequest:
    """The arguments of ROLL's call, by name.

    Attributes:
        batch: of the step; the answers are put into it.
        references: clusters by name.
        pipeline_config: ROLL's.
        domain_to_teacher_names: which references a domain has; None: each has all rows.
        domain_values: the rows' domains, where that counts.
        metrics_fn: takes metrics.
    """

    batch: Any
    references: Mapping[str, Any]
    pipeline_config: Any
    domain_to_teacher_names: Mapping[str, Sequence[str]] | None = None
    domain_values: Any = None
    metrics_fn: Callable[[dict[str, Any]], None] | None = None

    @property
    def is_routed(self) -> bool:
        """Whether a reference has some of the rows only."""
        return self.domain_to_teacher_names is not None

    def rows_of(self, name: str) -> torch.Tensor:
        """Which rows a reference has: ``[B] bool``.

        Args:
            name: of the reference.
        """
        n = len(self.batch)
        if self.domain_to_teacher_names is None:
            return torch.ones(n, dtype=torch.bool)
        own = [d for d, names in self.domain_to_teacher_names.items() if name in names]
        return torch.tensor([domain in own for domain in self.domain_values], dtype=torch.bool)

    def again(
        self,
        batch: Any,
        names: Collection[str],
        compute: Compute,
        metrics_fn: Callable[[dict[str, Any]], None] | None = None,
    ) -> Any:
        """Run ROLL's function with another batch and some of the references.

        Args:
            batch: in place of the step's.
            names: of the references.
            compute: ROLL's function.
            metrics_fn: takes metrics.
        """
        return compute(
            batch=batch,
            references={name: self.references[name] for name in names},
            pipeline_config=self.pipeline_config,
            domain_to_teacher_names=self.domain_to_teacher_names,
            domain_values=self.domain_values,
            metrics_fn=metrics_fn,
        )


@dataclass(slots=True)
class _Moved:
    """A reference whose rows are with an engine."""

    name: str
    role: Role
    run: StageRun
    rows: StepRows
    copy: Any
    answers: torch.Tensor | None = None


@dataclass(slots=True)
class _Step:
    """What was started in a step and is not joined yet."""

    call: ReferenceRequest
    n_rows: int
    moved: list[_Moved] = field(default_factory=list)
    beside: Future[Any] | None = None
    metrics: list[dict[str, Any]] = field(default_factory=list)
    on_gpu: tuple[str, ...] = ()
    tables: dict[str, tuple[torch.Tensor, torch.Tensor]] | None = None


class References:
    """Starts and joins the references of each step.

    Args:
        runtime: of the run.
        compute: ROLL's function that computes them.
        merge: ROLL's function that puts the answers of several references together.
        shapes: of the models by role.
        compared: whether the first batch of an engine is compared with the exact path.
        overlap: whether references on their own GPUs run beside values and old log-probs.
    """

    def __init__(
        self,
        runtime: RemoteRuntime,
        compute: Compute,
        merge: Callable[..., None],
        shapes: Mapping[Role, ModelShape],
        *,
        compared: bool,
        overlap: bool,
    ) -> None:
        self._runtime, self._compute, self._merge = runtime, compute, merge
        self._shapes = shapes
        self._compared: set[Role] | None = set() if compared else None
        self._step: _Step | None = None
        self._gpu_runs: dict[str, StageRun] = {}
        self._unseen = threading.local()
        self._thread = ThreadPoolExecutor(1, "ecorl-reference") if overlap else None

    # ------------------------------------------------------------ what dispatch asks

    @property
    def is_unseen(self) -> bool:
        """Whether this thread computes rows whose time the runtime takes itself."""
        return getattr(self._unseen, "depth", 0) > 0

    def take_run(self, cluster: str) -> StageRun | None:
        """Hand over the stage that was placed on a reference's own GPUs, once.

        Args:
            cluster: name of its cluster.
        """
        return self._gpu_runs.pop(cluster, None)

    # ------------------------------------------------------------ start

    def start(self, iteration: Iteration, call: ReferenceRequest) -> Any:
        """Compute the references of a step, or have them computed.

        Args:
            iteration: that they belong to.
            call: as ROLL makes it.

        Returns:
            The batch; what is joined later is not in it yet.
        """
        step = _Step(call, len(call.batch), on_gpu=tuple(call.references))
        with EngineBoundary() as boundary:
            self._place(iteration, step)
        _tell(boundary)
        for moved in step.moved:
            if moved.run.placement.action is Action.FPGA:
                # Action a2 is sequential: nothing of the GPU path runs beside the card.
                self._land(step, moved)
        self._step = step if step.moved else None
        if self._thread is not None and step.on_gpu:
            self._step = step
            # ROLL reorders the batch while the thread works on it.
            copy = _copy(call.batch, slice(None))
            later = step.metrics.append
            step.beside = self._thread.submit(call.again, copy, step.on_gpu, self._compute, later)
        elif step.on_gpu:
            call.batch = call.again(call.batch, step.on_gpu, self._compute, call.metrics_fn)
        return call.batch

    def pass_on(self, call: ReferenceRequest) -> Any:
        """Make ROLL's own call, unmeasured.

        Args:
            call: as ROLL makes it.
        """
        self._step = None
        return call.again(call.batch, tuple(call.references), self._compute, call.metrics_fn)

    def _place(self, iteration: Iteration, step: _Step) -> None:
        call, names = step.call, tuple(step.call.references)
        self._gpu_runs.clear()
        for name in names:
            mask = call.rows_of(name)
            if not bool(mask.any()):
                continue
            cluster = call.references[name]
            role_name = reference_name(name, names)
            role = role_of(Stage.REFERENCE, role_name)
            with self._runtime.clock:
                sizes = sizes_of(call.batch if bool(mask.all()) else call.batch.select_idxs(mask))
                work = sizes.work(Stage.REFERENCE, self._shapes.get(role), role_name=role_name)
            # Images are no tokens: what an engine would make of them is not known.
            may = "multi_modal_inputs" not in call.batch.non_tensor_batch
            run = self._runtime.on_stage_start(iteration, work, may_offload=may, starts_now=False)
            sent = False
            if not run.placement.on_gpu:
                with EngineBoundary() as boundary:
                    sent = self._send(step, name, run, mask)
                if boundary.error is not None:
                    _tell(boundary)
                    self._runtime.forget(run)
                    continue
            if not sent:
                self._gpu_runs[cluster.cluster_name] = run
            else:
                step.on_gpu = tuple(other for other in step.on_gpu if other != name)

    def _send(self, step: _Step, name: str, run: StageRun, mask: torch.Tensor) -> bool:
        """Send the rows of a reference to its engine."""
        batch, cluster = step.call.batch, step.call.references[name]
        with self._runtime.clock:
            copy = _copy(batch, torch.nonzero(mask).flatten())
            rows = StepRows(copy, str(run.stage.iteration.number))
        micro_batch = int(cluster.worker_config.infer_batch_size)
        if not self._runtime.submit(run, lambda: rows.batch(micro_batch), lands_here=True):
            return False
        step.moved.append(_Moved(name, run.work.role, run, rows, copy))
        return True

    # ------------------------------------------------------------ join

    def join(self, data: Any) -> None:
        """Put the log-probs of the references into rows of the step that was started last.

        Args:
            data: some rows, in any order.
        """
        step = self._step
        if step is None:
            return
        if step.tables is None:
            for moved in step.moved:
                self._land(step, moved)
            step.tables = self._tables(step)
        order = data.batch[ORDER].long().cpu()
        for name, (logprobs, mask) in step.tables.items():
            data.batch[f"ref_log_probs_{name}"] = logprobs[order]
            data.batch[f"ref_log_probs_{name}_mask"] = mask[order]
        self._merge(data, step.call.references, step.call.is_routed)

    def forget(self) -> None:
        """Give up what was started and never joined: the step has ended."""
        step, self._step = self._step, None
        for moved in step.moved if step is not None else ():
            if moved.answers is None:
                self._runtime.forget(moved.run)
        self._gpu_runs.clear()

    def _tables(self, step: _Step) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
        """Log-probs of the references that were put off, and whose rows they are, by prompt id."""
        found: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
        for moved in step.moved:
            assert moved.answers is not None
            where = moved.copy.batch[ORDER].long().cpu()
            table = torch.zeros((step.n_rows, moved.answers.shape[1]), dtype=torch.float32)
            mask = torch.zeros(step.n_rows, dtype=torch.bool)
            table[where], mask[where] = moved.answers, True
            found[moved.name] = table, mask
        if step.beside is not None:
            # What ROLL's own function raised there is raised here, where it is missed.
            copy = step.beside.result()
            if step.call.metrics_fn is not None:
                for metrics in step.metrics:
                    step.call.metrics_fn(metrics)
            where = torch.argsort(copy.batch[ORDER].long().cpu())
            for name in step.on_gpu:
                key = f"ref_log_probs_{name}"
                found[name] = copy.batch[key][where], copy.batch[f"{key}_mask"][where]
        return found

    def _land(self, step: _Step, moved: _Moved) -> None:
        """Wait at the completion barrier; what did not arrive is ROLL's own answer."""
        if moved.answers is not None:
            return
        with EngineBoundary() as boundary:
            landed = self._runtime.land(moved.run)
            values = self._runtime.fill(
                moved.run, landed, lambda bad: self._exact(step, moved, bad)
            )
            self._compare(step, moved, values)
            with self._runtime.clock:
                moved.answers = moved.rows.logprobs(values)
        if moved.answers is None:
            _tell(boundary)
            # Whatever went wrong here, the training gets ROLL's own answers.
            moved.answers = self._own_answers(step, moved, range(len(moved.rows)))

    def _exact(self, step: _Step, moved: _Moved, bad: Sequence[int]) -> list[Float32]:
        return moved.rows.picked(bad, self._own_answers(step, moved, bad))

    def _own_answers(self, step: _Step, moved: _Moved, rows: Sequence[int]) -> torch.Tensor:
        """Have the reference's own cluster compute some rows, unseen; ``[n, S - 1] float32``."""
        some = _copy(moved.copy, torch.tensor(list(rows), dtype=torch.long))
        call = ReferenceRequest(some, step.call.references, step.call.pipeline_config)
        with self._unseen_here():
            answered = call.again(some, (moved.name,), self._compute, _nothing)
        found: torch.Tensor = answered.batch[f"ref_log_probs_{moved.name}"]
        return found

    def _compare(self, step: _Step, moved: _Moved, values: Sequence[Float32]) -> None:
        """Have ROLL's cluster compute the first batch that an engine has answered too."""
        if self._compared is None or moved.role in self._compared:
            return
        self._compared.add(moved.role)
        with EngineBoundary() as boundary:
            exact = self._own_answers(step, moved, range(len(moved.rows)))
            ours = moved.rows.logprobs(values)
            # Of the response's own tokens alone: ROLL's answer is 0 beside them.
            rows = [moved.rows.responses(each) for each in (ours, exact)]
            record_comparison(self._runtime.record, Stage.REFERENCE, *rows)
        _tell(boundary)

    @contextlib.contextmanager
    def _unseen_here(self) -> Iterator[None]:
        self._unseen.depth = getattr(self._unseen, "depth", 0) + 1
        try:
            yield
        finally:
            self._unseen.depth -= 1


def _copy(batch: Any, rows: Any) -> Any:
    """Some rows of a batch, with tensors and settings of their own."""
    everything = torch.arange(len(batch))
    copy = batch.select_idxs(everything[rows] if isinstance(rows, slice) else rows)
    copy.meta_info = dict(batch.meta_info)
    return copy


def _nothing(metrics: dict[str, Any]) -> None:
    """Take metrics that nobody asked for."""


def _tell(boundary: EngineBoundary) -> None:
    """Say what failed of ecorl's own; the training goes on without it."""
    if boundary.error is not None:
        logger.warning("ecorl: %s: %s", type(boundary.error).__name__, boundary.error)
