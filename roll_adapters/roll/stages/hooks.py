"""What ecorl does in the driver of a ROLL pipeline: its stages meet the runtime here.

The driver's dispatch brings the stages on the policy's, the critic's and the references' workers.
Generation and rewards run in actors of their own and are asked for when the rollout is there. A
step begins with the update of the rollout engines' weights, or with its first stage in a pipeline
that has none, and ends when ROLL logs it.

Nothing in here raises into the training. What fails of ecorl's own leaves the call to ROLL.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import ray
from ray.exceptions import RayError

from ecorl.engines.validate import EngineBoundary
from ecorl.records import ModelShape, Role, Stage, StageWork, role_of
from ecorl.runtime.energy.log_figures import LEGEND, log_figures
from ecorl.runtime.handles import Iteration, RunTotals, StageRun
from ecorl.runtime.ray.remote import RemoteRuntime
from roll_adapters.ray_jobs.intervals import monotonic, union
from roll_adapters.ray_jobs.policy_training import PolicyTraining
from roll_adapters.ray_jobs.sizes import RolloutSizes
from roll_adapters.roll.stages.metrics import trainer_metrics
from roll_adapters.roll.stages.references import ReferenceRequest, References
from roll_adapters.roll.stages.roles import POLICY, call_of, kind_of_cluster, reference_name
from roll_adapters.roll.stages.rows import sizes_of
from roll_adapters.roll.times import RolloutTimes, StageTimes, TakenTimes

logger = logging.getLogger(__name__)

current: PipelineHooks | None = None
"""The hooks of this process; None in all processes but the driver's."""

_TIMES_S = 10.0
"""Longest wait for the rollout actors' times, s. Invented: they have nothing else to do then; one
that answers later is heard at the next step."""

_OPEN_STEPS = 8
"""Steps whose handles are kept, invented: an asynchronous rollout is a step or two ahead."""


