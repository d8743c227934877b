"""Loads transformers models for the torch engine, on the devices that torch finds.

torch is imported inside functions.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ecorl.engines.models.gating import GATED_ARCHITECTURE
from ecorl.engines.protocol import EngineReport
from ecorl.errors import CheckpointError, ConfigError, EngineCrashed, MissingToolError
from ecorl.records import ModelShape, Provenance, Stage

HOST = "cpu"
"""torch's name of the host's processor."""

KEY = "engine.offload.device"


def check_device(device: str) -> None:
    """Check that torch finds a device here.

    Args:
        device: ``cpu``, or a CUDA device such as ``cuda:1``.

    Raises:
        ConfigError: when there is no such device; the message lists those that there are.
        MissingToolError: without torch, where a CUDA device is asked for.
    """
    if device == HOST:
        return
    try:
        import torch
    except ImportError as error:
        raise MissingToolError(f"the torch engine needs torch: {error}") from error
    n_found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if _number(device) < n_found:
        return
    found = ", ".join(f"cuda:{i} ({torch.cuda.get_device_name(i)})" for i in range(n_found))
    there = f"or {found}" if found else "since torch finds no CUDA device here"
    raise ConfigError(KEY, device, f"{HOST}, {there}")


def cuda_uuid(device: str) -> str | None:
    """Find the UUID of a CUDA device, written as NVML writes it.

    By UUID, because CUDA and NVML number GPUs differently (fastest first against bus order).

    Args:
        device: such as ``cuda:1``; it is there.

    Returns:
        The UUID; None where torch does not tell it.
    """
    import torch

    uuid = getattr(torch.cuda.get_device_properties(_number(device)), "uuid", None)
    return None if uuid is None else nvml_name(str(uuid))


def nvml_name(uuid: str) -> str:
    """Write a UUID that torch tells as NVML does.

    Args:
        uuid: as torch tells it.
    """
    return uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"


def _number(device: str) -> int:
    return int(device.partition(":")[2])


HOST_DEVICE = "host_cpu"
"""The device profile that means torch's ``cpu`` where an engine is told no torch device."""


DTYPES = ("float32", "bfloat16", "float16", "auto")
"""Names of the supported dtypes; ``auto`` is the dtype of the checkpoint."""


def check_dtype(dtype: str) -> str:
    """Return the name of a dtype after a check.

    Raises:
        ConfigError: when it is none of `DTYPES`.
    """
    if dtype not in DTYPES:
        raise ConfigError("dtype", dtype, f"one of {', '.join(DTYPES)}")
    return dtype


def host_report(started_s: float) -> EngineReport:
    """Report the measured time since `started_s` as the device's; telemetry measures the energy."""
    elapsed_s = time.perf_counter() - started_s
    return EngineReport(elapsed_s, None, Provenance.MEASURED, elapsed_s)


@contextlib.contextmanager
def torch_threads(threads: int) -> Iterator[None]:
    """Set the number of torch threads within the context.

    The number belongs to the whole process, so that it is restored afterwards; nothing is set where
    it is right already, as in an engine's separate process.
    """
    import torch

    before = torch.get_num_threads()
    if before == threads:
        yield
        return
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def forward_pass(threads: int) -> Iterator[None]:
    """Disable gradients and set the number of torch threads within the context.

    Raises:
        EngineCrashed: for an error of torch.
    """
    import torch

    try:
        with torch_threads(threads), torch.no_grad():
            yield
    except (RuntimeError, IndexError, ValueError) as error:
        raise EngineCrashed(f"{type(error).__name__}: {error}") from error


def loading_errors() -> tuple[type[Exception], ...]:
    """The errors that transformers raises for a checkpoint that it cannot use.

    huggingface_hub validates its configs, with errors that derive from `Exception` alone. A value
    of an unexpected type may also fail in arithmetic, or in the access of an attribute.

    Raises:
        MissingToolError: without transformers.
    """
    try:
        from huggingface_hub.errors import StrictDataclassError
        from safetensors import SafetensorError
    except ImportError as error:
        raise MissingToolError(f"transformers' own libraries are missing: {error}") from error
    own = (OSError, ValueError, TypeError, RuntimeError, LookupError, AttributeError)
    return (*own, ArithmeticError, SafetensorError, StrictDataclassError)


