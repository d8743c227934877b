"""Makes engines from the configuration. Other packages register theirs by entry point.

A plug-in registers a factory in the group ``ecorl.engines``. It is called as
``factory(checkpoint, stage, device, **options)`` and returns an
`ecorl.engines.protocol.InferenceEngine`; ``options`` is the table ``engine.offload.options``. An
engine that occupies a card's memory may give the number of bytes in an attribute ``card_bytes``.

Facts about the configured cards, their bitstreams and memory banks, are asked here too, so that a
run need not know the engines' internals.
"""

from __future__ import annotations

import logging
import os
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from ecorl import config as cfg
from ecorl.config import FaultInjection
from ecorl.devices import load_profile
from ecorl.engines import protocol
from ecorl.engines.fpga.bitstream.manifest import missing_part
from ecorl.engines.fpga.card.backend import KEY, KernelBackend, is_emulated
from ecorl.engines.fpga.kernels.banks import overfull_bank
from ecorl.engines.lanes.isolated import IsolatedEngine
from ecorl.engines.lanes.threaded import (
    AsyncEngine,
    EngineFacts,
    EngineSpec,
    ThreadedEngine,
    answer,
)
from ecorl.engines.torch.loading import HOST_DEVICE, check_dtype
from ecorl.errors import ConfigError, EngineCrashed
from ecorl.records import DeviceKind, Stage

logger = logging.getLogger(__name__)

AnyResult = TypeVar("AnyResult", protocol.ScoreResult, protocol.LogprobResult)

EXIT_CODE = 70
"""Exit code of an injected process exit (EX_SOFTWARE of sysexits.h)."""


class FaultyEngine(EngineFacts):
    """Wraps an engine and makes chosen calls fail.

    Args:
        inner: the engine that computes all calls.
        faults: kinds of faults, and the 0-based calls that they affect.
        first_call: number of the first call; a restarted engine goes on counting.
        own_process: whether the engine runs in a separate process, which ``exit`` may end.
            Elsewhere ``exit`` raises instead, since it would end the training run too.
        hang_s: how long a ``hang`` lasts unless the process is killed, s.
    """

    def __init__(
        self,
        inner: protocol.InferenceEngine,
        faults: Sequence[FaultInjection],
        *,
        first_call: int = 0,
        own_process: bool = False,
        hang_s: float = 24 * 3600.0,
    ) -> None:
        self.take_over(EngineFacts.of(inner))
        self._inner = inner
        self._faults = tuple(faults)
        self._next_call = first_call
        self._own_process, self._hang_s = own_process, hang_s

    def score(self, batch: protocol.ScoreBatch) -> protocol.ScoreResult:
        """Score as the inner engine does, with the faults of this call."""
        faults = self._begin_call()
        return _damaged(self._inner.score(batch), faults)

    def logprobs(self, batch: protocol.ScoreBatch) -> protocol.LogprobResult:
        """Compute log-probs as the inner engine does, with the faults of this call."""
        faults = self._begin_call()
        return _damaged(self._inner.logprobs(batch), faults)

    def load_weights(self, checkpoint: Path) -> str:
        """Load weights as the inner engine does; no fault is injected, and no call counted.

        Raises:
            EngineError: when the inner engine cannot take over weights.
        """
        result = answer(self._inner, protocol.Refresh(checkpoint))
        return result.digest if isinstance(result, protocol.Refreshed) else ""

    def close(self) -> None:
        """Close the inner engine."""
        self._inner.close()

    def _begin_call(self) -> list[FaultInjection]:
        """Count the call, then raise, hang or exit where one of its faults demands it."""
        call = self._next_call
        self._next_call += 1
        due = [fault for fault in self._faults if call in fault.calls]
        for kind in (fault.kind for fault in due):
            logger.warning("injected fault: %s on call %d of engine %s", kind, call, self.name)
            if kind == "hang":
                time.sleep(self._hang_s)
                raise EngineCrashed(f"injected fault: call {call} hung {self._hang_s:g} s")
            if kind == "exit" and self._own_process:
                os._exit(EXIT_CODE)
            if kind in ("raise", "exit"):
                raise EngineCrashed(f"injected fault: {kind} on call {call}")
        return due


GROUP = "ecorl.engines"


def _damaged(result: AnyResult, faults: Sequence[FaultInjection]) -> AnyResult:
    """A result with the values that faults leave of it."""
    for fault in faults:
        if fault.kind == "shape":
            result = replace(result, values=result.values[:-1])
        elif fault.kind == "nan" and isinstance(result, protocol.ScoreResult):
            values = result.values.copy()
            values[[row for row in fault.rows if 0 <= row < len(values)]] = np.nan
            result = replace(result, values=values)
        elif fault.kind == "nan":
            rows = enumerate(result.values)
            damaged = (np.full_like(v, np.nan) if i in fault.rows else v for i, v in rows)
            result = replace(result, values=tuple(damaged))
    return result


def build_engine(
    config: cfg.EngineConfig, checkpoint: Path, stage: Stage, device: str, *, dtype: str = "float32"
) -> AsyncEngine:
    """Load the configured engine, in a separate process unless ``isolated`` is false.

    Args:
        config: the ``engine`` table.
        checkpoint: Hugging Face checkpoint folder of the frozen model.
        stage: the stage that the engine serves.
        device: profile of the accelerator, by name or path. Where it is a card's, the torch engine
            rehearses it on the host and is booked as that.
        dtype: dtype of the torch engine, ``float32``, ``bfloat16``, ``float16`` or ``auto`` (as
            the checkpoint says); that of the trainer's model gives the trainer's bits. Other
            engines ignore it.

    Returns:
        The engine behind its lane; the caller closes it.

    Raises:
        ConfigError: for an unknown plug-in or dtype, or an ``exit`` fault without a separate
            process.
        UserError: when the checkpoint or a tool is missing.
        EngineError: when the engine did not start.
    """
    spec = engine_spec(config, checkpoint, stage, device, dtype=dtype)
    if config.offload.isolated:
        return IsolatedEngine(spec)
    for index, fault in enumerate(config.faults):
        if fault.kind == "exit":
            raise ConfigError(
                f"engine.faults.{index}.kind",
                fault.kind,
                "exit only with engine.offload.isolated = true: it would end the training run",
            )
    return ThreadedEngine(make_engine(spec))


