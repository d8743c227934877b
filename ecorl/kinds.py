"""Kinds of devices, events, faults and evaluations, and of how an energy was found.

`ecorl.records` hands them out beside the records that hold them.
"""

from __future__ import annotations

from enum import StrEnum


class DeviceKind(StrEnum):
    """What kind of machine a device is."""

    GPU = "gpu"  # a graphics processor on which a framework trains
    FPGA = "fpga"  # an accelerator card that runs the INT8 kernels, real or simulated
    CPU = "cpu"  # the host's processor, and its memory


class EnergyMethod(StrEnum):
    """How the energy of a stage execution was found."""

    COUNTER = "counter"  # the rise of the device's energy counter
    INTEGRAL = "integral"  # the zero-order-hold integral of the power readings
    # the integral, since the counter stood still while the device drew power
    INTEGRAL_COUNTER_STOPPED = "integral_counter_stopped"
    DISPUTED = "disputed"  # none: counter and integral lie too far apart to believe either
    MODEL = "model"  # the running integral of a power model, which stands in the counter's place
    CYCLE_MODEL = "cycle_model"  # the cycle model of a card's kernels
    MIXED = "mixed"  # a sum over several devices whose energies were found by several methods
    NONE = "none"  # there is no energy


class EventKind(StrEnum):
    """What a run's record notes about its course."""

    START = "start"  # training begins at its first step
    RESUME = "resume"  # training goes on from a checkpoint
    # the trainer has done its last step; evaluation and saving may follow
    TRAINING_END = "training_end"
    FINISH = "finish"  # the run is complete
    STOP = "stop"  # the run ended before it was complete
    GPU_PATH = "gpu_path"  # which device profile and power source stand for the GPU path, and why
    WEIGHTS = "weights"  # an engine took over the weights of a refreshed model
    HOOK_CLOCK = "hook_clock"  # how long ecorl itself took on the training thread
    LEDGER_ROWS_DROPPED = "ledger_rows_dropped"  # the record lacks rows that could not be written


class FaultKind(StrEnum):
    """Faults that ecorl itself finds. An exception from elsewhere goes by its class's name."""

    ENGINE_TIMEOUT = "EngineTimeout"  # an engine did not answer before the deadline
    ENGINE_CRASHED = "EngineCrashed"  # an engine's process ended and is started again
    ENGINE_GIVEN_UP = "EngineGivenUp"  # an engine ended too often and is not started again
    # an engine failed too often in a row and gets no batches for a while
    ENGINE_QUARANTINED = "EngineQuarantined"
    ENGINE_RETIRED = "EngineRetired"  # a stage stays on the GPU path for the rest of the run
    INVALID_RESULT = "InvalidResult"  # an engine answered with values that cannot be used
    # a card's figures lie beyond what the device can do, and are dropped
    PHYSICAL_BOUND_ERROR = "PhysicalBoundError"
    # a checkpoint of the trainer lacks files and cannot be resumed from
    CHECKPOINT_INCOMPLETE = "CheckpointIncomplete"
    POWER_RESTORED = "power_restored"  # a device's power readings are back after a fault


class EvaluationPhase(StrEnum):
    """When an evaluation was made. A script may record phases under other names beside these."""

    BEFORE = "before"  # with the weights that training begins with
    AFTER = "after"  # with the weights that training ends with
