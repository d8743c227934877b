"""Stand-ins for Vitis' ``v++``, ``vitis-run`` and ``emconfigutil``, strict on their arguments.

`install` puts them into a folder for PATH. Each call is recorded. As a program, this file is the
tools: it checks its arguments and config files, and writes files of the form that the real tools
leave, with invented numbers. A behaviour file tells it to fail, to leave nothing, or to miss the
clock.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import struct
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NoReturn

TOOLS = ("v++", "vitis-run", "emconfigutil")
DATA = Path(__file__).parents[1] / "data" / "synthesis"
HLS_KEYS = {
    "flow_target", "clock", "syn.file", "syn.top", "syn.cflags", "syn.csimflags", "tb.file",
    "tb.cflags", "package.output.format", "package.output.file", "package.output.syn",
}  # fmt: skip


@dataclass
class Behaviour:
    """How the tools behave; a step is ``<kernel>.hls``, ``<kernel>.csim``, ``link``, ...

    Attributes:
        release: that ``--version`` says.
        fail: step that prints an error and ends with 1.
        nothing: step that ends well and leaves no product.
        cut: the link leaves half an xclbin.
        timing: ``met``, ``failed``, or ``none`` for no report.
        damaged: ``csynth``, ``timing`` or ``utilisation``: that report is cut off.
        no_csynth: kernel without a csynth.xml.
        slow_loop: kernel whose first loop has a larger interval than its qor.json says.
        sleep_s: how long the link takes.
        deaf: what takes that long does not hear SIGTERM.
    """

    release: str = "2024.1"
    fail: str = ""
    nothing: str = ""
    cut: bool = False
    timing: str = "met"
    damaged: str = ""
    no_csynth: str = ""
    slow_loop: str = ""
    sleep_s: float = 0.0
    deaf: bool = False


class FakeVitis:
    """An installation in a folder of a test.

    Args:
        folder: for the tools, their record and a platform.
        platform: name of the platform that is installed.
    """

    def __init__(self, folder: Path, platform: str) -> None:
        self.bin, self.platforms = folder / "bin", folder / "platforms"
        self.bin.mkdir(parents=True)
        for tool in TOOLS:
            path = self.bin / tool
            path.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{__file__}" {tool} "$@"\n')
            path.chmod(0o755)
        self.xpfm = self.platforms / platform / f"{platform}.xpfm"
        self.xpfm.parent.mkdir(parents=True)
        self.xpfm.write_text("<platform/>\n")
        self.behave()

    def behave(self, **changes: object) -> None:
        """Set the behaviour of the next calls."""
        (self.bin / "behaviour.json").write_text(json.dumps(asdict(Behaviour(**changes))))

    @property
    def calls(self) -> list[list[str]]:
        """All calls but those for the release: tool and arguments."""
        path = self.bin / "calls.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


# ---- the tools ----------------------------------------------------------------------------------


def main(arguments: list[str]) -> None:
    tool, arguments = arguments[0], arguments[1:]
    folder = Path(shutil.which(tool) or "").parent
    behaviour = Behaviour(**json.loads((folder / "behaviour.json").read_text()))
    if arguments == ["--version"]:
        print(f"****** {tool} v{behaviour.release} (64-bit)\n  **** SW Build 1 on 2024-05-21")
        return
    with (folder / "calls.jsonl").open("a") as record:
        record.write(json.dumps([tool, *arguments]) + "\n")
    if tool == "emconfigutil":
        _emconfig(arguments, behaviour)
    elif tool == "vitis-run":
        _simulate(arguments, behaviour)
    elif arguments[:3] == ["-c", "--mode", "hls"]:
        _compile_hls(arguments[3:], behaviour)
    elif arguments[:1] == ["-c"]:
        _compile_emulated(arguments[1:], behaviour)
    elif arguments[:1] == ["-l"]:
        _link(arguments[1:], behaviour)
    else:
        fail("v++ 60-600", f"unknown mode: {arguments[:3]}")


def fail(code: str, text: str) -> NoReturn:
    print("INFO: [v++ 60-1] a line before it\n")
    print(f"ERROR: [{code}] {text}")
    print("ERROR: [v++ 60-702] Failed to finish compilation and linking")
    sys.exit(1)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        fail("v++ 60-602", f"unrecognised command line: {message}")


def _begin(step: str, behaviour: Behaviour) -> None:
    if behaviour.fail == step:
        fail("HLS 200-1470", f"invented failure of {step}")


def _hls_settings(path: str) -> dict[str, list[str]]:
    """The config file's settings; the fake knows the keys of UG1399 that the project uses."""
    found: dict[str, list[str]] = {}
    section = ""
    for line in Path(path).read_text().splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        elif line.strip():
            key, value = line.split("=", 1)
            if (section, key) != ("", "part") and (section != "hls" or key not in HLS_KEYS):
                fail("v++ 60-1", f"unknown option {section}.{key}")
            found.setdefault(key, []).append(value)
    for name in found["syn.file"] + found.get("tb.file", []):
        if not Path(name).is_file():
            fail("HLS 200-70", f"file {name} does not exist")
    (top,) = found["syn.top"]
    if not any(re.search(rf"\b{top}\s*\(", Path(n).read_text()) for n in found["syn.file"]):
        fail("HLS 200-70", f"top function {top} not found")
    for key in ("syn.cflags", "syn.csimflags", "tb.cflags"):
        for flags in found.get(key, []):
            _flags(flags, may_see_shims=key != "syn.cflags")
    return found


