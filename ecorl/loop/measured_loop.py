"""A training loop that is measured: where its steps begin and end, and what is recorded of them.

    open, begin_step        the record is open; training stands still while it is to wait
    step                    end_step, then begin_step
    end_step                stage execution, metrics, peak memory -> ledger; energy follows
    begin_step              a wait, if there is one; then the next stage execution
    close                   how training ended -> ledger

The stage is `Stage.ACTOR_TRAIN`, the training stage. What lies between `end_step` and `begin_step`
is no training: its energy is in the report under idle.
"""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from ecorl.config import Config
from ecorl.control import Command
from ecorl.engines.validate import EngineBoundary
from ecorl.errors import ConfigError, RunError
from ecorl.loop.opening import LoopPlan, count, open_runtime
from ecorl.records import EvaluationPhase, EventKind, FaultEvent, FaultKind, Stage, StageWork
from ecorl.report.sharing.files import write_footprint
from ecorl.runtime.checkpoints import record_checkpoint
from ecorl.runtime.control.standing import stand
from ecorl.runtime.energy.log_figures import await_settled, log_figures
from ecorl.runtime.handles import RunTotals, StageRun
from ecorl.runtime.memory import host_peak_bytes, record_peak_memory, restart_host_peak
from ecorl.runtime.protocol import Runtime
from ecorl.runtime.runs.notices import tell_end
from ecorl.runtime.runs.record import ending_by, note_end


class StopSignals:
    """Remembers whether a signal has asked the training to stop.

    Attributes:
        by: name of the signal that asked; None while none did.
    """

    def __init__(self) -> None:
        self.by: str | None = None
        self._before: dict[int, Any] = {}

    @property
    def is_asked(self) -> bool:
        """Whether a signal has come."""
        return self.by is not None

    def listen(self) -> None:
        """Take the two signals over until one comes; the next one acts as it did before.

        Raises:
            ConfigError: outside of the main thread, where Python lets nobody do so.
        """
        if threading.current_thread() is not threading.main_thread():
            raise ConfigError("handle_signals", True, "False outside of the main thread")
        for which in (signal.SIGINT, signal.SIGTERM):
            self._before[which] = signal.signal(which, self._ask)

    def leave(self) -> None:
        """Give the signals back; safe to call twice."""
        for which, handler in self._before.items():
            # None: a handler that was not set from Python, which it cannot put back.
            signal.signal(which, signal.SIG_DFL if handler is None else handler)
        self._before.clear()

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self.by = signal.Signals(number).name
        self.leave()
        logger.warning("%s: training stops after this step; once more to stop at once", self.by)


logger = logging.getLogger(__name__)


