"""What is told on standard error: by which instrument each device's energy is found."""

from __future__ import annotations

from ecorl.config import Config
from ecorl.ledger import DeviceRecord
from ecorl.records import DeviceKind, Provenance
from ecorl.runtime.runs.notices import tell_end, tell_start
from ecorl.runtime.runs.record import open_attached_run

GPU, CPU, CARD = DeviceKind.GPU, DeviceKind.CPU, DeviceKind.FPGA
MEASURED, MODELLED, REPLAYED = Provenance.MEASURED, Provenance.MODELLED, Provenance.REPLAYED


INSTRUMENTS = [
    (GPU, MEASURED, "nvml:field186:gpu (NVIDIA H100)"),
    (CPU, MEASURED, "rapl:package-0 (RAPL package-0)"),
    (CARD, MEASURED, "xrt:electrical (U55C)"),
    (CPU, MODELLED, "modelled:cpu_time (7 W idle)"),
    (GPU, REPLAYED, "replay (recorded in a.csv)"),
    (CARD, MODELLED, "cycle model"),
    (GPU, MEASURED, "null (no power source)"),
]


def test_the_start_names_the_instrument(tmp_path, capsys, snapshot):
    config = Config()
    for number, (kind, provenance, source) in enumerate(INSTRUMENTS):
        folder = tmp_path / f"run-{number}"
        with open_attached_run(config, folder, None, {}) as ledger:
            ledger.device(DeviceRecord("a0", "a profile", provenance, source, None, kind=kind))
            tell_start(folder, config, ledger, ["reward"])
    snapshot(capsys.readouterr().err)


def test_a_missing_energy_is_unknown_and_a_missing_record_is_no_error(tmp_path, capsys, snapshot):
    with open_attached_run(Config(), tmp_path / "run", None, {}) as ledger:
        ledger.metric(1, "loss", 0.5)
    tell_end(tmp_path / "run", KeyboardInterrupt())
    tell_end(tmp_path / "nowhere")
    snapshot(capsys.readouterr().err)
