"""What is told on standard error: by which instrument each device's energy is found."""

from __future__ import annotations

import pytest

from ecorl.config import Config
from ecorl.ledger import DeviceRecord
from ecorl.records import DeviceKind, Provenance
from ecorl.runtime.runs.notices import tell_end, tell_start
from ecorl.runtime.runs.record import open_attached_run

GPU, CPU, CARD = DeviceKind.GPU, DeviceKind.CPU, DeviceKind.FPGA
MEASURED, MODELLED, REPLAYED = Provenance.MEASURED, Provenance.MODELLED, Provenance.REPLAYED


@pytest.mark.parametrize(
    ("kind", "provenance", "source", "told"),
    [
        (GPU, MEASURED, "nvml:field186:gpu (NVIDIA H100)", "GPU energy by NVML"),
        (CPU, MEASURED, "rapl:package-0 (RAPL package-0)", "processor energy by RAPL"),
        (CARD, MEASURED, "xrt:electrical (U55C)", "card energy by XRT"),
        (CPU, MODELLED, "modelled:cpu_time (7 W idle)",
         "processor power modelled: no counter can be read"),
        (GPU, REPLAYED, "replay (recorded in a.csv)", "GPU power replayed from a recording"),
        (CARD, MODELLED, "cycle model", "simulated card: energy modelled"),
        (GPU, MEASURED, "null (no power source)",
         "GPU energy unknown: telemetry asks for no power source"),
    ],
)  # fmt: skip
def test_the_start_names_the_instrument(tmp_path, capsys, kind, provenance, source, told):
    config = Config()
    with open_attached_run(config, tmp_path / "run", None, {}) as ledger:
        ledger.device(DeviceRecord("a0", "a profile", provenance, source, None, kind=kind))
        tell_start(tmp_path / "run", config, ledger, ["reward"])
    expected = f"ecorl: the record lies in {tmp_path}/run; {told}; may be offloaded: reward\n"
    assert capsys.readouterr().err == expected


def test_a_missing_energy_is_unknown_and_a_missing_record_is_no_error(tmp_path, capsys):
    with open_attached_run(Config(), tmp_path / "run", None, {}) as ledger:
        ledger.metric(1, "loss", 0.5)
    tell_end(tmp_path / "run", KeyboardInterrupt())
    assert capsys.readouterr().err.startswith(
        "ecorl: training ended with KeyboardInterrupt; recorded 1 step, energy unknown; to go on: "
        "no checkpoint is recorded yet: start its script again with overwrite=True; see: "
    )
    tell_end(tmp_path / "nowhere")
    assert capsys.readouterr().err == (
        f"ecorl: the record lies in {tmp_path}/nowhere; see: ecorl report {tmp_path}/nowhere\n"
    )
