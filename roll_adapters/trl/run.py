"""A whole run through TRL, as `ecorl run` starts it: in this process, or in several of its own.

A training whose number of processes may change runs in processes that this one supervises; this one
then imports neither torch nor TRL.
"""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Iterable, Iterator
from pathlib import Path

from rich.console import Console

from ecorl.config import Config, FilesTask, RayRuntimeConfig, config_toml
from ecorl.errors import ConfigError, TrainingError
from ecorl.ledger import LEDGER_FILE, LedgerReader
from ecorl.records import Stage
from ecorl.runtime.checkpoints import newest_checkpoint, step_of
from ecorl.runtime.equipment.hardware import stays_on_gpu
from ecorl.runtime.ray.local_cluster import LocalCluster, local_cluster
from ecorl.runtime.runs.record import resumable_config, resume_command
from roll_adapters.trl.inputs.check import check as check_input
from roll_adapters.trl.inputs.finding import Finding
from roll_adapters.trl.inputs.start import check_resume, check_start
from roll_adapters.trl.launch.crew import CHECKPOINTS, NEXT_WIDTH, AttemptOutcome
from roll_adapters.trl.launch.messages import Begin, How
from roll_adapters.trl.launch.supervisor import Supervisor

for _package in ("accelerate", "datasets", "trl"):
    if importlib.util.find_spec(_package) is None:
        # Told when the adapter is chosen, and not by the first process that needs it.
        raise ModuleNotFoundError(f"No module named {_package!r}", name=_package)


def run(config: Config, run_dir: Path, console: Console) -> bool:
    """Start a run in a fresh folder.

    Args:
        config: the resolved configuration.
        run_dir: folder of the run; must not hold one yet.
        console: where progress is shown.

    Returns:
        True when the run finished, False when a signal stopped it (resume goes on from there).

    Raises:
        UserError: for anything in the configuration or its files that cannot be used.
        TrainingError: when a training process failed or was killed.
    """
    _passed(check_start(config, run_dir))
    if _is_alone(config):
        from roll_adapters.trl.attempt import start

        return start(config, run_dir, console) is AttemptOutcome.COMPLETE
    return _supervised("start", config, run_dir, config.trainer.widths[0])


def resume(run_dir: Path, console: Console) -> bool:
    """Go on with a run that was stopped or killed, from its newest complete checkpoint.

    Args:
        run_dir: folder of the run.
        console: where progress is shown.

    Returns:
        True when the run finished, False when a signal stopped it again.

    Raises:
        RunError: when there is no run to resume, it has finished, another process is at it, a
            script of the user's own has started it, or a file that it needs is gone.
        TrainingError: when a training process failed or was killed.
    """
    config = resumable_config(run_dir)
    _passed(check_resume(config, run_dir))
    if _is_alone(config):
        from roll_adapters.trl.attempt import resume as go_on

        return go_on(config, run_dir, console) is AttemptOutcome.COMPLETE
    return _supervised("resume", config, run_dir, last_width(config, run_dir))


def check(config: Config | None, run_dir: Path, console: Console) -> None:
    """Check what a run is given, print a line for each thing, and leave nothing behind.

    Args:
        config: the resolved configuration; None for a run that is to go on with its own.
        run_dir: folder of the run.
        console: where the lines go.

    Raises:
        UserError: for the first mistake.
    """
    settings = resumable_config(run_dir) if config is None else config
    check_input(settings, run_dir, config is None, console)


def _passed(findings: Iterable[Finding]) -> None:
    """Run checks to their end, or to the first mistake."""
    for _ in findings:
        pass


def last_width(config: Config, run_dir: Path) -> int:
    """Tell with how many processes a run goes on from its newest complete checkpoint.

    Args:
        config: the run's.
        run_dir: its folder.
    """
    step = step_of(newest_checkpoint(run_dir / CHECKPOINTS))
    with contextlib.closing(LedgerReader(run_dir)) as reader:
        rows = [m for m in reader.metrics(NEXT_WIDTH) if not m.superseded and m.iteration <= step]
    width = int(rows[-1].value or 0) if rows else 0
    return width if width in config.trainer.widths else config.trainer.widths[0]


def _is_alone(config: Config) -> bool:
    """Whether one process, this one, trains from the beginning to the end."""
    return config.trainer.widths == (1,)


def _supervised(how: How, config: Config, run_dir: Path, width: int) -> bool:
    """Run the training in processes of its own; True when it finished."""
    told = Begin(how, str(run_dir.absolute()), config_toml(config.anchored()))
    try:
        with _cluster(config, run_dir) as cluster:
            return Supervisor(told, cluster=cluster).run(width)
    except TrainingError as error:
        raise TrainingError(f"{error}{_hint(run_dir)}") from error


def _hint(run_dir: Path) -> str:
    """How to go on with a run that has ended by an error, as the end of a line."""
    begun = (run_dir / LEDGER_FILE).is_file()
    return f"; go on with: {resume_command(run_dir)}" if begun else ""


@contextlib.contextmanager
def _cluster(config: Config, run_dir: Path) -> Iterator[LocalCluster | None]:
    """Start a Ray cluster for all groups of processes where the config asks for one of the run's.

    Yields:
        The cluster, which is up; None where they need none.

    Raises:
        ConfigError: when it does not start.
    """
    runtime = config.runtime
    if not isinstance(runtime, RayRuntimeConfig) or runtime.address != "local":
        yield None
        return
    policy, frozen = config.placement.policy, (Stage.REWARD, Stage.REFERENCE)
    n_workers = sum(not stays_on_gpu(policy, stage) for stage in frozen)
    with contextlib.ExitStack() as stack:
        try:
            cluster = stack.enter_context(local_cluster(n_workers))
        except ConfigError as error:
            allowed = f"{error.allowed}{_hint(run_dir)}"
            raise ConfigError(error.key, error.value, allowed) from error
        yield cluster


def demo_models(folder: Path, seed: int, cache_dir: Path, console: Console) -> list[str]:
    """Write small models, data, a config and a script of TRL's into a folder, to try ecorl with.

    Args:
        folder: a new or empty one, or one that this has made before.
        seed: of the models and data.
        cache_dir: folder in which they are kept once they are made.
        console: where the making is shown.

    Returns:
        What was written, relative to the folder; nothing where it was all there.

    Raises:
        UserError: when the folder holds something else, or cannot be written.
    """
    from roll_adapters.demo.folder import make_demo_folder

    return make_demo_folder(folder, seed, cache_dir, console)


def preload() -> None:
    """Import all that a run needs, so that processes forked from this one need not."""
    import roll_adapters.trl.attempt
    import roll_adapters.trl.bench.supervised  # noqa: F401


def benchmark_task(config: Config, folder: Path, console: Console) -> FilesTask:
    """Make or find the files of a task, for runs of a benchmark that all take the same.

    Args:
        config: the runs' configuration.
        folder: where what has to be written goes.
        console: where the making of files is shown.

    Raises:
        UserError: for a file that cannot be used.
    """
    from roll_adapters.trl.bench.files import benchmark_files

    return benchmark_files(config, folder, console)


def train_supervised(config: Config, run_dir: Path, console: Console) -> None:
    """Train the policy of a run on reference answers instead, and leave a record.

    Args:
        config: the run's; its trainer's steps, rows a step, learning rate and seed count.
        run_dir: folder of the record.
        console: where a line is shown.

    Raises:
        UserError: for a file that cannot be used, such as prompts without answers.
    """
    from roll_adapters.trl.bench.supervised import train_on_answers

    train_on_answers(config, run_dir, console)
