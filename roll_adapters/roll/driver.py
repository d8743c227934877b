"""`AutoDeviceMapping`: the override of ROLL's dispatch, order and devices, for one run.

ROLL itself has no class of this name: it stands for its resource manager, ``device_mapping`` and
clusters together. The override replaces names in ROLL's modules before the pipeline is built, each
of which is checked first, and puts them back at the end. ROLL's own classes do all of its work.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import ray
from ray.exceptions import RayError

from ecorl.config import Config, PluginEngineConfig, RayRuntimeConfig
from ecorl.engines.validate import EngineBoundary
from ecorl.errors import ConfigError
from ecorl.records import EventKind, Role
from ecorl.runtime.checkpoints import write_state
from ecorl.runtime.ray.runtime import RayRuntime, RuntimeHandle
from ecorl.runtime.runs.record import ending_by, run_facts
from roll_adapters.ray_jobs.run import OpenedRun, join_or_start, on_ray
from roll_adapters.roll import checks, description
from roll_adapters.roll.checkpoints import progress_of
from roll_adapters.roll.config import names, pipelines
from roll_adapters.roll.config.convert import MOVABLE_MODEL
from roll_adapters.roll.config.settings import RollConfig, read
from roll_adapters.roll.engine import packed
from roll_adapters.roll.gears.job import policy_training
from roll_adapters.roll.invitation import WorkerInvitation, invite
from roll_adapters.roll.stages import hooks
from roll_adapters.roll.stages.dispatch import watched_generator
from roll_adapters.roll.stages.hooks import PipelineHooks
from roll_adapters.roll.stages.references import References
from roll_adapters.roll.stages.replacements import joined, put_off

logger = logging.getLogger(__name__)

PACKAGES = ("torch", "transformers", "ray", "vllm", "sglang")
"""Packages whose versions stand in the ledger's head."""

_DRAIN_S = 60.0
"""Longest wait for the workers at the end, s. Invented."""


