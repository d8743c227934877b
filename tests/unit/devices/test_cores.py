from __future__ import annotations

import os

import pytest

from ecorl.devices import host as module
from ecorl.devices.host import complete_host_figures, read_host_cpu, usable_cores


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine of two packages with the given cores, two threads each."""

    def make(affinity, cores_per_package=2, threads=2, topology=True):
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(affinity), raising=False)
        sys = tmp_path / "sys"
        n_cores = 2 * cores_per_package
        for cpu in range(n_cores * threads):
            folder = sys / f"devices/system/cpu/cpu{cpu}/topology"
            folder.mkdir(parents=True)
            if topology:
                # Threads of a core are n_cores apart, and core ids repeat in each package.
                core = cpu % n_cores
                (folder / "physical_package_id").write_text(f"{core // cores_per_package}\n")
                (folder / "core_id").write_text(f"{core % cores_per_package}\n")
        monkeypatch.setattr(module, "SYS", sys)
        monkeypatch.setattr(module, "PROC", tmp_path / "proc")
        (tmp_path / "proc/self").mkdir(parents=True)
        return sys / "fs/cgroup"

    return make


def test_threads_of_one_core_are_one_core(machine, snapshot):
    machine(range(8))
    n, source = usable_cores()
    assert n == 4
    snapshot(source)


@pytest.mark.parametrize(
    ("affinity", "n_cores"), [({0, 4}, 1), ({0, 1}, 2), ({0, 2}, 2), ({1, 5, 3}, 2), ({7}, 1)]
)
def test_only_cores_within_the_affinity_count(machine, affinity, n_cores):
    machine(affinity)
    assert usable_cores()[0] == n_cores


def test_without_topology_the_logical_cpus_count_and_that_is_said(machine):
    machine(range(8), topology=False)
    n_cores, source = usable_cores()
    assert n_cores == 8
    assert "logical CPUs" in source
    assert "no topology" in source


def test_a_topology_that_is_no_number_is_none(machine):
    fs = machine(range(2), cores_per_package=1)
    (fs.parents[1] / "devices/system/cpu/cpu1/topology/core_id").write_text("what\n")
    assert usable_cores()[0] == 2
    assert "logical" in usable_cores()[1]


def test_a_system_without_affinity_counts_its_cpus(machine, monkeypatch, snapshot):
    machine(range(8))
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    n, source = usable_cores()
    assert n == 2
    snapshot(source)


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize(
    ("quota", "n_cores"),
    [("150000 100000", 2), ("100000 100000", 1), ("1000 100000", 1), ("max 100000", 4),
     ("900000 100000", 4), ("nonsense", 4), ("0 0", 4)],
)  # fmt: skip
def test_a_cgroup_quota_limits(machine, tmp_path, quota, n_cores):
    fs = machine(range(8))
    (tmp_path / "proc/self/cgroup").write_text("0::/a/b\n")
    write(fs / "a/b/cpu.max", f"{quota}\n")
    found, source = usable_cores()
    assert found == n_cores
    assert ("quota" in source) == (n_cores < 4)


def test_a_quota_further_up_limits_too_and_the_source_names_it(machine, tmp_path, snapshot):
    fs = machine(range(8))
    (tmp_path / "proc/self/cgroup").write_text("0::/a/b\n")
    write(fs / "a/b/cpu.max", "max 100000\n")
    write(fs / "a/cpu.max", "250000 100000\n")
    n, source = usable_cores()
    assert n == 3
    snapshot(source)


def test_a_container_that_sees_its_own_group_as_the_root(machine, tmp_path):
    fs = machine(range(8))
    (tmp_path / "proc/self/cgroup").write_text("0::/\n")
    write(fs / "cpu.max", "200000 100000\n")
    assert usable_cores()[0] == 2


@pytest.mark.parametrize("folder", ["cpu,cpuacct/docker/x", "cpu,cpuacct", "cpu/docker/x"])
def test_quotas_of_the_first_version(machine, tmp_path, folder):
    fs = machine(range(8))
    lines = "12:memory:/docker/x\n4:cpu,cpuacct:/docker/x\n0::/init.scope\n"
    (tmp_path / "proc/self/cgroup").write_text(lines)
    write(fs / folder / "cpu.cfs_quota_us", "100000\n")
    write(fs / folder / "cpu.cfs_period_us", "100000\n")
    write(fs / "memory/docker/x/cpu.cfs_quota_us", "1\n")
    assert usable_cores()[0] == 1


def test_no_limit_in_the_first_version_reads_minus_one(machine, tmp_path):
    fs = machine(range(8))
    (tmp_path / "proc/self/cgroup").write_text("4:cpu,cpuacct:/\n")
    write(fs / "cpu,cpuacct/cpu.cfs_quota_us", "-1\n")
    write(fs / "cpu,cpuacct/cpu.cfs_period_us", "100000\n")
    assert usable_cores()[0] == 4


def test_the_host_profile_counts_physical_cores_and_says_so(machine):
    machine(range(8))
    cpu = read_host_cpu()
    assert cpu.n_cores == 4
    figures = complete_host_figures({}, {}, cpu)
    assert figures["n_cores"].value == 4
    assert "physical" in figures["n_cores"].source


def test_on_this_machine_the_cores_are_at_least_one_and_no_more_than_the_cpus():
    n_cores, source = usable_cores()
    assert 1 <= n_cores <= (os.cpu_count() or 1)
    assert source