class MeasuredLoop:
    """One training loop under measurement; `ecorl.measure` makes it, ``with`` opens and ends it.

    Args:
        config: of the run, from `ecorl.loop.opening.loop_config`.
        plan: what is known of the loop.

    Attributes:
        folder: of the run's record; a time in it is filled in when the record is opened.
        n_steps: steps that are done, those before a resume too.
        goes_on: whether training should go on; False once it was asked to save and stop. It may be
            so before the first step.
        weights: folders of saved weights, beside which the end puts ``footprint.json`` and
            ``emissions.csv``; a checkpoint that is told is one of them.
    """

    def __init__(self, config: Config, plan: LoopPlan) -> None:
        self.folder = plan.run_dir or config.run_dir_at("{time}")
        self.n_steps, self.goes_on = plan.from_step, True
        self._config, self._plan, self._total = config, plan, plan.total_steps
        self.weights: list[Path] = []
        self._signals = StopSignals()
        self._runtime: Runtime | None = None
        self._stage: StageRun | None = None
        self._why_stop = ""
        self._told = False
        self._lacks: set[str] = set()
        self._logged = RunTotals()
        self._by_step = False
        self._saved: Path | None = None

    # ------------------------------------------------------------ life

    def __enter__(self) -> MeasuredLoop:
        self.open()
        try:
            self.begin_step()
        except BaseException as error:  # Ctrl-C during the wait
            self.close(error)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close(error)

    def open(self) -> None:
        """Open the record and start to measure; nothing is waited for yet.

        Raises:
            UserError: for a config or a run folder that cannot be used.
        """
        if self._runtime is not None:
            raise RunError("a measured loop is opened once: call ecorl.measure again")
        if self._plan.handles_signals:
            self._signals.listen()
        try:
            runtime, self.folder = open_runtime(self._config, self._plan)
            self._runtime = runtime
        except BaseException:
            self._signals.leave()
            raise
        of = "" if self._total is None else f" of {self._total}"
        kind = EventKind.RESUME if self.n_steps else EventKind.START
        with self._contained(runtime):
            runtime.record.event(kind, f"training from step {self.n_steps}{of}")
            self._logged = runtime.totals()

    def close(self, error: BaseException | None = None, *, goes_on: bool = False) -> None:
        """End the record, and say on stderr what is in it; safe to call twice.

        Args:
            error: that has ended the training; None when it ended by itself.
            goes_on: whether a further attempt begins at once; nothing is said then.
        """
        runtime, self._runtime = self._runtime, None
        self._signals.leave()
        if runtime is None:
            return
        kind, detail = self._ending(error)
        with self._contained(runtime):
            if self._stage is not None:
                # What came behind the last step, or a step that was cut short.
                runtime.forget(self._stage)
            if error is None:
                runtime.record.event(EventKind.TRAINING_END, self._course())
        with self._contained(runtime):
            runtime.close()
        with self._contained(runtime):
            runtime.record.event(kind, detail)
            runtime.record.close()
        note_end(self.folder, error)
        if not goes_on:
            write_footprint(self.folder, self.weights)
            tell_end(self.folder, error)

    # ------------------------------------------------------------ steps

    def step(
        self, n_samples: int | None = None, n_tokens: int | None = None, **metrics: float | None
    ) -> bool:
        """End a step and begin the next one; in between training waits, if it is to wait.

        A step is one of the optimizer's: with gradient accumulation all its backward passes lie
        between two calls.

        Args:
            n_samples: rows that the step trained on; None: nobody counts them.
            n_tokens: tokens that it trained on; None: nobody counts them. The record then has no
                energy per token.
            **metrics: further figures of the step, e.g. ``loss``; None or NaN: missing.

        Returns:
            Whether training should go on. False: it was asked to save and stop, by a signal or
            because the run has emitted what it may. The step that follows is measured all the same.

        Raises:
            ConfigError: for a count or a figure that is none.
        """
        self.end_step(n_samples, n_tokens, **metrics)
        return self.begin_step()

    def begin_step(self) -> bool:
        """Begin a step, once training may run; see `step`.

        For what is no training and lies between two steps (an evaluation, a checkpoint): call
        `end_step` before it and this behind it, in the place of `step`.

        Returns:
            Whether training should go on.
        """
        runtime = self._running()
        if self._stage is not None:
            return self.goes_on  # it has begun, and not ended
        left = None if self._total is None else max(0, self._total - self.n_steps)
        if left == 0:
            return self.goes_on  # the last step is done
        with self._contained(runtime):
            choice = stand(runtime, steps_left=left, is_stopping=lambda: self._signals.is_asked)
            if choice.command is Command.STOP:
                self._stop(choice.reason)
        if self._signals.is_asked:
            self._stop(f"{self._signals.by} came")
        with self._contained(runtime):
            if self._by_step:
                restart_host_peak()
            iteration = runtime.begin_iteration(self.n_steps + 1)
            # What the step will hold is known at its end.
            work = StageWork(Stage.ACTOR_TRAIN, 0, 0, 0, 0)
            self._stage = runtime.on_stage_start(iteration, work)
        return self.goes_on

    def end_step(
        self, n_samples: int | None = None, n_tokens: int | None = None, **metrics: float | None
    ) -> None:
        """End a step; see `step`.

        Args:
            n_samples: as for `step`.
            n_tokens: as for `step`.
            **metrics: as for `step`.

        Raises:
            ConfigError: as for `step`.
        """
        runtime = self._running()
        work = _work(n_samples, n_tokens)
        values = {name: _figure(name, value) for name, value in metrics.items()}
        stage, self._stage = self._stage, None
        self.n_steps += 1
        if stage is not None:
            with self._contained(runtime):
                runtime.on_stage_end(stage, work)
        elif self._total is not None and self.n_steps > self._total:
            logger.warning("total_steps = %d: training goes on beyond it", self._total)
            self._total = None
        with self._contained(runtime), runtime.clock:
            self._record(runtime, values)
        with self._contained(runtime):
            runtime.settle()

    def _record(self, runtime: Runtime, values: Mapping[str, float | None]) -> None:
        """Record the figures of a step that has ended."""
        if self._by_step:
            peak = host_peak_bytes()
            runtime.record.metric(self.n_steps, "peak_memory_step_host_bytes", peak)
        record_peak_memory(runtime.record, self.n_steps)
        for name, value in values.items():
            runtime.record.metric(self.n_steps, name, value)

    # ------------------------------------------------------------ what else there is to record

    def evaluation(
        self, name: str, values: Sequence[float | None], phase: str = EvaluationPhase.AFTER
    ) -> None:
        """Record the values of an evaluation, one an item, so that runs can be compared.

        Args:
            name: what was evaluated; ``correct`` with 1 for each right answer and 0 for each wrong
                one is an accuracy.
            values: one an item, in the same order each time; None: missing.
            phase: when: ``before`` training, ``after`` it, or a word of your own.

        Raises:
            ConfigError: for a value that is no number.
        """
        runtime = self._running()
        kept = [_figure(f"evaluation {name}", value) for value in values]
        with self._contained(runtime):
            runtime.record.evaluation(name, phase, kept)

    def checkpoint(self, path: str | Path) -> None:
        """Record that a checkpoint of the steps so far was saved.

        A run that is cut off can go on from it (``from_step``). In a folder ecorl keeps its own
        state beside yours, ``ecorl_state.json``.

        Args:
            path: the checkpoint's folder or file.
        """
        runtime, saved = self._running(), Path(path).absolute()
        # Of several checkpoints the newest is what training came to.
        self.weights = [*(w for w in self.weights if w != self._saved), saved]
        self._saved = saved
        with self._contained(runtime):
            record_checkpoint(runtime, saved, self.n_steps)

    def metric(self, name: str, value: float | None) -> None:
        """Record a figure of the newest step that has ended.

        Args:
            name: e.g. ``loss``.
            value: None or NaN: missing.

        Raises:
            ConfigError: when it is no number.
        """
        runtime, figure = self._running(), _figure(name, value)
        with self._contained(runtime):
            runtime.record.metric(self.n_steps, name, figure)

    def lack(self, why: str) -> None:
        """Record why figures of the steps are missing, and warn of it, once for each reason.

        Args:
            why: one sentence.
        """
        if why in self._lacks:
            return
        self._lacks.add(why)
        runtime = self._running()
        with self._contained(runtime):
            runtime.record.fault(FaultEvent(self.n_steps, FaultKind.NOT_COUNTED, "loop", why))
            logger.warning("the record lacks figures, training goes on: %s", why)

    def figures(self, *, is_last: bool = False) -> dict[str, float]:
        """Energy and emissions for a log of your own; see `ecorl.runtime.energy.log_figures`.

        The figures of the stage are those since the last call; a missing one has no key.

        Args:
            is_last: whether no other log follows: then the energy of the steps that have ended
                last is waited for, a second or so.
        """
        runtime, found = self._running(), dict[str, float]()
        with self._contained(runtime):
            if is_last:
                await_settled(runtime)
        with self._contained(runtime), runtime.clock:
            now = runtime.totals()
            found, self._logged = log_figures(self._logged, now), now
        return found

    def watch_memory_by_step(self) -> bool:
        """From the next step on, record the host's peak memory of each step by itself.

        It is the metric ``peak_memory_step_host_bytes``: the most resident memory since the step
        began. For it the process's high-water mark is set back at each step, which ``getrusage``
        and ``/usr/bin/time`` show as well; that is why it has to be asked for.

        Returns:
            Whether the system lets a process do so; where not, nothing is recorded.
        """
        self._by_step = restart_host_peak()
        return self._by_step

    # ------------------------------------------------------------ inside

    def _running(self) -> Runtime:
        if self._runtime is None:
            raise RunError("the loop is not measured here: use it inside `with ecorl.measure(...)`")
        return self._runtime

    @contextmanager
    def _contained(self, runtime: Runtime) -> Iterator[None]:
        """Keep a fault of ecorl's own away from the training; it is recorded, and told once."""
        with EngineBoundary() as boundary:
            yield
        error = boundary.error
        if error is None:
            return
        kind, detail = type(error).__name__, str(error)
        runtime.record.fault(FaultEvent(self.n_steps, kind, "loop", detail))
        if not self._told:
            self._told = True
            logger.warning("the record lacks figures, training goes on: %s: %s", kind, detail)

    def _stop(self, why: str) -> None:
        self.goes_on, self._why_stop = False, why

    def _course(self) -> str:
        of = "" if self._total is None else f" of {self._total}"
        return f"{self.n_steps}{of} steps"

    def _ending(self, error: BaseException | None) -> tuple[EventKind, str]:
        if error is not None:
            return ending_by(error)
        told = f"training ended after {self._course()}"
        if self._total is not None and self.n_steps >= self._total:
            return EventKind.FINISH, told
        if not self.goes_on:
            return EventKind.STOP, f"{told}: {self._why_stop}"
        # Fewer steps than planned: the loop was left early, and may be gone on with.
        return EventKind.FINISH if self._total is None else EventKind.STOP, told


def _work(n_samples: int | None, n_tokens: int | None) -> StageWork:
    """The work of a step; 0 stands for what nobody counts, and no price per token comes of it."""
    rows = 0 if n_samples is None else count("n_samples", n_samples, least=0)
    tokens = 0 if n_tokens is None else count("n_tokens", n_tokens, least=0)
    return StageWork(Stage.ACTOR_TRAIN, rows, tokens, tokens, 0)


def _figure(name: str, value: object) -> float | None:
    item = getattr(value, "item", None)
    try:
        # A tensor of one value serves as well.
        plain: Any = item() if item is not None else value
        return None if plain is None else float(plain)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(name, value, "a number, or None where it is missing") from error
