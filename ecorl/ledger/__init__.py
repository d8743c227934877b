"""The run's record: one SQLite file a machine in the run folder, one writer each, many readers.

`Ledger` takes records from the training thread and writes them from a thread of its own, so that
a slow or full disk costs rows, never training time. `LedgerReader` reads a finished, a live or a
killed run, and puts the files of its machines together; `FileReader` reads one of them. The layout
of a file is documented in `ecorl.ledger.schema`.
"""

from ecorl.ledger.ending import RunEnding, ending_of
from ecorl.ledger.file_reader import FileReader
from ecorl.ledger.ledger import LEDGER_FILE, Ledger
from ecorl.ledger.lock import is_being_written
from ecorl.ledger.nodes import NODE, node_file, node_name
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
    GearChoiceRow,
    IntensityRow,
    MetricRow,
    NodeRecord,
    NodeRow,
    NodeSpan,
    PlacementRow,
    PowerSecond,
    PueRow,
    RawSampleRow,
    RunRow,
    SampleErrorRow,
)

__all__ = [
    "LEDGER_FILE",
    "NODE",
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
    "FileReader",
    "GearChoiceRow",
    "IntensityRow",
    "Ledger",
    "LedgerReader",
    "MetricRow",
    "NodeRecord",
    "NodeRow",
    "NodeSpan",
    "PlacementRow",
    "PowerSecond",
    "PueRow",
    "RawSampleRow",
    "RunEnding",
    "RunRow",
    "SampleErrorRow",
    "ending_of",
    "is_being_written",
    "node_file",
    "node_name",
]