class PipelineHooks:
    """Follows one pipeline and calls the runtime at each stage.

    Args:
        runtime: of the run.
        references: starts and joins them; None where the pipeline's are only measured.
        reference_names: keys of the references by the names of their clusters.
        passes: how often training reads the rows of a step.
        from_step: steps that the pipeline has behind it.
        total: steps of the whole pipeline; 0: unknown.
        training: what of the policy's training can be changed.
    """

    def __init__(
        self,
        runtime: RemoteRuntime,
        references: References | None,
        reference_names: Mapping[str, str],
        *,
        passes: int = 1,
        from_step: int = 0,
        total: int = 0,
        training: PolicyTraining | None = None,
    ) -> None:
        self.runtime, self._references = runtime, references
        self._reference_names, self._passes = reference_names, passes
        self._done = self._from_step = from_step
        self._controlled = from_step - 1
        self._total, self._training = total, training or PolicyTraining()
        self._iterations: dict[int, Iteration] = {}
        self._sizes: RolloutSizes | None = None
        # By step and role: what the rollout's actors will tell the times of.
        self._rollouts: dict[tuple[int, Role], StageRun] = {}
        self._late: list[Any] = []
        self._logged: RunTotals | None = None
        self._recorded = from_step

    # ------------------------------------------------------------ steps

    def begin(self, step: int) -> None:
        """Begin a step.

        Args:
            step: 0-based, as ROLL counts.
        """
        with EngineBoundary() as boundary:
            self._done, self._sizes = step, None
            self._opened(step)
            if self._references is not None:
                self.runtime.restart(self._rollout(step, Stage.GENERATION, ""))
        self._tell(boundary)

    def _opened(self, step: int) -> Iteration:
        """The iteration of the step under way; the control path is asked once for each."""
        if step > self._controlled:
            self._controlled = step
            left = self._total - step
            self._training.make_ready(step + 1)
            self._training.stand(self.runtime, step + 1, left if left > 0 else None)
        return self._iteration(step)

    def _iteration(self, step: int) -> Iteration:
        if step not in self._iterations:
            self._iterations[step] = self.runtime.begin_iteration(step + 1, step)
            while len(self._iterations) > _OPEN_STEPS:
                del self._iterations[min(self._iterations.keys() - {step})]
        return self._iterations[step]

    def before_checkpoint(self, metrics: Mapping[str, Any], step: int) -> None:
        """Record a step's metrics: it is done, and ROLL may save a checkpoint of it.

        Args:
            metrics: ROLL's.
            step: 0-based.
        """
        with EngineBoundary() as boundary, self.runtime.clock:
            self._record(metrics, step)
            self.runtime.settle()
        self._tell(boundary)

    def log(self, values: Mapping[str, Any], step: int) -> dict[str, Any]:
        """End a step, and add the energy's figures to what ROLL logs.

        Args:
            values: ROLL's metrics.
            step: 0-based.

        Returns:
            The same with ecorl's figures.
        """
        found = dict(values)
        if step < self._from_step:
            return found  # ROLL writes the logs of a checkpoint again, in a thread of its own
        with EngineBoundary() as boundary, self.runtime.clock:
            self._record(values, step)
            self.runtime.settle()
            if self._references is not None:
                self._references.forget()
            self._done, self._sizes = step + 1, None
            now = self.runtime.totals()
            if now.roles:
                if self._logged is None:
                    logger.info(LEGEND)
                found.update(log_figures(self._logged or RunTotals(), now))
                self._logged = now
        self._tell(boundary)
        return found

    def _record(self, values: Mapping[str, Any], step: int) -> None:
        # Some pipelines save before they log, others after: each step is recorded once.
        if step + 1 <= self._recorded:
            return
        self._recorded = step + 1
        self._training.end(step + 1)
        for name, value in trainer_metrics(values):
            self.runtime.record.metric(step + 1, name, value)

    def gear_memory(self) -> dict[str, Any] | None:
        """What a resumed run has to know of its gears; None: nothing."""
        return self._training.memory()

    # ------------------------------------------------------------ rollouts

    def rolled_out(self, batch: Any, step: int, schedulers: Sequence[Any]) -> None:
        """Take over the rollout of a step: its rows, and the times of generation and rewards.

        Args:
            batch: of all domains.
            step: 0-based.
            schedulers: the rollout's actors.
        """
        with EngineBoundary() as boundary:
            self._sizes = sizes_of(batch)
            asked = [scheduler.take_rollout_times.remote(step) for scheduler in schedulers]
            # Where the reference runs is decided while the rollout's actors answer.
            if "multi_modal_inputs" not in batch.non_tensor_batch:
                self._expect_references(step)
            self._account(self._taken(asked), step)
        self._tell(boundary)

    def finish(self, schedulers: Sequence[Any]) -> None:
        """Book what was generated ahead for no batch, when the training is over, to its last step.

        Args:
            schedulers: the rollout's actors.
        """
        with EngineBoundary() as boundary:
            step = self._done - 1
            taken = self._taken([s.take_rollout_times.remote(step) for s in schedulers])
            taken.merge(TakenTimes({step: taken.ahead}))
            taken.ahead = RolloutTimes()
            self._account(taken, step)
            for run in self._rollouts.values():
                self.runtime.forget(run)
        self._tell(boundary)

    def _taken(self, asked: Sequence[Any]) -> TakenTimes:
        """The answers of the rollout's actors put together."""
        taken, n_lost = TakenTimes(), 0
        refs = [*self._late, *asked]
        ready, self._late = ray.wait(refs, num_returns=len(refs), timeout=_TIMES_S)
        for ref in ready:
            try:
                taken.merge(ray.get(ref))
            except RayError:
                n_lost += 1
        if n_lost or self._late:
            logger.warning(
                "ecorl: of %d rollout actors %d did not tell generation and rewards, and %d will "
                "be asked again", len(refs), n_lost, len(self._late),
            )  # fmt: skip
        return taken

    def _expect_references(self, step: int) -> None:
        if self._sizes is None or self._references is None:
            return
        names = list(self._reference_names.values())
        if len(names) != 1:
            return  # which rows each of several has is known later
        shape = self._shape(Stage.REFERENCE)
        work = self._sizes.work(Stage.REFERENCE, shape)
        self.runtime.expect_stages(self._iteration(step), [work])

    def _account(self, taken: TakenTimes, step: int) -> None:
        # All hold their devices before the first is accounted: they share what these drew.
        over = [
            self._held(number, stage, name, times)
            for number, done in sorted(taken.done.items())
            for stage, name, times in done.stages()
        ]
        for stage, name, times in taken.ahead.stages():
            run = self._held(step + 1, stage, name, times)
            self._rollouts[step + 1, run.work.role] = run
        for run in over:
            self.runtime.account(run.stage, run.spans(), self.runtime.training.home)
        for key in [key for key in self._rollouts if key[0] <= step]:
            self.runtime.forget(self._rollouts.pop(key))

    def _rollout(self, step: int, stage: Stage, name: str) -> StageRun:
        """A stage whose times the rollout's actors tell; begun ahead, or only now."""
        role = role_of(stage, name)
        run = self._rollouts.get((step, role))
        if run is None:
            work = StageWork(stage, 0, 0, 0, 0, self._shape(role), role_name=name)
            run = self._rollouts[step, role] = self.runtime.on_stage_start(
                self._iteration(step), work, may_offload=False, starts_now=False
            )
        return run

    def _held(self, step: int, stage: Stage, name: str, times: StageTimes) -> StageRun:
        """A stage over times that were taken elsewhere, which holds its devices in these."""
        run = self._rollout(step, stage, name)
        work = times.sizes.work(stage, run.work.model, role_name=name)
        run.stage, run.t_start_s = replace(run.stage, work=work), None
        run.earlier = monotonic(union(times.intervals))
        self.runtime.pause(run)
        return self._rollouts.pop((step, run.work.role))

    # ------------------------------------------------------------ dispatch

    def dispatched(self, cluster: str, method: str, batch: Any, send: Callable[[], Any]) -> Any:
        """Run a call of ROLL's dispatch; one that is a stage's is recorded.

        Args:
            cluster: name of the cluster.
            method: name of the method.
            batch: ROLL's ``DataProto`` among the arguments, or None.
            send: makes the call.
        """
        run = None
        with EngineBoundary() as boundary:
            run = self._begun(cluster, method, batch)
        self._tell(boundary)
        if run is None:
            return send()
        try:
            answer = send()
        except BaseException:
            with EngineBoundary() as boundary:
                self.runtime.forget(run)
            self._tell(boundary)
            raise
        with EngineBoundary() as boundary:
            refs = _references_in(answer)
            if refs:
                # What was dispatched returns at once: the scheduler waits for its end.
                self.runtime.end_when_ready(run, refs)
            else:
                self.runtime.on_stage_end(run)
        self._tell(boundary)
        return answer

    def _begun(self, cluster: str, method: str, batch: Any) -> StageRun | None:
        kind = kind_of_cluster(cluster)
        if batch is not None and kind == "actor" and batch.meta_info.get("disable_adapter"):
            kind = "reference"  # with LoRA: the policy without its adapter
        call = call_of(kind, method)
        if call is None or batch is None:
            return None
        if call.stage is Stage.REFERENCE and self._references is not None:
            if self._references.is_unseen:
                return None
            placed = self._references.take_run(cluster)
            if placed is not None:
                self.runtime.restart(placed)
                return placed
        with self.runtime.clock:
            work = self._work(cluster, method, batch, call.stage, call.has_output)
            if cluster == POLICY and method == "train_step":
                work = self._training.begin(work)
        # Not every pipeline of ROLL's counts from 0.
        self._done = max(self._done, int(batch.meta_info.get("global_step", self._done)))
        iteration = self._opened(self._done)
        if work.stage in (Stage.ACTOR_TRAIN, Stage.CRITIC_TRAIN):
            # For the end of the step, which then has not to wait for them.
            self.runtime.expect_totals()
        return self.runtime.on_stage_start(iteration, work, may_offload=False)

    def _work(
        self, cluster: str, method: str, batch: Any, stage: Stage, has_output: bool
    ) -> StageWork:
        sizes = self._sizes
        if sizes is None or sizes.n_rows != len(batch):
            sizes = sizes_of(batch)
        name = ""
        if stage is Stage.REFERENCE and len(self._reference_names) > 1:
            name = reference_name(
                self._reference_names.get(cluster, cluster), self._reference_names
            )
        passes = self._passes if method == "train_step" else 1
        shape = self._shape(role_of(stage, name))
        return sizes.work(stage, shape, passes=passes, has_output=has_output, role_name=name)

    # ------------------------------------------------------------ references

    def compute_references(self, call: ReferenceRequest) -> Any:
        """Compute the references of the step, or have them computed; see `References.start`.

        Args:
            call: as ROLL makes it.
        """
        assert self._references is not None
        iteration = None
        with EngineBoundary() as boundary:
            iteration = self._iteration(self._done)
        self._tell(boundary)
        if iteration is None:
            return self._references.pass_on(call)
        return self._references.start(iteration, call)

    def join_references(self, data: Any) -> None:
        """Put log-probs that were put off into some rows of the step.

        Args:
            data: the rows, in any order.
        """
        assert self._references is not None
        self._references.join(data)

    # ------------------------------------------------------------ inside

    def _shape(self, role: Role) -> ModelShape | None:
        return self.runtime.training.models.get(role)

    def _tell(self, boundary: EngineBoundary) -> None:
        """Say what failed of ecorl's own; the training goes on without it."""
        if boundary.error is not None:
            logger.warning("ecorl: %s: %s", type(boundary.error).__name__, boundary.error)


def _references_in(answer: Any) -> list[Any]:
    """Ray's references in what a call of ROLL's gives: wrapped, bare, or none."""
    if not isinstance(answer, list):
        return []
    bare = [getattr(item, "obj_ref", item) for item in answer]
    return bare if bare and all(isinstance(ref, ray.ObjectRef) for ref in bare) else []
