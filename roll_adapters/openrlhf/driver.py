"""The driver's side of a run: it checks the flags, starts the runtime and ends it.

OpenRLHF's own command runs in the driver, with three names replaced before it looks them up: the
class of its groups of actors, the function that makes its strategy (there the flags are parsed and
checked, and nothing has started yet), and its trainers (so that they can be asked at the end).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError

from ecorl.config import Config, PluginEngineConfig, RayRuntimeConfig
from ecorl.records import EventKind, FaultEvent, FaultKind, Stage
from ecorl.runtime.checkpoints import read_gears
from ecorl.runtime.equipment.hardware import stays_on_gpu
from ecorl.runtime.local import build_runtime
from ecorl.runtime.protocol import RecordWriter, Runtime
from ecorl.runtime.ray.runtime import RuntimeHandle
from ecorl.runtime.runs.record import ending_by, run_facts
from roll_adapters.openrlhf import workers
from roll_adapters.openrlhf.attach import Invitation, invite
from roll_adapters.openrlhf.checkpoints import checkpoint_to_resume, read_progress
from roll_adapters.openrlhf.checks import ENGINE, fitted
from roll_adapters.openrlhf.description import Job, describe, job_facts, normalised
from roll_adapters.openrlhf.flags import options_for, value_of
from roll_adapters.openrlhf.widths import check_gpus
from roll_adapters.ray_jobs.gears.devices import ask_refusals, check_refusals
from roll_adapters.ray_jobs.processes import tell
from roll_adapters.ray_jobs.run import OpenedRun, join_or_start
from roll_adapters.ray_jobs.widths.handover import Handover, WidthLeft, handover_file
from roll_adapters.ray_jobs.widths.supervisor import handed_over

logger = logging.getLogger(__name__)

PACKAGES = ("torch", "transformers", "openrlhf", "ray", "deepspeed", "vllm")
"""Packages whose versions stand in the ledger's head."""

SETUP_HOOK = "roll_adapters.openrlhf.workers.install"

_DRAIN_S = 60.0
"""Longest wait for the trainer's processes at the end, s. Invented."""

current: Driver | None = None
"""The run of this process; None in all processes but the driver."""


@dataclass(slots=True)
class _Found:
    """What OpenRLHF has made so far."""

    asked: dict[Stage, list[Any]] = field(default_factory=dict)
    actors: dict[Stage, list[Any]] = field(default_factory=dict)
    gears: list[Any] = field(default_factory=list)
    trainer: Any = None