class AutoDeviceMapping:
    """One run of ecorl over a pipeline of ROLL's.

        with AutoDeviceMapping("configs", "rlvr") as mapping:
            pipeline = mapping.build()
            pipeline.run()

    Entering joins Ray, checks everything, opens the run's record and replaces the names; leaving
    ends the record and puts the names back.

    Args:
        config_path: folder of the YAML file.
        config_name: the file's name; its ending may be left out.
        overrides: of ROLL's settings, as Hydra takes them.
        settings: ``dotted.key=value`` for the block ``ecorl:``.

    Raises:
        UserError: for the first setting that cannot work, with its line where that is known.
    """

    def __init__(
        self,
        config_path: str | Path,
        config_name: str,
        overrides: Sequence[str] = (),
        settings: Sequence[str] = (),
    ) -> None:
        folder = Path(config_path).expanduser()
        self.read: RollConfig = read(folder, config_name, overrides, settings)
        self._kind = pipelines.pipeline_of(self.read)
        self.config: Config = on_ray(self.read.config, "ROLL")
        names.check_names(rlvr=self._kind.moves)
        self.pipeline_config: Any = None
        self._roles: list[description.ModelRole] = []
        self._movable: list[description.ModelRole] = []
        self._opened: OpenedRun | None = None
        self._runtime: RayRuntime | None = None
        self._clusters: dict[str, Any] = {}
        self._replaced: list[tuple[Any, str, Any]] = []
        self._pool: Any = None
        self._pipeline: Any = None

    # ------------------------------------------------------------ begin

    def prepare(self) -> None:
        """Make ROLL's config and check it with ecorl's; nothing is started.

        Raises:
            UserError: for the first setting that cannot work.
        """
        from dacite import Config as DaciteConfig
        from dacite import DaciteError, from_dict

        kind = pipelines.load(self._kind.config)
        try:
            # ROLL's own script for on-policy distillation does not check types either.
            own = DaciteConfig(check_types=not self.read.data.get("is_pure_opd", False))
            self.pipeline_config = from_dict(kind, self.read.data, own)
        except (
            DaciteError,
            AssertionError,
            ValueError,
            TypeError,
            NameError,
            SyntaxError,
        ) as error:
            why = " ".join(str(error).split())[:300] or type(error).__name__
            allowed = f"a config that ROLL takes ({why})"
            file = self.read.file
            raise ConfigError("--config_name", file.name, allowed, file) from error
        self._roles = description.model_roles(self.read, self.pipeline_config)
        self._movable = description.movable(
            self.read, self.pipeline_config, self._roles, moves=self._kind.moves
        )
        checks.check(self.read, self.pipeline_config, self._movable, moves=self._kind.moves)

    def what_happens(self) -> list[tuple[str, str]]:
        """Say of each role what is measured, what can move, and why not; after `prepare`."""
        return checks.what_happens(
            self.read, self.pipeline_config, self._roles, self._movable, moves=self._kind.moves
        )

    def __enter__(self) -> AutoDeviceMapping:
        try:
            self.prepare()
            self._connect()
            runtime = self.config.runtime
            assert isinstance(runtime, RayRuntimeConfig)
            checks.check_cluster(self.read, self._movable, runtime.patience_s)
            self._open()
            self._replace_names()
        except BaseException as error:
            self._end(error)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._end(error)

    def _connect(self) -> None:
        """Join Ray, as ROLL does; where this machine is part of no cluster one is started."""
        from roll.distributed.scheduler.initialize import init
        from roll.platforms import current_platform
        from roll.utils.constants import RAY_NAMESPACE

        job = {"env_vars": current_platform.get_custom_env_vars()}
        # ROLL takes a cluster that its driver has joined already.
        started = ray.is_initialized() or join_or_start(
            self.config, len(self._movable), namespace=RAY_NAMESPACE, runtime_env=job
        )
        if not started:
            init()

    def _open(self) -> None:
        progress = progress_of(self.pipeline_config)
        policy = next((r.model for r in self._roles if r.role == "actor_train"), "")
        rewards = [r.model for r in self._roles if r.role.startswith("reward") and r.model]
        facts = run_facts(policy, ", ".join(rewards) or "rules", PACKAGES)
        self._opened = OpenedRun.of(
            self.config,
            None,
            progress,
            facts | {"roll": names.RELEASE} | description.job_facts(self.read),
        )
        self.config = self._opened.config
        assert isinstance(self.config.runtime, RayRuntimeConfig)
        ledger = self._opened.ledger
        handle = RuntimeHandle.of_run(ledger.path, ledger.attempt, self.config.runtime.namespace)
        invite(
            self.pipeline_config,
            WorkerInvitation(handle.scheduler, handle.namespace, compares=not self._is_exact()),
        )

    def _is_exact(self) -> bool:
        offload = self.config.engine.offload
        return isinstance(offload, PluginEngineConfig) and offload.name == checks.ENGINE

    # ------------------------------------------------------------ names

    def _replace_names(self) -> None:
        from roll_adapters.roll.resources import CardGroups, CardResourceManager

        def generator(original: Any) -> Any:
            return watched_generator(original, self._note)

        self._pool = CardGroups()
        CardResourceManager.pool = self._pool
        self._replace(names.DISPATCH, generator)
        self._replace(names.RESOURCES, lambda _: CardResourceManager)
        if not self._kind.moves:
            return
        from roll_adapters.roll.rollouts import WatchedScheduler

        self._replace(names.SCHEDULER, lambda _: WatchedScheduler)
        self._replace(names.COMPUTE, put_off)
        self._replace(names.TOKEN_REWARD, joined)
        self._replace(names.ROLLED_OUT, self._rolled_out)

    def _replace(self, name: tuple[str, str], make: Callable[[Any], Any]) -> None:
        module, attribute = name
        owner = importlib.import_module(module)
        original = getattr(owner, attribute)
        self._replaced.append((owner, attribute, original))
        setattr(owner, attribute, make(original))

    def _note(self, cluster: Any) -> None:
        self._clusters[cluster.cluster_name] = cluster

    def _rolled_out(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def rolled_out(path: Any, global_step: int, data: Any, tokenizer: Any) -> Any:
            if hooks.current is not None and self._pipeline is not None:
                schedulers = list(self._pipeline.generate_schedulers.values())
                hooks.current.rolled_out(data, global_step, schedulers)
            return original(path, global_step, data, tokenizer)

        return rolled_out

    # ------------------------------------------------------------ pipeline

    def build(self) -> Any:
        """Build ROLL's pipeline, and start the runtime over its workers.

        Returns:
            The pipeline; call its ``run``.

        Raises:
            UserError: for an engine, checkpoint or device that cannot be used.
            EngineError: when an engine does not start.
        """
        self._give_cards()
        pipeline = pipelines.load(self._kind.pipeline)(pipeline_config=self.pipeline_config)
        self.attach(pipeline)
        return pipeline

    def _give_cards(self) -> None:
        """Hand cards to roles whose own workers compute on them; ROLL sees no GPU there."""
        from roll_adapters.roll.resources import CardHandles

        moved = {own.key for own in self._movable}
        for key, cards in self.read.cards.items():
            if key in moved:
                continue
            settings = self.pipeline_config
            for part in key.split("."):
                settings = settings[part] if isinstance(settings, dict) else getattr(settings, part)
            settings.device_mapping = CardHandles(cards)
            settings.world_size = len(cards)

    def attach(self, pipeline: Any) -> None:
        """Start the runtime over a pipeline that was built while the names were replaced.

        Args:
            pipeline: ROLL's.

        Raises:
            UserError: for an engine, checkpoint or device that cannot be used.
            EngineError: when an engine does not start.
        """
        assert self._opened is not None
        opened, self._pipeline = self._opened, pipeline
        frozen = description.frozen_models(self._movable)
        cards: dict[Role, Any] = {
            own.role: self._pool.group(self.read.cards[own.key][0])
            for own in self._movable
            if self.read.cards.get(own.key)
        }
        training = description.describe(self._roles, frozen, cards, self._clusters)
        runtime = RayRuntime(
            self._with_engine(), opened.ledger, training, edi=opened.edi, before=opened.before
        )
        runtime.start()
        self._runtime = runtime
        kind = EventKind.RESUME if opened.from_step else EventKind.START
        runtime.record.event(kind, f"training from step {opened.from_step} of {self._n_steps}")
        hooks.current = self._hooks(runtime)
        self._watch(pipeline, hooks.current)
        if getattr(self.pipeline_config, "generate_opt_level", 1) == 0:
            logger.warning(
                "ecorl: generate_opt_level = 0: generation and rewards are not measured; with 1 "
                "they are"
            )

    @property
    def _n_steps(self) -> int:
        """Steps of the whole pipeline; 0: unknown."""
        return int(getattr(self.pipeline_config, "max_steps", 0) or 0)

    def _with_engine(self) -> Config:
        """The config with what ROLL's own class as an engine has to know."""
        offload = self.config.engine.offload
        references = description.references_of(self.pipeline_config)
        if not self._is_exact() or not references:
            return self.config
        assert isinstance(offload, PluginEngineConfig)
        settings = packed(self.pipeline_config, next(iter(references.values())))
        offload = offload.model_copy(update={"options": {"settings": settings}})
        engine = self.config.engine.model_copy(update={"offload": offload})
        return self.config.model_copy(update={"engine": engine})

    def _hooks(self, runtime: RayRuntime) -> PipelineHooks:
        references = None
        if self._kind.moves:
            originals = {attribute: original for _, attribute, original in self._replaced}
            references = References(
                runtime,
                originals[names.COMPUTE[1]],
                names.look_up("roll.utils.functionals", "merge_ref_log_probs_compat"),
                runtime.training.models,
                compared=not self._is_exact(),
                overlap=self.read.own.overlap_reference,
            )
        by_cluster = {
            str(getattr(settings, "name", None) or name): name
            for name, settings in description.references_of(self.pipeline_config).items()
        }
        passes = int(getattr(self.pipeline_config, "ppo_epochs", 1) or 1)
        assert self._opened is not None
        return PipelineHooks(
            runtime,
            references,
            by_cluster,
            passes=passes,
            from_step=self._opened.from_step,
            total=self._n_steps,
            training=policy_training(self.config, self.pipeline_config, self._clusters, runtime),
        )

    def _watch(self, pipeline: Any, own: PipelineHooks) -> None:
        """Wrap the methods of this pipeline at which its steps begin and end."""
        update, save = pipeline.model_update, pipeline.do_checkpoint
        log, write = pipeline.tracker.log, pipeline.state.save_to_json

        def model_update(global_step: int, *args: Any, **kwargs: Any) -> Any:
            own.begin(global_step)
            return update(global_step, *args, **kwargs)

        def do_checkpoint(global_step: int, *args: Any, **kwargs: Any) -> Any:
            if pipeline.state.log_history:
                own.before_checkpoint(pipeline.state.log_history[-1], global_step)
            written.clear()
            answer = save(global_step, *args, **kwargs)
            for folder in written:
                self._saved(folder, global_step + 1)
            return answer

        def save_to_json(save_dir: Any, *args: Any, **kwargs: Any) -> Any:
            answer = write(save_dir, *args, **kwargs)
            # Beside ROLL's own, before the folder is uploaded.
            written.append(Path(save_dir).parent)
            self._complete(written[-1])
            return answer

        def logged(values: Any, step: int, *args: Any, **kwargs: Any) -> Any:
            return log(own.log(values, step), step, *args, **kwargs)

        written: list[Path] = []
        pipeline.model_update, pipeline.do_checkpoint = model_update, do_checkpoint
        pipeline.tracker.log, pipeline.state.save_to_json = logged, save_to_json

    def _complete(self, folder: Path) -> None:
        """Put ecorl's state into a checkpoint of ROLL's."""
        with EngineBoundary() as boundary:
            assert self._runtime is not None
            step = int(folder.name.rpartition("-")[2]) + 1
            memory = None if hooks.current is None else hooks.current.gear_memory()
            write_state(folder, step, self._runtime.edi_json(), memory)
        if boundary.error is not None:
            logger.warning("ecorl: the checkpoint has no EDI matrix: %s", boundary.error)

    def _saved(self, folder: Path, step: int) -> None:
        with EngineBoundary():
            assert self._runtime is not None
            self._runtime.record.checkpoint(step, str(folder))

    # ------------------------------------------------------------ end

    def _end(self, error: BaseException | None) -> None:
        """End the run: take what workers still tell, close the record, put the names back."""
        own, hooks.current = hooks.current, None
        if own is not None and error is None and self._is_ahead():
            own.finish(list(self._pipeline.generate_schedulers.values()))
        for owner, attribute, original in reversed(self._replaced):
            setattr(owner, attribute, original)
        self._replaced.clear()
        runtime, self._runtime = self._runtime, None
        if runtime is None:
            opened, self._opened = self._opened, None
            if opened is not None:
                opened.withdraw()
        else:
            self._drain(runtime)
            if error is None:
                runtime.record.event(EventKind.TRAINING_END, "ROLL's pipeline has ended")
                runtime.record.event(EventKind.FINISH, "ROLL's pipeline has ended")
            else:
                runtime.record.event(*ending_by(error))
            runtime.close()
            runtime.record.close()
            if self._opened is not None:
                self._opened.publish(getattr(self.pipeline_config, "output_dir", None))
        if self._pool is not None:
            self._pool.close()

    def _is_ahead(self) -> bool:
        """Whether the rollout's actors may have generated for a batch that never comes."""
        ratio = getattr(self.pipeline_config, "async_generation_ratio", 0) or 0
        return ratio > 0 and hasattr(self._pipeline, "generate_schedulers")

    def _drain(self, runtime: RayRuntime) -> None:
        """Wait for ecorl's own workers; one that is gone tells nothing more."""
        workers = [
            worker
            for cluster in self._clusters.values()
            if str(cluster.worker_config.worker_cls) == MOVABLE_MODEL
            for worker in cluster.workers
        ]
        try:
            for spent in ray.get([w.leave_run.remote() for w in workers], timeout=_DRAIN_S):
                runtime.clock.add(spent)
        except RayError as error:
            why = type(error).__name__
            logger.warning("ecorl: the workers' last notes may be missing: %s", why)
