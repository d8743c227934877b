"""The learned policy at run time: cost table, state, network, guards of its own.

`PolicyFile` is an ONNX file with its schema checked, run by ONNX Runtime on one thread with bound
input and output buffers. `LearnedScheduler` puts it to work in a run: what the stages cost comes
from a `CostTable` that is made when a batch of a new size or length first comes, the state from
`ecorl.scheduler.features`, and an action that the guards would refuse is not even considered.

A run of this version neither streams finished rows nor moves training work, so only reward and
reference have a choice.
"""

from __future__ import annotations

import json
import logging
import math
import struct
from collections.abc import Mapping
from dataclasses import replace
from importlib import resources
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ecorl.devices import missing_gpu_figures
from ecorl.devices.card import CARD_FIGURES
from ecorl.errors import ConfigError, EcorlError
from ecorl.records import Action, ActionCost, PathCost, SchedulerState, Stage, weakest
from ecorl.scheduler.features import N_FEATURES, NAMES, SCHEMA, Observed, features
from ecorl.scheduler.paper_table import paper_table
from ecorl.scheduler.policies import Proposal, RunSetting
from ecorl.scheduler.tables import COLUMN, CostTable, Setting, roofline_table
from ecorl.stages import ACTIONS, FROZEN_STAGES, Carry, Rules, Work, may_leave_gpu, permitted

log = logging.getLogger(__name__)

META_SCHEMA, META_NAMES, META_RECORD = "ecorl.schema", "ecorl.inputs", "ecorl.record"

SHIPPED = "scheduler.onnx"
"""The policy that travels with the package, in ``ecorl/scheduler/shipped``."""

_KEY = "placement.policy.path"
_PACKED = struct.Struct(f"{N_FEATURES}f")
"""Floats straight into the network's input, in half the time of an array assignment."""
_CARD_FIGURES = ("idle_w", *CARD_FIGURES)
_N_LENGTHS = 5
_OCTAVES = 4.0
"""A table spans lengths of a factor of 4 on `_N_LENGTHS` points; the next starts where it ends."""

_PROMPT_STEP = 1.19
"""Prompts within 19 % of one another share a table."""

_MAX_TABLES = 64
_UNKNOWN_SHARES = (0.40, 0.25, 0.20, 0.15)
"""Tasks of the prompts where a run does not tell them: the mix of the paper."""