def _flags(flags: str, *, may_see_shims: bool) -> None:
    """The compiler gets the flags split at spaces, with no quoting."""
    for word in flags.split():
        if not word.startswith(("-I", "-D", "-std=")):
            fail("HLS 207-3777", f"clang: error: no such file or directory: '{word}'")
        if word.startswith("-I"):
            _include(word[2:])
            if not may_see_shims and Path(word[2:]).name == "sim":
                fail("HLS 200-70", "the shims must not be seen by synthesis")


def _include(folder: str) -> None:
    if not Path(folder).is_dir():
        fail("HLS 200-70", f"include folder {folder} does not exist")


def _compile_hls(arguments: list[str], behaviour: Behaviour) -> None:
    parser = _Parser()
    parser.add_argument("--config", required=True)
    parser.add_argument("--work_dir", required=True)
    args = parser.parse_args(arguments)
    settings = _hls_settings(args.config)
    kernel = Path(args.work_dir).name
    _begin(f"{kernel}.hls", behaviour)
    if behaviour.no_csynth != kernel:
        qor = json.loads((Path(settings["syn.file"][0]).parent / "qor.json").read_text())
        report = Path(args.work_dir) / "hls" / "syn" / "report" / "csynth.xml"
        report.parent.mkdir(parents=True)
        text = _csynth(qor, settings["part"][0], kernel == behaviour.slow_loop)
        report.write_text(text[: len(text) // 2] if behaviour.damaged == "csynth" else text)
    if behaviour.nothing != f"{kernel}.hls" and settings["package.output.syn"] == ["1"]:
        Path(settings["package.output.file"][0]).write_text(f"xo {settings['syn.top'][0]}\n")


def _csynth(qor: dict, part: str, is_slow: bool) -> str:
    """A report in the tool's form with the figures that qor.json expects."""
    loops = "".join(
        f"<{loop['label']}><Name>{loop['label']}</Name><TripCount>8</TripCount>"
        f"<Latency>8</Latency><PipelineII>{loop['ii'] + (is_slow and i == 0)}</PipelineII>"
        f"</{loop['label']}>"
        for i, loop in enumerate(qor["loops"])
    )
    used = {"BRAM_18K": "bram_18k", "DSP": "dsp", "URAM": "uram"}
    resources = "".join(
        f"<{tag}>{qor.get(name, {}).get('count', 0)}</{tag}>" for tag, name in used.items()
    )
    period = 1e3 / qor["clock_mhz"]
    return (
        "<profile><ReportVersion><Version>2024.1</Version></ReportVersion><UserAssignments>"
        f"<Part>{part}</Part><TopModelName>{qor['top']}</TopModelName>"
        f"<TargetClockPeriod>{period:.3f}</TargetClockPeriod></UserAssignments>"
        "<PerformanceEstimates><SummaryOfTimingAnalysis>"
        f"<EstimatedClockPeriod>{0.9 * period:.3f}</EstimatedClockPeriod>"
        f"</SummaryOfTimingAnalysis><SummaryOfLoopLatency>{loops}</SummaryOfLoopLatency>"
        f"</PerformanceEstimates><AreaEstimates><Resources>{resources}<FF>9</FF><LUT>9</LUT>"
        "</Resources></AreaEstimates></profile>\n"
    )


def _simulate(arguments: list[str], behaviour: Behaviour) -> None:
    parser = _Parser()
    parser.add_argument("--mode", required=True, choices=["hls"])
    kind = parser.add_mutually_exclusive_group(required=True)
    kind.add_argument("--csim", action="store_true")
    kind.add_argument("--cosim", action="store_true")
    parser.add_argument("--config", required=True)
    parser.add_argument("--work_dir", required=True)
    args = parser.parse_args(arguments)
    if not _hls_settings(args.config).get("tb.file"):
        fail("SIM 211-100", "no test bench")
    if args.cosim and not (Path(args.work_dir) / "hls" / "syn").is_dir():
        fail("COSIM 212-1", "not synthesised yet")
    _begin(f"{Path(args.work_dir).name}.{'csim' if args.csim else 'cosim'}", behaviour)


def _compile_emulated(arguments: list[str], behaviour: Behaviour) -> None:
    parser = _Parser()
    parser.add_argument("-t", required=True, choices=["sw_emu"])
    parser.add_argument("--platform", required=True)
    parser.add_argument("-k", required=True)
    parser.add_argument("-I", action="append")
    parser.add_argument("--temp_dir", required=True)
    parser.add_argument("-o", required=True)
    parser.add_argument("source", nargs="+")
    args = parser.parse_args(arguments)
    _platform(args.platform)
    for folder in args.I or ():
        _include(folder)
    _begin(f"{Path(args.o).parent.name}.sw_emu", behaviour)
    Path(args.o).write_text(f"xo {args.k}\n")


def _platform(path: str) -> None:
    if not path.endswith(".xpfm") or not Path(path).is_file():
        fail("v++ 60-1258", f"no platform was found that matches {path}")


def _link(arguments: list[str], behaviour: Behaviour) -> None:
    parser = _Parser()
    parser.add_argument("-t", required=True, choices=["sw_emu", "hw_emu", "hw"])
    parser.add_argument("--platform", required=True)
    parser.add_argument("--config", required=True)
    parser.add_argument("--kernel_frequency", type=float)
    parser.add_argument("--temp_dir", required=True)
    parser.add_argument("--report_dir", required=True)
    parser.add_argument("--report_level", choices=["0", "1", "2"])
    parser.add_argument("-o", required=True)
    parser.add_argument("xo", nargs="+")
    args = parser.parse_args(arguments)
    _platform(args.platform)
    _connectivity(args.config, {Path(x).read_text().split()[1] for x in args.xo})
    if behaviour.sleep_s:
        _work(behaviour, args.o)
    _begin("link", behaviour)
    if args.t == "hw":
        _reports(Path(args.report_dir) / "link" / "imp", behaviour)
    if behaviour.nothing != "link":
        mhz = (args.kernel_frequency or 0) * (0.5 if behaviour.timing == "failed" else 1)
        data = _xclbin({"sw_emu": 5, "hw_emu": 4, "hw": 1}[args.t], int(mhz))
        Path(args.o).write_bytes(data[: len(data) // 2] if behaviour.cut else data)


def _work(behaviour: Behaviour, product: str) -> None:
    """Sleep in a child process, as v++ runs Vivado as one."""
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " * behaviour.deaf
    code = f"{deaf}import time; time.sleep({behaviour.sleep_s})"
    subprocess.run([sys.executable, "-c", code, product], check=False)


def _connectivity(path: str, kernels: set[str]) -> None:
    """Check that units are of linked kernels, and that the card has every bank."""
    lines = Path(path).read_text().splitlines()
    if lines[0] != "[connectivity]":
        fail("v++ 60-1", "no section [connectivity]")
    units = set()
    for key, value in (line.split("=", 1) for line in lines[1:]):
        if key == "nk":
            kernel, n_units, unit = value.split(":")
            if kernel not in kernels or n_units != "1":
                fail("v++ 60-1", f"nk={value}")
            units.add(unit)
        elif key == "sp":
            found = re.fullmatch(r"(\w+)\.\w+:HBM\[(\d+)(?::(\d+))?\]", value)
            if not found or found[1] not in units or int(found[3] or found[2]) > 31:
                fail("CFGEN 83-2287", f"sp={value}")
        elif key != "slr" or not re.fullmatch(r"(\w+):SLR[0-2]", value):
            fail("v++ 60-1", f"{key}={value}")
    if len(units) != len(kernels):
        fail("v++ 60-1", "a kernel has no unit")


def _reports(folder: Path, behaviour: Behaviour) -> None:
    folder.mkdir(parents=True)
    reports = {"impl_1_full_util_routed.rpt": ("utilisation", DATA / "utilisation.rpt")}
    if behaviour.timing != "none":
        source = DATA / f"timing_{behaviour.timing}.rpt"
        reports["impl_1_hw_bb_locked_timing_summary_routed.rpt"] = ("timing", source)
    for name, (kind, source) in reports.items():
        text = source.read_text()
        cut = text.index({"utilisation": "| DSPs", "timing": "WNS(ns)"}[kind]) + 10
        (folder / name).write_text(text[:cut] if behaviour.damaged == kind else text)


def _xclbin(mode: int, mhz: int) -> bytes:
    """A container in Vitis' form, as far as the project reads it; not by the project's code."""
    bits = b"configuration" * 8
    clocks = struct.pack("<h", 1) + struct.pack("<HB5x128s", mhz, 1, b"DATA_CLK")
    parts = [(0, b"BITSTREAM", bits)] + ([(11, b"CLOCKS", clocks)] if mhz else [])
    at, table, body = 456 + 40 * len(parts), b"", b""
    for kind, name, data in parts:
        body += bytes(-(at + len(body)) % 8)
        table += struct.pack("<I16s4xQQ", kind, name, at + len(body), len(data))
        body += data
    head = b"xclbin2\0" + struct.pack("<i", -1) + b"\xff" * 28 + bytes(256) + bytes(8)
    head += struct.pack("<QQQHBBHH", at + len(body), 1, 1, 0, 2, 1, mode, 0) + bytes(16)
    head += b"xilinx_u55c_gen3x16_xdma_base_3".ljust(64, b"\0") + b"u" * 16 + bytes(16)
    return head + struct.pack("<I4x", len(parts)) + table + body


def _emconfig(arguments: list[str], behaviour: Behaviour) -> None:
    parser = _Parser()
    parser.add_argument("--platform", required=True)
    parser.add_argument("--nd", type=int, required=True)
    parser.add_argument("--od", required=True)
    args = parser.parse_args(arguments)
    _platform(args.platform)
    _begin("emconfig", behaviour)
    if behaviour.nothing != "emconfig":
        (Path(args.od) / "emconfig.json").write_text('{"Version": {"FileVersion": "2.0"}}\n')


if __name__ == "__main__":
    main(sys.argv[1:])
