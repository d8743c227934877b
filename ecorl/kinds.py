"""Enums of the records: provenances, stages, algorithms, actions, devices, events, faults.

`ecorl.records` hands them out beside the records that hold them.
"""

from __future__ import annotations

from enum import StrEnum
from functools import cache
from typing import TypeAlias


class Provenance(StrEnum):
    """Where a figure came from. Figures of different provenance never share a table column."""

    MEASURED = "measured"
    """Read from an instrument or a clock on this machine in this run."""
    REPLAYED = "replayed"
    """Read from a recording of an earlier measurement."""
    EMULATED = "emulated"
    """Produced by the C-simulation or by a device without hardware behind it."""
    MODELLED = "modelled"
    """Computed from a device profile, a cycle model or a roofline."""
    PUBLISHED = "published"
    """Taken from a paper or a data sheet as printed."""


_WEAKNESS = list(Provenance)


def weakest(*provenances: Provenance) -> Provenance:
    """The provenance of a figure derived from several: that of the weakest part."""
    return max(provenances, key=_WEAKNESS.index)


class Stage(StrEnum):
    """The stages of an RLHF iteration; their order is that of the one-hot code in Eq. 6."""

    GENERATION = "generation"
    REWARD = "reward"
    REFERENCE = "reference"
    CRITIC = "critic"
    ACTOR_TRAIN = "actor_train"
    CRITIC_TRAIN = "critic_train"


INFERENCE_STAGES = (Stage.REWARD, Stage.REFERENCE, Stage.CRITIC)
"""Single forward passes; only frozen models among them (reward, reference) may leave the GPU."""


Role: TypeAlias = str
"""Which model of a stage: the stage's name (``reward``), or the name with the model's behind a
colon where the stage has several (``reward:math``, ``reward:code``). A dict with roles as keys can
be asked for a `Stage`: the name of a stage is the role of its only model."""


def role_of(stage: Stage, name: str = "") -> Role:
    """The role of one of a stage's models; without a name that of its only one."""
    return f"{stage}:{name}" if name else str(stage)


@cache
def stage_of(role: Role) -> Stage:
    """The stage that a role belongs to.

    Raises:
        ValueError: when it begins with no stage's name.
    """
    return Stage(role.partition(":")[0])


EVALUATION = "evaluation"
"""Name of what the framework does to evaluate its policy: generation, rewards and all else of it
are one execution of the role `EVALUATION_ROLE`. It is no stage of an iteration: nothing is decided
about it, no policy sees it, and nothing is trained on its tokens."""

EVALUATION_ROLE: Role = role_of(Stage.GENERATION, EVALUATION)
"""The role of evaluations; of the stage of generation, for they generate."""


class DeviceKind(StrEnum):
    """What kind of machine a device is."""

    GPU = "gpu"  # a graphics processor on which a framework trains
    FPGA = "fpga"  # an accelerator card that runs the INT8 kernels, real or simulated
    CPU = "cpu"  # the host's processor, and its memory


GPU_NAME, HOST_NAME = "GPU", "host"
"""What a user reads for where the framework itself computes: one of the two in a run."""


def place_name(kind: DeviceKind) -> str:
    """Name where the framework itself computes.

    Args:
        kind: of the device that stands for it; a processor is the host, all else a GPU.
    """
    return HOST_NAME if kind is DeviceKind.CPU else GPU_NAME


def kind_in_name(device_id: str) -> DeviceKind:
    """The kind of a device of which only the name is known.

    Args:
        device_id: as telemetry names devices: ``gpu0``, ``fpga0``, ``cpu0`` or ``dram0``, with or
            without the machine's name and a slash before it; any other name counts as a GPU's.
    """
    kind = device_id.rpartition("/")[2].rstrip("0123456789")
    named = {"cpu": DeviceKind.CPU, "dram": DeviceKind.CPU, "fpga": DeviceKind.FPGA}
    return named.get(kind, DeviceKind.GPU)


class EnergyMethod(StrEnum):
    """How the energy of a stage execution was found."""

    COUNTER = "counter"  # the rise of the device's energy counter
    INTEGRAL = "integral"  # the zero-order-hold integral of the power readings
    # the integral, since the counter stood still while the device drew power
    INTEGRAL_COUNTER_STOPPED = "integral_counter_stopped"
    # the integral, since the counter counts something else than the device
    INTEGRAL_COUNTER_FOREIGN = "integral_counter_foreign"
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
    WIDTH = "width"  # training goes on with another number of processes
    FINISH = "finish"  # the run is complete
    STOP = "stop"  # the run ended before it was complete
    FAILURE = "failure"  # the run ended by an exception, which the detail names
    GPU_PATH = "gpu_path"  # which device profile and power source stand for the GPU path, and why
    NO_REFERENCE = "no_reference"  # the reference is no stage of the run, and why
    POWER_UNREAD = "power_unread"  # a device whose power is not read, and why
    # what the framework's training loop lets ecorl do beyond moving whole batches
    ABILITIES = "abilities"
    WEIGHTS = "weights"  # an engine took over the weights of a refreshed model
    BESIDE = "beside"  # what another instrument found of the same time, as JSON
    CARBON_BUDGET = "carbon_budget"  # how much of what it may emit the run has emitted
    HOOK_CLOCK = "hook_clock"  # how long ecorl itself took on the training thread
    LEDGER_ROWS_DROPPED = "ledger_rows_dropped"  # the record lacks rows that could not be written


