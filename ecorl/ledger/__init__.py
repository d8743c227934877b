"""The run's record: one SQLite file in the run folder, one writer, many readers.

`Ledger` takes records from the training thread and writes them from a thread of its own, so that
a slow or full disk costs rows, never training time. `LedgerReader` reads a finished, a live or a
killed run. The layout of the file is documented in `ecorl.ledger.schema`.
"""

from ecorl.ledger.ledger import LEDGER_FILE, Ledger
from ecorl.ledger.reader import LedgerReader
from ecorl.ledger.rows import (
    AttemptRow,
    BarrierRow,
    CheckpointRow,
    DeviceRecord,
    DeviceRow,
    EdiRow,
    EnergySums,
    EvaluationRow,
    EventRow,
    ExecutionRow,
    FaultRow,
    MetricRow,
    PlacementRow,
    PowerSecond,
    RawSampleRow,
    RunRow,
    SampleErrorRow,
)

__all__ = [
    "LEDGER_FILE",
    "AttemptRow",
    "BarrierRow",
    "CheckpointRow",
    "DeviceRecord",
    "DeviceRow",
    "EdiRow",
    "EnergySums",
    "EvaluationRow",
    "EventRow",
    "ExecutionRow",
    "FaultRow",
    "Ledger",
    "LedgerReader",
    "MetricRow",
    "PlacementRow",
    "PowerSecond",
    "RawSampleRow",
    "RunRow",
    "SampleErrorRow",
]
