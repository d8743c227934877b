"""Whatever else computes on the GPU is named, and each figure says so."""

from __future__ import annotations

import os

from benchmarks.gpu.run.part import labelled, neighbours
from benchmarks.harness.figures import Figure
from ecorl.records import Provenance

FOREIGN = 2**22 + 1
"""No process of this machine has this id: the kernel's own are smaller."""


def test_other_processes_are_named_and_this_one_is_none_of_them(one_gpu):
    assert neighbours(computes=True) == []
    own, parent = os.getpid(), os.getppid()
    one_gpu.set("devices 1", f"process {own} 1000", f"process {parent} 2000")
    (other,) = neighbours(computes=True)
    assert (other["pid"], other["memory_bytes"]) == (parent, 2000)
    assert other["name"]


def test_in_a_container_this_process_has_no_name(one_gpu):
    one_gpu.set("devices 1", f"process {FOREIGN} 1000")
    assert neighbours(computes=True) == []
    assert [one["pid"] for one in neighbours(computes=False)] == [FOREIGN]
    one_gpu.set("devices 1", f"process {FOREIGN} 1000", f"process {FOREIGN + 1} 2000")
    assert len(neighbours(computes=True)) == 1


def test_where_nvml_does_not_tell_it_is_not_known(one_gpu):
    one_gpu.set("devices 1", "error nvmlDeviceGetComputeRunningProcesses_v3 3")
    assert neighbours(computes=True) is None


def test_figures_say_that_the_gpu_was_shared(snapshot):
    figures = [Figure("x.power_w", 1.0, "W", Provenance.MEASURED, note="idle"),
               Figure("x.energy_j", 1.0, "J", Provenance.MEASURED),
               Figure("x.time_s", None, "s", note="no time left")]  # fmt: skip
    assert labelled(figures, [], None) == figures
    one = {"pid": 1, "name": None, "memory_bytes": None}
    notes = [f.note for f in labelled(figures, [one], [one, one])]
    snapshot("\n".join([*notes, labelled(figures, [one], [])[1].note]))