class Driver:
    """One run in the process of OpenRLHF's driver.

    Args:
        config: the run's configuration, on Ray.
        run_dir: folder of the run's record; None: that of the config.

    Attributes:
        folder: of the run's record; None until it is known.
    """

    def __init__(self, config: Config, run_dir: Path | None = None) -> None:
        self._config, self._run_dir = config, run_dir
        self.folder = run_dir
        self._opened: OpenedRun | None = None
        self._found = _Found()
        self._runtime: Runtime | None = None
        self._max_steps = 0
        self._weights: object = None
        self._left: Handover | None = None

    # ------------------------------------------------------------ begin

    def connect(self) -> None:
        """Join the Ray cluster as OpenRLHF would, with the hook for the processes of the job.

        Where neither the config nor the environment names a cluster and this machine is part of
        none, one is started for this run, as OpenRLHF does.

        Raises:
            ConfigError: when there is no cluster at the config's address.
        """
        env = {"TOKENIZERS_PARALLELISM": "true", "NCCL_DEBUG": "WARN"}
        env["RAY_ENABLE_ZERO_COPY_TORCH_TENSORS"] = "1"
        given = {name: os.environ.get(name, value) for name, value in env.items()}
        job = {"env_vars": given, "worker_process_setup_hook": SETUP_HOOK}
        stages = (Stage.REWARD, Stage.REFERENCE)
        n_workers = sum(not stays_on_gpu(self._config.placement.policy, s) for s in stages)
        join_or_start(self._config, n_workers, runtime_env=job)

    def replace_names(self, group: type[Any]) -> None:
        """Put ecorl's classes in the place of OpenRLHF's, before its command looks them up.

        Args:
            group: stands for OpenRLHF's class of its groups of actors.
        """
        import openrlhf.trainer.ppo_trainer as sync_trainer
        import openrlhf.trainer.ppo_trainer_async as async_trainer
        import openrlhf.utils
        from openrlhf.trainer.ray import launcher

        launcher.RayActorGroup = group
        make_strategy = openrlhf.utils.get_strategy

        def get_strategy(args: Any) -> Any:
            self.accept(args)
            return make_strategy(args)

        openrlhf.utils.get_strategy = get_strategy
        sync_trainer.PPOTrainer = _Noted(sync_trainer.PPOTrainer, self._found)
        async_trainer.PPOTrainerAsync = _Noted(async_trainer.PPOTrainerAsync, self._found)

    def accept(self, args: Any) -> None:
        """Check OpenRLHF's flags, open the run's record, and invite the trainer's processes.

        Args:
            args: OpenRLHF's flags, nested.

        Raises:
            UserError: for a setting or a run folder that cannot be used.
        """
        config = fitted(self._config, args)
        offload = config.engine.offload
        is_exact = isinstance(offload, PluginEngineConfig) and offload.name == ENGINE
        if is_exact:
            # What its own classes compute follows from the job's flags.
            engine = offload.model_copy(update={"options": options_for(args)})
            self._config = config.model_copy(
                update={"engine": config.engine.model_copy(update={"offload": engine})}
            )
        else:
            self._config = config
        self._opened = opened = _open(config, self._run_dir, args)
        self.folder = opened.folder
        assert isinstance(config.runtime, RayRuntimeConfig)
        handle = RuntimeHandle.of_run(
            opened.ledger.path, opened.ledger.attempt, config.runtime.namespace
        )
        compared = () if is_exact else (Stage.REWARD, Stage.REFERENCE)
        # OpenRLHF's own classes normalise on a worker as anywhere.
        scales = {} if is_exact else normalised(args)
        told = Invitation(handle.scheduler, handle.namespace, opened.from_step, scales, compared)
        if config.gears.is_on:
            memory = dict(read_gears(checkpoint_to_resume(args)))
            low_share = config.carbon.control.low_share
            told = replace(told, gears=config.gears, low_share=low_share, gear_memory=memory)
        if len(config.trainer.widths) > 1:
            check_gpus(config, args, ray.cluster_resources().get("GPU", 0.0))
            left = self._left = handed_over(handover_file())
            barred = () if left is None else left.barred
            widths = tuple(width for width in config.trainer.widths if width not in barred)
            told = replace(told, widths=widths, left={} if left is None else asdict(left))
        invite(args, told)

    def add_group(self, stage: Stage, actors: Iterable[Any]) -> None:
        """Note a group of actors that OpenRLHF has made.

        Args:
            stage: that its model is trained in or answers in.
            actors: their handles.
        """
        self._found.actors[stage] = list(actors)

    def ask_processes(self, engines: Iterable[Any]) -> None:
        """Ask all of OpenRLHF's processes for their devices, without waiting.

        Args:
            engines: handles of the rollout engines.
        """
        if self._config.gears.is_on:
            policy = self._found.actors.get(Stage.ACTOR_TRAIN, [])
            self._found.gears = ask_refusals(self._config.gears, policy)
        actors = {**self._found.actors, Stage.GENERATION: list(engines)}
        self._found.asked = {
            stage: [actor.__ray_call__.remote(tell) for actor in made]
            for stage, made in actors.items()
        }

    def start(self, args: Any, max_steps: int | None) -> None:
        """Start the runtime: engines are loaded and power is read from here on.

        Args:
            args: OpenRLHF's flags, nested.
            max_steps: steps of the whole training.

        Raises:
            UserError: for an engine, checkpoint or device that cannot be used.
            EngineError: when an engine does not start.
        """
        assert self._opened is not None
        self._max_steps = max_steps or 0
        self._weights = value_of(args, "ckpt.output_dir")
        check_refusals(self._found.gears)
        training = describe(self._config, args, Job.ask(self._found.asked))
        opened = self._opened
        runtime = build_runtime(
            self._config, opened.ledger, training, edi=opened.edi, before=opened.before
        )
        runtime.start()
        self._runtime = runtime
        kind = EventKind.RESUME if opened.from_step else EventKind.START
        what = f"training from step {opened.from_step} of {self._max_steps}"
        self._runtime.record.event(kind, what)
        self._tell_width(self._runtime.record)

    def _tell_width(self, record: RecordWriter) -> None:
        """Record that the training goes on with other processes, or that it could not."""
        left = self._left
        if left is None:
            return
        if left.reason is None:
            what = f"training goes on with {left.width} processes after step {left.step}"
            record.event(EventKind.WIDTH, what)
            return
        what = f"{left.barred[-1]} training processes cannot be begun with: {left.reason}"
        fault = FaultEvent(left.step + 1, FaultKind.WIDTH_UNCHANGED, "training processes", what)
        record.fault(fault)

    # ------------------------------------------------------------ end

    def end(self, error: BaseException | None) -> None:
        """End the run: take what the trainer's processes still tell, and close the record.

        Args:
            error: what ended the training; None when it is complete.
        """
        if self._runtime is None:
            self._withdraw()
            return
        self._drain()
        record = self._runtime.record
        if isinstance(error, WidthLeft):
            what = f"left after step {error.step} for {error.width} processes"
            record.event(EventKind.TRAINING_END, what)
        elif error is None:
            # How many steps that were is told by the steps in the record.
            record.event(EventKind.TRAINING_END, "OpenRLHF's trainer has ended")
            record.event(EventKind.FINISH, "OpenRLHF's command has ended, its models saved")
        else:
            record.event(*ending_by(error))
        self._runtime.close()
        record.close()
        if self._opened is not None and not isinstance(error, WidthLeft):
            self._opened.publish(self._weights)

    def _drain(self) -> None:
        """Wait until the trainer's processes have told all; one that is gone tells nothing more."""
        if self._found.trainer is None or self._runtime is None:
            return
        try:
            asked = self._found.trainer.__ray_call__.remote(workers.close_hooks)
            self._runtime.clock.add(ray.get(asked, timeout=_DRAIN_S))
        except RayError as error:
            why = type(error).__name__
            logger.warning("ecorl: the trainer's last notes may be missing: %s", why)

    def _withdraw(self) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.withdraw()


class _Noted:
    """Stands for an actor class of Ray; notes the actor that is made of it."""

    def __init__(self, kind: Any, found: _Found) -> None:
        self._kind, self._found = kind, found

    def remote(self, *args: Any, **kwargs: Any) -> Any:
        """Make the actor. See Ray."""
        self._found.trainer = self._kind.remote(*args, **kwargs)
        return self._found.trainer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kind, name)


def _open(config: Config, run_dir: Path | None, args: Any) -> OpenedRun:
    checkpoint = checkpoint_to_resume(args)
    progress = read_progress(checkpoint) if checkpoint else (None, None)
    reward = value_of(args, "reward.remote_url") or value_of(args, "reward.model_name_or_path")
    facts = run_facts(value_of(args, "actor.model_name_or_path"), reward, PACKAGES)
    return OpenedRun.of(config, run_dir, progress, facts | job_facts(args))
