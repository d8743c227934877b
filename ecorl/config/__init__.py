"""The configuration: frozen pydantic models, read from TOML, overridden by flags.

`load_config` turns every mistake into one `ConfigError` that names the key, the value, what is
allowed, and the file and line where that is known. Back-ends are chosen by a ``type`` key.
The resolved config is saved with each run (`config_toml`) and reads back equal.
"""

from __future__ import annotations

from ecorl.config.carbon import (
    CarbonConfig,
    ConstantFeedConfig,
    ElectricityMapsFeedConfig,
    FeedConfig,
    ReplayFeedConfig,
    SyntheticFeedConfig,
    UkFeedConfig,
    WattTimeFeedConfig,
)
from ecorl.config.devices import (
    DeviceConfig,
    LocalRuntimeConfig,
    Place,
    RayRuntimeConfig,
    RuntimeConfig,
)
from ecorl.config.placement import (
    EngineConfig,
    FaultInjection,
    FpgaEngineConfig,
    LearnedPolicyConfig,
    LookaheadPolicyConfig,
    OffloadEngine,
    PlacementConfig,
    PluginEngineConfig,
    Policy,
    StaticPolicyConfig,
    ThresholdPolicyConfig,
    TorchEngineConfig,
)
from ecorl.config.reading import (
    config_changes_toml,
    config_toml,
    load_config,
    parse_config,
    preset_names,
    read_config_text,
    read_toml,
    validate_config,
)
from ecorl.config.run import Config
from ecorl.config.telemetry import (
    AccountingConfig,
    AutoSourceConfig,
    GpuPower,
    LedgerConfig,
    ModelledSourceConfig,
    NullSourceConfig,
    NvmlSourceConfig,
    RaplSourceConfig,
    ReplaySourceConfig,
    TelemetryConfig,
    XrtSourceConfig,
)
from ecorl.config.trainer import ArithmeticTask, FilesTask, Task, TrainerConfig

__all__ = [
    "AccountingConfig",
    "ArithmeticTask",
    "AutoSourceConfig",
    "CarbonConfig",
    "Config",
    "ConstantFeedConfig",
    "DeviceConfig",
    "ElectricityMapsFeedConfig",
    "EngineConfig",
    "FaultInjection",
    "FeedConfig",
    "FilesTask",
    "FpgaEngineConfig",
    "GpuPower",
    "LearnedPolicyConfig",
    "LedgerConfig",
    "LocalRuntimeConfig",
    "LookaheadPolicyConfig",
    "ModelledSourceConfig",
    "NullSourceConfig",
    "NvmlSourceConfig",
    "OffloadEngine",
    "Place",
    "PlacementConfig",
    "PluginEngineConfig",
    "Policy",
    "RaplSourceConfig",
    "RayRuntimeConfig",
    "ReplayFeedConfig",
    "ReplaySourceConfig",
    "RuntimeConfig",
    "StaticPolicyConfig",
    "SyntheticFeedConfig",
    "Task",
    "TelemetryConfig",
    "ThresholdPolicyConfig",
    "TorchEngineConfig",
    "TrainerConfig",
    "UkFeedConfig",
    "WattTimeFeedConfig",
    "XrtSourceConfig",
    "config_changes_toml",
    "config_toml",
    "load_config",
    "parse_config",
    "preset_names",
    "read_config_text",
    "read_toml",
    "validate_config",
]