class FaultKind(StrEnum):
    """Faults that ecorl itself finds. An exception from elsewhere goes by its class's name."""

    ENGINE_TIMEOUT = "EngineTimeout"  # an engine did not answer before the deadline
    ENGINE_CRASHED = "EngineCrashed"  # an engine's process ended and is started again
    ENGINE_GIVEN_UP = "EngineGivenUp"  # an engine ended too often and is not started again
    # an engine failed too often in a row and gets no batches for a while
    ENGINE_QUARANTINED = "EngineQuarantined"
    NO_ENGINE = "NoEngine"  # a model has no engine from the start: its stage is not offloaded
    ENGINE_RETIRED = "EngineRetired"  # a stage stays on the GPU path for the rest of the run
    INVALID_RESULT = "InvalidResult"  # an engine answered with values that cannot be used
    # a card's figures lie beyond what the device can do, and are dropped
    PHYSICAL_BOUND_ERROR = "PhysicalBoundError"
    # a checkpoint of the trainer lacks files and cannot be resumed from
    CHECKPOINT_INCOMPLETE = "CheckpointIncomplete"
    POWER_RESTORED = "power_restored"  # a device's power readings are back after a fault
    # the process that places stages ended; until it is back all stages run on the GPU path
    SCHEDULER_LOST = "SchedulerLost"
    # the process that reads a machine's power ended, or the machine did
    MONITOR_LOST = "MonitorLost"
    # the record that was kept on a machine cannot be fetched: its energies are missing
    NODE_RECORD_LOST = "NodeRecordLost"
    # a feed of carbon intensities had no value that counts: the next one is asked
    FEED_PASSED_OVER = "FeedPassedOver"
    INTENSITY_UNKNOWN = "IntensityUnknown"  # no feed has a value: emissions are missing from here
    INTENSITY_KNOWN = "intensity_known"  # a feed has a value again
    BESIDE_FAILED = "BesideFailed"  # another instrument that ran beside found nothing
    CLOCK_JUMPED = "ClockJumped"  # the wall clock was set while the run was under way
    GEAR_OVERFLOW = "GearOverflow"  # a step in a low gear gave no finite gradient, and was redone
    # a step in a low gear gave no finite gradient, and the optimizer has not taken it
    GEAR_SKIPPED = "GearSkipped"
    # a gear is not chosen any more: too many steps in a row gave no finite gradient
    GEAR_RETIRED = "GearRetired"
    GEAR_BARRED = "GearBarred"  # a gear's probabilities are too far from the rollout's
    # the control path itself failed: training runs on without it
    CONTROL_FAILED = "ControlFailed"
    # another number of training processes was asked for and could not be begun with: training
    # goes on with as many as before
    WIDTH_UNCHANGED = "WidthUnchanged"
    # the Ray cluster of the run's own ended: training goes on from its newest checkpoint on another
    CLUSTER_LOST = "ClusterLost"
    NOT_COUNTED = "NotCounted"  # rows or tokens of a training's batches are not known


class EvaluationPhase(StrEnum):
    """When an evaluation was made. A script may record phases under other names beside these."""

    BEFORE = "before"  # with the weights that training begins with
    AFTER = "after"  # with the weights that training ends with


_AFTER_STEP = "step "


def phase_after_step(step: int) -> str:
    """The phase of an evaluation that is made along training.

    Args:
        step: after which.
    """
    return f"{_AFTER_STEP}{step}"


def step_of_phase(phase: str) -> int | None:
    """The step after which an evaluation was made along training; None for any other phase."""
    number = phase.removeprefix(_AFTER_STEP)
    return int(number) if number != phase and number.isdecimal() else None


class Algorithm(StrEnum):
    """RL algorithms with a stage graph."""

    PPO = "ppo"
    GRPO = "grpo"
    RLOO = "rloo"
    REINFORCE_PP = "reinforce++"
    DAPO = "dapo"


class Action(StrEnum):
    """The three actions of the paper's scheduler (section 3.5)."""

    GPU = "gpu"
    """a1: exclusively on the GPU, the exact path."""
    FPGA = "fpga"
    """a2: on the FPGA, the GPU waits."""
    CONCURRENT = "concurrent"
    """a3: on the FPGA while the GPU goes on; joined at the completion barrier."""


class GuardRefusal(StrEnum):
    """Why the guards keep a stage on the GPU that might have been offloaded."""

    NOT_FROZEN = "not_frozen"
    """The stage's model is trained, so that the card's copy of it would be stale."""
    UNAVAILABLE = "unavailable"
    """The FPGA path is down or quarantined."""
    CANNOT_RUN = "cannot_run"
    """The card cannot run the stage's model, e.g. because it does not fit its memory."""
    QUEUE_FULL = "queue_full"
    """As many batches wait for the FPGA as the configuration allows."""
    TOO_LONG = "too_long"
    """The mean row is longer than the configuration allows."""
    ENERGY = "energy"
    """The offload's modelled energy is above the GPU path's by more than the allowed margin."""
    COST_UNKNOWN = "cost_unknown"
    """The energy guard is on and the cost model cannot tell what the offload costs."""