def engine_spec(
    config: cfg.EngineConfig, checkpoint: Path, stage: Stage, device: str, *, dtype: str = "float32"
) -> EngineSpec:
    """Describe the configured engine, without loading it.

    Args:
        config: the ``engine`` table.
        checkpoint: Hugging Face checkpoint folder of the frozen model.
        stage: the stage that the engine serves.
        device: profile of the accelerator, by name or path.
        dtype: dtype of the torch engine, as in `build_engine`.

    Raises:
        ConfigError: for an unknown plug-in, dtype or profile.
    """
    offload = config.offload
    options: dict[str, Any]
    if isinstance(offload, cfg.PluginEngineConfig):
        find_plugin(offload.name)
        name, threads, options = offload.name, 1, dict(offload.options)
    elif isinstance(offload, cfg.TorchEngineConfig):
        name, threads, device = "torch", offload.threads, _booked_as(device)
        check_dtype(dtype)  # other engines compute in a type of their own
        options = {"threads": offload.threads, "dtype": dtype}
        if device != HOST_DEVICE:
            options["torch_device"] = offload.device
    else:
        name, threads = "fpga", offload.threads
        backend = KernelBackend.of(
            offload.host, offload.bitstream, offload.cards, may_reset=offload.isolated
        )
        options = {"build": offload.build, "threads": offload.threads, "backend": backend}
    return EngineSpec(
        offload.type, name, Path(checkpoint), stage, device, options, threads, config.faults
    )


def _booked_as(accelerator: str) -> str:
    """Name the profile by which the torch engine is booked: the host's where a card is meant."""
    profile = load_profile(accelerator)
    return HOST_DEVICE if profile.kind is DeviceKind.FPGA else profile.name


def make_engine(
    spec: EngineSpec, *, calls_done: int = 0, own_process: bool = False
) -> protocol.InferenceEngine:
    """Load an engine in this process.

    Args:
        spec: the engine to load.
        calls_done: calls made to earlier processes of this engine; injected faults go on counting.
        own_process: whether this process runs nothing else, so that faults may end it.

    Raises:
        UserError: when the checkpoint, a tool or a plug-in is missing.
        EngineCrashed: when a plug-in's factory did not return an engine.
    """
    engine = _load(spec)
    if not spec.faults:
        return engine
    return FaultyEngine(engine, spec.faults, first_call=calls_done, own_process=own_process)


def find_plugin(name: str) -> EntryPoint:
    """Find the entry point of a plug-in.

    Raises:
        ConfigError: when none has this name; the message lists the registered names.
    """
    points = entry_points(group=GROUP)
    for point in points:
        if point.name == name:
            return point
    found = sorted(points.names)
    allowed = f"one of {found}" if found else "a registered engine; none is installed"
    raise ConfigError("engine.offload.name", name, f"{allowed} (entry-point group {GROUP})")


def _load(spec: EngineSpec) -> protocol.InferenceEngine:
    # Imported here: the parent of an engine process needs neither torch nor the kernels.
    if spec.kind == "torch":
        from ecorl.engines.torch.engine import TorchEngine

        return TorchEngine(spec.checkpoint, spec.stage, device=spec.device, **spec.options)
    if spec.kind == "fpga":
        from ecorl.engines.fpga.engine import FpgaEngine

        return FpgaEngine(spec.checkpoint, spec.stage, device=spec.device, **spec.options)
    factory = find_plugin(spec.name).load()
    engine = factory(spec.checkpoint, spec.stage, spec.device, **spec.options)
    if not isinstance(engine, protocol.InferenceEngine):
        raise EngineCrashed(
            f"plug-in {spec.name} made a {type(engine).__name__}, which lacks a part of "
            "ecorl.engines.protocol.InferenceEngine"
        )
    return engine


def real_cards(config: cfg.EngineConfig) -> tuple[int, ...]:
    """Numbers of the real cards that the configured engine computes on.

    Returns:
        XRT's numbers; empty for an engine without cards, and for one whose kernels are emulated.
    """
    offload = config.offload
    if not isinstance(offload, cfg.FpgaEngineConfig) or is_emulated(offload.bitstream):
        return ()
    return tuple(offload.cards)


def missing_bitstream(config: cfg.EngineConfig) -> str | None:
    """Tell that the configured bitstream is not on this machine, in words.

    Args:
        config: the ``engine`` table.

    Returns:
        Key, path as it is configured, and what is not there; None where nothing is missing.
    """
    named = config.offload.bitstream if isinstance(config.offload, cfg.FpgaEngineConfig) else None
    if named is None:
        return None
    try:
        missing = missing_part(Path(named).expanduser())
    except RuntimeError as error:  # a user's folder, of a user that does not exist
        missing = str(error)
    return None if missing is None else f"{KEY}.bitstream = '{named}': {missing}"


def memory_conflict(engines: Iterable[AsyncEngine]) -> str | None:
    """Check that the weights of engines fit the memory banks of the card that they share.

    Returns:
        What they need of the first bank that does not hold them, in words; None when all banks do.
    """
    banks = Counter[str]()
    for engine in engines:
        banks.update(engine.card_banks or {})
    return overfull_bank(banks, {})