class PolicyFile:
    """A policy file, checked and loaded.

    Args:
        path: an ONNX file made by ``ecorl policy export``; None: the shipped one.

    Attributes:
        record: how the policy was made.
        energy_margin: the energy guard under which it was trained, or None.

    Raises:
        ConfigError: when it cannot be read, is no policy file, or has another schema.
    """

    def __init__(self, path: Path | None = None) -> None:
        import onnxruntime as ort

        self.path = path or shipped_path()
        options = ort.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 4
        try:
            content = self.path.expanduser().read_bytes()
        except OSError as error:
            raise ConfigError(_KEY, str(self.path), f"a readable file ({error})") from error
        try:
            # ONNX Runtime has no exception of its own that all its failures share.
            self._session = ort.InferenceSession(
                content, options, providers=["CPUExecutionProvider"]
            )
        except _ort_errors() as error:
            allowed = f"an ONNX file that ecorl policy export made ({_one_line(error)})"
            raise ConfigError(_KEY, str(self.path), allowed) from error
        self.metadata: Mapping[str, str] = self._session.get_modelmeta().custom_metadata_map
        self._check()
        self.record = self._read_record()
        margin = self.record.get("energy_margin")
        # A policy is only as good as the guards that it learned beside: one that was never let
        # through at a loss does not know what that costs. So it keeps them where a run has none.
        self.energy_margin = float(margin) if isinstance(margin, int | float) else None
        self._state = np.zeros((1, N_FEATURES), dtype=np.float32)
        self._logits = np.zeros((1, len(ACTIONS)), dtype=np.float32)
        self._binding = self._session.io_binding()
        # Both live as long as the file does, so the pointers stay good.
        self._binding.bind_input(
            "state", "cpu", 0, np.float32, self._state.shape, self._state.ctypes.data
        )
        self._binding.bind_output(
            "logits", "cpu", 0, np.float32, self._logits.shape, self._logits.ctypes.data
        )

    def logits(self, state: tuple[float, ...]) -> npt.NDArray[np.float32]:
        """Logits of one state ``[3] float32``; valid until the next call."""
        _PACKED.pack_into(self._state.data, 0, *state)
        self._session.run_with_iobinding(self._binding)
        first: npt.NDArray[np.float32] = self._logits[0]
        return first

    def batch(self, states: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Logits of many states, ``[n, n_features]`` to ``[n, 3] float32``."""
        (found,) = self._session.run(["logits"], {"state": states})
        return np.asarray(found, dtype=np.float32)

    def _read_record(self) -> dict[str, Any]:
        try:
            found = json.loads(self.metadata.get(META_RECORD, "{}"))
        except ValueError as error:
            allowed = "a policy file whose training record is JSON"
            raise ConfigError(_KEY, str(self.path), allowed) from error
        return found if isinstance(found, dict) else {}

    def _check(self) -> None:
        schema = self.metadata.get(META_SCHEMA)
        if schema != SCHEMA:
            allowed = f"a policy with the schema {SCHEMA} (this one has {schema or 'none'})"
            raise ConfigError(_KEY, str(self.path), allowed)
        try:
            names = tuple(json.loads(self.metadata.get(META_NAMES, "[]")))
        except (ValueError, TypeError):
            names = ()
        if names != NAMES:
            other = sorted(set(map(str, names)) ^ set(NAMES))[:4]
            allowed = f"a policy whose inputs are those of {SCHEMA} (they differ in {other})"
            raise ConfigError(_KEY, str(self.path), allowed)
        shapes = {i.name: i.shape for i in self._session.get_inputs()}
        outputs = {o.name: o.shape for o in self._session.get_outputs()}
        if shapes.get("state", [0])[-1] != N_FEATURES or outputs.get("logits", [0])[-1] != 3:
            allowed = f"state [n, {N_FEATURES}] in and logits [n, 3] out"
            raise ConfigError(_KEY, str(self.path), allowed)


def shipped_path() -> Path:
    """Where the policy lies that travels with the package.

    Raises:
        ConfigError: when it is not there (``make policy`` makes it).
    """
    path = Path(str(resources.files("ecorl.scheduler") / "shipped" / SHIPPED))
    if not path.is_file():
        raise ConfigError(_KEY, None, f"a policy file; the shipped one is not at {path}")
    return path


def load(path: Path | None) -> LearnedScheduler:
    """Factory of the entry point ``ecorl`` in the group ``ecorl.policies``."""
    return LearnedScheduler(PolicyFile(path))


class LearnedScheduler:
    """The learned policy in a run.

    Args:
        file: the network.
    """

    name = "learned"

    def __init__(self, file: PolicyFile) -> None:
        self.file = file
        self._setting: RunSetting | None = None
        self._tables: dict[tuple[Any, ...], _RunTable] = {}

    def bind(self, setting: RunSetting) -> None:
        """Take what the run is; comes before the first decision.

        Raises:
            ConfigError: when a profile lacks a figure that a stage's price needs.
        """
        models = {s: m for s, m in setting.models.items() if m is not None}
        self._setting = replace(setting, models=models)
        self._tables.clear()
        if not any(stage in models for stage in FROZEN_STAGES):
            return
        missing = [] if setting.devices.calibration == "paper" else missing_gpu_figures(setting.gpu)
        for key in missing:
            setting.gpu.figure(key)  # refuses, and names the file
        for key in _CARD_FIGURES:
            setting.card.figure(key)

    def propose(self, state: SchedulerState) -> Proposal:
        """The action with the greatest logit among those that the guards let through."""
        if not may_leave_gpu(state.stage):
            return Action.GPU, f"{state.stage} stays on the GPU", ()
        table = self._table(state)
        if table is None:
            return Action.GPU, "what the stages cost is not known", ()
        view = table.view(state)
        if view.may[0] + view.may[1] <= 0.0:
            return Action.GPU, f"the guards leave a1 alone: {view.why_not()}", view.costs()
        logits = self.file.logits(view.state()).tolist()
        code = 0
        for other in (1, 2):
            if view.may[other - 1] > 0.0 and logits[other] > logits[code]:
                code = other
        return ACTIONS[code], view.reason(code, logits), view.costs()

    def _table(self, state: SchedulerState) -> _RunTable | None:
        if self._setting is None:
            return None
        work = state.work
        if work.n_sequences < 1 or work.n_output_tokens < 1:
            return None
        length = work.n_output_tokens / work.n_sequences
        prompt = max(work.n_tokens - work.n_output_tokens, 0) / work.n_sequences
        octave = math.floor(math.log(length, _OCTAVES))
        step = round(math.log(prompt, _PROMPT_STEP)) if prompt >= 1.0 else -1
        key = (
            state.algorithm,
            work.n_sequences,
            octave,
            step,
            Stage.REFERENCE in self._setting.models,
        )
        found = self._tables.get(key)
        if found is None:
            if len(self._tables) >= _MAX_TABLES:
                self._tables.pop(next(iter(self._tables)))
            found = self._tables[key] = _RunTable(
                self._setting, state, octave, step, self.file.energy_margin
            )
        return found if found.known else None


class _RunTable:
    """Costs of batches of one size and kind, ready for quick look-up."""

    def __init__(
        self,
        setting: RunSetting,
        state: SchedulerState,
        octave: int,
        step: int,
        margin: float | None,
    ) -> None:
        self.setting, self.margin = setting, margin
        run = Setting(
            algorithm=state.algorithm,
            models=setting.models,
            n_rows=state.work.n_sequences,
            prompt_length=_PROMPT_STEP**step if step >= 0 else 0.0,
            gpu=setting.gpu,
            n_gpus=setting.devices.n_gpus,
            card=setting.card,
            n_cards=1,
            with_reference=Stage.REFERENCE in setting.models,
        )
        lengths = np.geomspace(_OCTAVES**octave, _OCTAVES ** (octave + 1), _N_LENGTHS)
        make = paper_table if setting.devices.calibration == "paper" else roofline_table
        self.known = False
        self.seen: frozenset[Stage] = frozenset()
        try:
            table = make(run, lengths)
        except EcorlError as error:
            log.warning("the learned policy cannot price this run's stages: %s", error)
            return
        self.known = True
        self._prepare(table, octave, state)

    def _prepare(self, table: CostTable, octave: int, state: SchedulerState) -> None:
        self._first = math.log(_OCTAVES**octave)
        self._slope = (_N_LENGTHS - 1) / math.log(_OCTAVES)
        self._lengths = list(map(float, table.lengths))
        self._rows = [list(map(float, row)) for row in table.values]
        self._computed = self._rows
        self._pairs = _pairs(self._rows)
        self._paths: tuple[PathCost, ...] = ()
        self.table = table
        limits = self.setting
        margin = limits.energy_margin if limits.energy_margin is not None else self.margin
        self.rules = Rules(
            stream=0.0, early=0.0, defer=0.0,
            usable=(float(table.card_usable[0]), float(table.card_usable[1]), 0.0),
            q_max=float(limits.q_max), l_max=float(limits.l_max),
            energy_limit=1e30 if margin is None else 1.0 + margin,
        )  # fmt: skip
        self.log_rows = math.log2(state.work.n_sequences)

    def view(self, state: SchedulerState) -> _View:
        """Costs and guards of one decision."""
        work = state.work
        if state.paths is not self._paths:
            self._rescale(state)
        length = work.n_output_tokens / work.n_sequences
        x = (math.log(length) - self._first) * self._slope
        low = min(max(int(x), 0), _N_LENGTHS - 2)
        shorter, longer = self._lengths[low], self._lengths[low + 1]
        share = min(max((length - shorter) / (longer - shorter), 0.0), 1.0)
        row = [a + share * d for a, d in self._pairs[low]]
        costs = _work(row, self.table, 1.0 if state.fpga_available else 0.0)
        card_s = costs.card_s[0 if state.stage is Stage.REWARD else 1]
        backlog_s = state.fpga_queue * card_s
        carry = Carry(
            0.0, backlog_s, backlog_s, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, backlog_s, 1.0, 0.0, 0.0,
            0.0, backlog_s, 0.0, 0.0, 0.0, 0.0, 0.0,
        )  # fmt: skip
        may = permitted(state.stage, carry, costs, self.rules, work.mean_length)
        return _View(self, state, costs, carry, may)

    def _rescale(self, state: SchedulerState) -> None:
        """Bring the GPU path's computed costs to what the run has seen of them.

        A roofline is a lower bound; small models take many times as long. The measured mean a
        token decides the level of each stage, the computed table how it changes with length.
        """
        self._paths = state.paths
        middle = np.array(self._computed[len(self._computed) // 2])
        n_tokens = state.work.n_sequences * math.exp(
            self._first + (len(self._computed) // 2) / self._slope
        )
        factors = np.ones(len(middle))
        for path in state.paths:
            for unit, per_token in (("s", path.time_s_per_token), ("j", path.energy_j_per_token)):
                for name in _columns_of(path.stage, unit):
                    if path.count >= _LEAST_COUNT and middle[COLUMN[name]] > 0 and per_token > 0:
                        factors[COLUMN[name]] = per_token * n_tokens / middle[COLUMN[name]]
        self._rows = [list(map(float, np.array(row) * factors)) for row in self._computed]
        self._pairs = _pairs(self._rows)
        self.seen = frozenset(p.stage for p in state.paths if p.count >= _LEAST_COUNT)


def _pairs(rows: list[list[float]]) -> list[list[tuple[float, float]]]:
    """Value and rise to the next row, for each column of each row but the last."""
    return [
        [(a, b - a) for a, b in zip(below, above, strict=True)] for below, above in pairwise(rows)
    ]


_LEAST_COUNT = 5
"""Executions from which a mean counts; the first are slower than the rest."""


def _columns_of(stage: Stage, unit: str) -> tuple[str, ...]:
    if stage is Stage.GENERATION:
        return (f"generation_short_{unit}", f"generation_long_{unit}")
    return (f"{stage}_{unit}",)


def _work(row: list[float], table: CostTable, up: float) -> Work:
    """The work of an iteration from a row of the table."""
    generation_s, generation_j = row[_SHORT_S], row[_SHORT_J]
    actor_s, actor_j = row[_ACTOR_S], row[_ACTOR_J]
    forward_s = actor_s * table.forward_share
    early = table.early_share
    critic_s, critic_j = row[_CRITIC_S], row[_CRITIC_J]
    return Work(
        generation_s, generation_j, (generation_s,), (1.0,),
        row[_GPU_S], row[_GPU_J], row[_CARD_S],
        table.resync_s, forward_s, actor_s - forward_s, actor_j, early * forward_s,
        early * table.forward_share * actor_j, critic_s, critic_j, table.swap_share * critic_s,
        table.swap_share * critic_j, table.contention, table.gpu_idle_w, table.card_active_w,
        table.card_idle_w, 1.0, 0.0, 0.0, up, 0.0, 0.0, 23.0, 0.0, 1.0, 85.0, 0.5, 1.0,
    )  # fmt: skip


_SHORT_S, _SHORT_J = COLUMN["generation_short_s"], COLUMN["generation_short_j"]
_ACTOR_S, _ACTOR_J = COLUMN["actor_train_s"], COLUMN["actor_train_j"]
_CRITIC_S, _CRITIC_J = COLUMN["critic_train_s"], COLUMN["critic_train_j"]
_GPU_S = slice(COLUMN["reward_s"], COLUMN["critic_s"] + 1)
_GPU_J = slice(COLUMN["reward_j"], COLUMN["critic_j"] + 1)
_CARD_S = slice(COLUMN["reward_card_s"], COLUMN["critic_card_s"] + 1)


class _View:
    """One decision: what is known, what may be done, and what it would cost."""

    __slots__ = ("carry", "may", "scheduler_state", "table", "work")

    def __init__(
        self,
        table: _RunTable,
        state: SchedulerState,
        work: Work,
        carry: Carry,
        may: tuple[float, float],
    ) -> None:
        self.table, self.scheduler_state = table, state
        self.work, self.carry, self.may = work, carry, may

    def state(self) -> tuple[float, ...]:
        """The network's input."""
        state = self.scheduler_state
        power_mean, power_spread = _mean_and_spread(state.gpu_power_share)
        used_mean, used_spread = _mean_and_spread(state.gpu_utilisation)
        seen = Observed(
            state.work.mean_length, _UNKNOWN_SHARES, power_mean,
            power_spread, used_mean, used_spread, self.table.log_rows,
        )  # fmt: skip
        return features(state.stage, self.carry, self.work, self.table.rules, seen, self.may)

    def costs(self) -> tuple[ActionCost, ...]:
        """What each action would cost; the record's own form."""
        state, work = self.scheduler_state, self.work
        place = 0 if state.stage is Stage.REWARD else 1
        card_s, wait_s = work.card_s[place], self.carry.card_s + work.card_s[place]
        energy_j = work.card_active_w * card_s + work.gpu_idle_w * wait_s
        provenance = self.table.table.provenance
        for path in state.paths:
            if path.stage is state.stage and state.stage in self.table.seen:
                provenance = weakest(provenance, path.provenance)
        return (
            ActionCost(Action.GPU, work.gpu_s[place], work.gpu_j[place], 0.0, provenance),
            ActionCost(Action.FPGA, wait_s, energy_j, wait_s, provenance),
            ActionCost(Action.CONCURRENT, wait_s, energy_j, wait_s, provenance),
        )

    def why_not(self) -> str:
        """Which guard leaves a1 alone."""
        state, rules = self.scheduler_state, self.table.rules
        place = 0 if state.stage is Stage.REWARD else 1
        if not rules.usable[place]:
            return "; ".join(self.table.table.notes) or "the card cannot run this stage"
        if not state.fpga_available:
            return "the FPGA path is not available"
        if state.work.mean_length > rules.l_max:
            return f"the mean length of {state.work.mean_length:.0f} is above {rules.l_max:.0f}"
        if state.fpga_queue >= rules.q_max:
            return f"the queue of {state.fpga_queue} has reached {rules.q_max:.0f}"
        return f"an offload's energy is above {rules.energy_limit:g} x the GPU path's"

    def reason(self, code: int, logits: list[float]) -> str:
        """One sentence for the record."""
        place = 0 if self.scheduler_state.stage is Stage.REWARD else 1
        work = self.work
        seen = "measured" if self.scheduler_state.stage in self.table.seen else "modelled"
        # One format string: this is on the path of every decision.
        return _REASON % (
            ACTIONS[code].value,
            *logits,
            work.gpu_s[place],
            seen,
            work.card_s[place],
            self.carry.card_s,
        )


_REASON = (
    "the network ranks %s first (logits %.1f, %.1f, %.1f); GPU %.3g s (%s), card %.3g s "
    "behind %.3g s"
)


def _mean_and_spread(shares: tuple[float | None, ...]) -> tuple[float, float]:
    """Mean and standard deviation of the shares that are known; the middle where none is."""
    known: tuple[float, ...] = shares  # type: ignore[assignment]  # nearly always
    try:
        total = sum(known)
    except TypeError:
        known = tuple(s for s in shares if s is not None)
        total = sum(known)
    n = len(known)
    if n == 0:
        return 0.5, 0.0
    mean = total / n
    # hypot is the root of the sum of squares, in one call.
    square = math.hypot(*known) ** 2 / n - mean * mean
    return mean, math.sqrt(square) if square > 0.0 else 0.0


def _ort_errors() -> tuple[type[Exception], ...]:
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    names = ("InvalidProtobuf", "InvalidGraph", "InvalidArgument", "Fail", "NoModel",
             "NoSuchFile", "NotImplemented", "RuntimeException", "EPFail")  # fmt: skip
    found = [getattr(state, name) for name in names if hasattr(state, name)]
    return (RuntimeError, ValueError, *found)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:160]
