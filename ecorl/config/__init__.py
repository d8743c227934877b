"""The configuration: frozen pydantic models, read from TOML, overridden by flags.

`load_config` turns every mistake into one `ConfigError` that names the key, the value, what is
allowed, and the file and line where that is known. Back-ends are chosen by a ``type`` key.
The resolved config is saved with each run by `save_config` and reads back equal.
"""

from __future__ import annotations

from ecorl.config.backends import (
    ArithmeticTask,
    AutoSourceConfig,
    FaultInjection,
    FilesTask,
    FpgaEngineConfig,
    GpuPower,
    LearnedPolicyConfig,
    LookaheadPolicyConfig,
    ModelledSourceConfig,
    NullSourceConfig,
    NvmlSourceConfig,
    OffloadEngine,
    PluginEngineConfig,
    Policy,
    RaplSourceConfig,
    ReplaySourceConfig,
    StaticPolicyConfig,
    Task,
    ThresholdPolicyConfig,
    TorchEngineConfig,
    XrtSourceConfig,
)
from ecorl.config.models import (
    AccountingConfig,
    Config,
    DeviceConfig,
    EngineConfig,
    LedgerConfig,
    PlacementConfig,
    TelemetryConfig,
    TrainerConfig,
)
from ecorl.config.reading import (
    config_toml,
    load_config,
    parse_config,
    preset_names,
    read_config_text,
    read_toml,
    save_config,
    validate_config,
)

__all__ = [
    "AccountingConfig",
    "ArithmeticTask",
    "AutoSourceConfig",
    "Config",
    "DeviceConfig",
    "EngineConfig",
    "FaultInjection",
    "FilesTask",
    "FpgaEngineConfig",
    "GpuPower",
    "LearnedPolicyConfig",
    "LedgerConfig",
    "LookaheadPolicyConfig",
    "ModelledSourceConfig",
    "NullSourceConfig",
    "NvmlSourceConfig",
    "OffloadEngine",
    "PlacementConfig",
    "PluginEngineConfig",
    "Policy",
    "RaplSourceConfig",
    "ReplaySourceConfig",
    "StaticPolicyConfig",
    "Task",
    "TelemetryConfig",
    "ThresholdPolicyConfig",
    "TorchEngineConfig",
    "TrainerConfig",
    "XrtSourceConfig",
    "config_toml",
    "load_config",
    "parse_config",
    "preset_names",
    "read_config_text",
    "read_toml",
    "save_config",
    "validate_config",
]
