"""`measure`, the way into ecorl for a training loop that its user wrote."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ecorl.config import Config
from ecorl.loop.measured_loop import MeasuredLoop
from ecorl.loop.opening import (
    LoopPlan,
    check_one_process,
    count,
    loop_config,
    loop_facts,
    told_facts,
)
from ecorl.runtime.runs.record import check_overwrite

_GO_ON = "start its script again, with the step of the checkpoint as from_step for ecorl.measure"


def measure(
    config: Config | str | Path,
    *,
    run_dir: str | Path | None = None,
    total_steps: int | None = None,
    from_step: int | None = None,
    facts: Mapping[str, object] | None = None,
    handle_signals: bool = False,
    overwrite: bool = False,
) -> MeasuredLoop:
    """Measure a training loop, and let it wait for clean windows of the grid.

        with ecorl.measure("ecorl.toml", total_steps=len(loader) * epochs) as run:
            for batch in loader:
                loss = train(batch)
                if not run.step(n_samples=len(batch), loss=loss.item()):
                    save()
                    break

    The ``with`` block opens the run's record and waits for the first clean window, if the config
    asks for it: nothing of the first step has run then. No number of the training changes. Errors
    of the loop go through, and end the record; a fault of ecorl's own (a full disk, a feed or a
    sensor that is gone) costs figures and never raises into the loop.

    Args:
        config: a config, the path of a TOML file, or a preset's name. Its ``task``, ``trainer``,
            ``placement`` and ``engine`` tables are not used: the loop is yours, and nothing of it
            leaves its device.
        run_dir: folder of the run's record; default is the config's ``run_dir``.
        total_steps: steps of the whole training, those before `from_step` too. It tells how much
            is left before a deadline, and which step is the last: without it training may wait
            once more behind its last step, and whatever way the block ends counts as complete.
        from_step: the last step that a checkpoint of yours holds, when training goes on from it:
            the record in the folder then goes on too. None or 0: a fresh start.
        facts: of the run, for its record, e.g. ``{"accumulation_steps": 4, "batch_size": 16}``;
            see `ecorl.loop.opening.told_facts`. A record that goes on keeps its first ones.
        handle_signals: whether SIGINT (Ctrl-C) and SIGTERM end the training in good order: a wait
            ends, and `MeasuredLoop.step` returns False behind the step under way; the next signal
            acts as usual. Otherwise they do what they do without ecorl: Ctrl-C raises
            KeyboardInterrupt at once, in a notebook too, and SIGTERM ends the process.
        overwrite: whether what ecorl wrote of a run that lies in the folder is removed first,
            whatever its state; otherwise such a run is refused.

    Returns:
        A context manager, which gives itself.

    Raises:
        ConfigError: for a mistake in the config or the arguments. Entering raises a `UserError`
            for a run folder that holds another run, or one that has finished.
    """
    check_one_process()
    settings = loop_config(config, "loop")
    check_overwrite(overwrite, goes_on=bool(from_step))
    plan = LoopPlan(
        run_dir=None if run_dir is None else Path(run_dir),
        total_steps=None if total_steps is None else count("total_steps", total_steps),
        from_step=0 if from_step is None else count("from_step", from_step, least=0),
        facts=loop_facts("training loop", _GO_ON, told_facts(facts or {})),
        handles_signals=handle_signals,
        overwrites=overwrite,
    )
    return MeasuredLoop(settings, plan)