def load_model(checkpoint: Path, stage: Stage, device: str, dtype: str) -> Any:
    """Load a transformers model in evaluation mode, with every weight from the checkpoint.

    Args:
        checkpoint: checkpoint folder.
        stage: ``reward`` and ``critic`` load a classifier with one label, others a language model.
        device: torch's name of it: ``cpu``, ``cuda``, or a certain CUDA device such as ``cuda:1``.
        dtype: one of `DTYPES`.

    Returns:
        The model, on its device.

    Raises:
        ConfigError: for a dtype that is none of `DTYPES`, or a CUDA device that is not there.
        CheckpointError: when the folder is missing, broken, of the wrong kind, or lacks weights;
            transformers itself would fill those at random.
        MissingToolError: without torch and transformers, or without CUDA where it is asked for.
    """
    check_dtype(dtype)
    path = Path(checkpoint).expanduser()
    if not (path / "config.json").is_file():
        raise CheckpointError(f"{path} is no checkpoint folder: it has no config.json")
    _refuse_gated(path)
    try:
        import torch
        import transformers
    except ImportError as error:
        raise MissingToolError(f"the torch engine needs torch and transformers: {error}") from error
    _check_device(device)
    options: dict[str, Any] = {"dtype": dtype, "local_files_only": True}
    loader = transformers.AutoModelForCausalLM
    if stage in (Stage.REWARD, Stage.CRITIC):
        loader = transformers.AutoModelForSequenceClassification
        options["num_labels"] = 1
    try:
        # fork_rng: making a model may draw random numbers, the trainer's stream must not shift.
        with torch.random.fork_rng(devices=[]), _no_progress_bar():
            model, info = loader.from_pretrained(path, output_loading_info=True, **options)
    except loading_errors() as error:
        raise CheckpointError(f"{path} cannot be loaded: {_one_line(error)}") from error
    if info["missing_keys"]:
        missing = ", ".join(sorted(info["missing_keys"])[:3])
        raise CheckpointError(f"{path} does not fit stage {stage}: it lacks {missing}")
    if stage in (Stage.REWARD, Stage.CRITIC) and not hasattr(model, "score"):
        raise CheckpointError(f"{path}: {type(model).__name__} has no head named score")
    return model.to(device).eval()


def _refuse_gated(path: Path) -> None:
    """Refuse a gated reward model, which transformers would load as a plain Llama classifier."""
    try:
        data = json.loads((path / "config.json").read_text("utf-8"))
        gated = GATED_ARCHITECTURE in (data.get("architectures") or ())
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return  # transformers says what is wrong with it
    if gated:
        raise CheckpointError(
            f"{path}: transformers has no {GATED_ARCHITECTURE}: a reward model with a gate runs "
            "in the trainer alone"
        )


def _one_line(error: Exception) -> str:
    """An error's text on one line, with its class where the text alone is unclear."""
    text = " ".join(str(error).split())[:300]
    if isinstance(error, TypeError | LookupError | AttributeError | ArithmeticError) or not text:
        return f"{type(error).__name__}: {text}"
    return text


def shape_of(model: Any) -> ModelShape:
    """Read the sizes of a loaded transformers model; tied weights count once."""
    config = model.config.get_text_config()
    n_params = sum(parameter.numel() for parameter in model.parameters())
    embedding = model.get_input_embeddings().weight
    head = model.get_output_embeddings()
    tied = head is not None and head.weight is embedding
    n_heads = config.num_attention_heads
    return ModelShape(
        n_layers=config.num_hidden_layers,
        hidden_size=config.hidden_size,
        intermediate_size=getattr(config, "intermediate_size", None) or 4 * config.hidden_size,
        n_heads=n_heads,
        n_kv_heads=getattr(config, "num_key_value_heads", None) or n_heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // n_heads,
        vocab_size=config.vocab_size,
        n_params=n_params,
        # A tied embedding is multiplied with as the head.
        n_params_active=n_params if tied else n_params - embedding.numel(),
    )


def default_device(profile: str) -> str:
    """Tell on which of torch's devices an engine computes that is told its profile alone.

    Args:
        profile: name of the device profile.
    """
    return HOST if profile == HOST_DEVICE else "cuda"


def _check_device(device: str) -> None:
    import torch

    if device != "cuda":
        check_device(device)
    elif not torch.cuda.is_available():
        raise MissingToolError("the torch engine needs CUDA, which torch does not find here")


@contextlib.contextmanager
def _no_progress_bar() -> Iterator[None]:
    from transformers.utils import logging as hf_logging

    shown = hf_logging.is_progress_bar_enabled()
    hf_logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            hf_logging.enable_progress_bar()
