"""Power readings: sources, one sampling process, smoothing for control, integration for billing.

`ecorl.telemetry.sampling.sampler.Sampler` is the entrance. The chain is: a `PowerSource` (``nvml``,
``xrt``, ``rapl``, ``modelled``, ``replay``, ``null``) is read in a process of its own; its samples
go into a `PowerHistory` (energy of a time window) and an `Ema` (power for control).
"""
