"""Reports of the synthesis tools, read from small files of our own with invented numbers."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import ecorl
from ecorl.engines.fpga.bitstream.csynth import (
    Deviation,
    Loop,
    check_qor,
    read_csynth,
    read_timing,
    read_utilisation,
    standing,
    synthesis_of,
)
from ecorl.engines.fpga.csim.build import kernel_root
from ecorl.errors import SynthesisReportError, UserError

DATA = Path(__file__).parents[4] / "data" / "synthesis"
CSYNTH = (DATA / "gemm_int8_csynth.xml").read_text()
QOR = json.loads((kernel_root() / "gemm_int8" / "qor.json").read_text())


@pytest.fixture
def written(tmp_path):
    """Write a text as a report and give its path."""

    def write(text: str, name: str = "csynth.xml") -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    return write


def one_line(error: pytest.ExceptionInfo) -> str:
    assert isinstance(error.value, UserError)
    message = str(error.value)
    assert "\n" not in message
    return message


# ---- csynth.xml ------------------------------------------------------------------------------


def test_csynth_is_read_whole(written):
    report = read_csynth(written(CSYNTH))
    assert (report.tool_version, report.top) == ("2024.1", "gemm_int8_krnl")
    assert report.part == "xcu55c-fsvh2892-2L-e"
    assert report.estimated_clock_ns == 2.978
    used = {"bram_18k": 199, "dsp": 2048, "ff": 123456, "lut": 98765, "uram": 64}
    assert report.resources == used


def test_loops_of_every_function_are_found_with_their_nesting(written):
    loops = {loop.name: loop for loop in read_csynth(written(CSYNTH)).loops}
    assert list(loops) == [
        *("LOAD_A", "PLAN", "LOAD_W_BLOCK_LOAD_W", "FILL", "BLOCK", "TILE", "MAC", "REST", "STORE")
    ]
    assert loops["MAC"] == Loop("MAC", 1)
    assert loops["TILE"] == Loop("TILE", None)
    assert loops["LOAD_A"] == Loop("LOAD_A", 1)
    assert loops["STORE"] == Loop("STORE", 1)


def test_loops_of_the_top_function_count_once(written):
    loop = "<SOLO><TripCount>9</TripCount><Latency>9</Latency><PipelineII>3</PipelineII></SOLO>"
    summary = f"<SummaryOfLoopLatency>{loop}</SummaryOfLoopLatency>"
    module = (
        "<Module><Name>gemm_int8_krnl</Name>"
        f"<PerformanceEstimates>{summary}</PerformanceEstimates></Module>"
    )
    text = CSYNTH.replace("</PerformanceEstimates>", f"{summary}</PerformanceEstimates>", 1)
    both = text.replace("</ModuleInformation>", f"{module}</ModuleInformation>")
    for case in (text, both):
        loops = read_csynth(written(case)).loops
        solo = Loop("SOLO", 3)
        assert [loop for loop in loops if loop.name == "SOLO"] == [solo]
        assert len(loops) == 10


@pytest.mark.parametrize("word", ["?", "undef", "-", "N/A", ""])
def test_what_the_tool_does_not_know_is_none(written, word):
    text = re.sub(r"(<(?:DSP|EstimatedClockPeriod)>)[^<]+", rf"\g<1>{word}", CSYNTH)
    report = read_csynth(written(text))
    assert report.resources["dsp"] is None
    assert report.estimated_clock_ns is None


@pytest.mark.parametrize("share", [0.05, 0.3, 0.6, 0.95])
def test_a_truncated_file_is_refused(written, share):
    path = written(CSYNTH[: int(share * len(CSYNTH))])
    with pytest.raises(SynthesisReportError) as error:
        read_csynth(path)
    assert one_line(error).startswith(f"{path}: ")


def test_a_damaged_file_is_refused(written, snapshot):
    lines = []
    for old, new in (
        ("TopModelName", "Other"),
        ("PerformanceEstimates", "Other"),
        ("Resources>", "Other>"),
        ("<DSP>2048", "<DSP>many"),
        ("<PipelineII>1", "<PipelineII>1.5"),
        (">2.978<", ">fast<"),
    ):
        assert old in CSYNTH
        with pytest.raises(SynthesisReportError) as error:
            read_csynth(written(CSYNTH.replace(old, new)))
        lines.append(one_line(error))
    snapshot("\n".join(lines))


def test_an_unreadable_file_is_refused(tmp_path, snapshot):
    with pytest.raises(SynthesisReportError) as error:
        read_csynth(tmp_path / "csynth.xml")
    snapshot(one_line(error))
    (tmp_path / "csynth.xml").write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(SynthesisReportError, match="XML") as error:
        read_csynth(tmp_path / "csynth.xml")
    assert one_line(error).startswith(f"{tmp_path / 'csynth.xml'}: ")


# ---- against qor.json ------------------------------------------------------------------------


def test_a_report_as_declared_has_no_deviation(written):
    assert check_qor(read_csynth(written(CSYNTH)), QOR) == ()


def test_less_than_declared_is_no_deviation(written):
    text = CSYNTH.replace("<URAM>64<", "<URAM>60<").replace("<DSP>2048<", "<DSP>0<")
    assert check_qor(read_csynth(written(text)), QOR) == ()


def test_each_shortfall_is_listed(written, snapshot):
    slow = CSYNTH.replace("<Name>MAC</Name>", "<Name>MAC</Name><X/>")
    head, tail = slow.split("<X/>")
    text = head + tail.replace("<PipelineII>1", "<PipelineII>2", 1)
    text = text.replace("<DSP>2048<", "<DSP>2100<").replace("<URAM>64<", "<URAM>?<")
    text = text.replace("2.978", "4.5").replace("LOAD_A", "VITIS_LOOP_70_1")
    found = check_qor(read_csynth(written(text)), QOR)
    assert found[:-1] == (
        Deviation("loop", "LOAD_A", 1, None),
        Deviation("loop", "MAC", 1, 2),
        Deviation("resource", "dsp", 2048, 2100),
        Deviation("resource", "uram", 64, None),
    )
    assert (found[-1].kind, found[-1].found) == ("clock", 4.5)
    assert found[-1].expected == pytest.approx(1000 / 245)
    snapshot("\n".join(map(str, found)))


def test_a_faster_loop_than_declared_differs_too(written):
    qor = {**QOR, "loops": [{"label": "MAC", "ii": 2}]}
    assert check_qor(read_csynth(written(CSYNTH)), qor) == (Deviation("loop", "MAC", 2, 1),)


def test_the_slowest_of_several_loops_of_a_label_counts(written):
    again = "<STORE.2><TripCount>4</TripCount><PipelineII>7</PipelineII></STORE.2>"
    text = CSYNTH.replace("</STORE>", f"</STORE>{again}")
    found = check_qor(read_csynth(written(text)), QOR)
    assert found == (Deviation("loop", "STORE", 1, 7),)
    bare = again.replace("<PipelineII>7</PipelineII>", "")
    found = check_qor(read_csynth(written(CSYNTH.replace("</STORE>", f"</STORE>{bare}"))), QOR)
    assert found == (Deviation("loop", "STORE", 1, None),)


def test_another_kernels_report_is_refused(written):
    report = read_csynth(written(CSYNTH.replace("gemm_int8_krnl", "mha_int8_krnl")))
    with pytest.raises(SynthesisReportError) as error:
        check_qor(report, QOR)
    assert "top = 'mha_int8_krnl': " in one_line(error)
    assert "'gemm_int8_krnl'" in one_line(error)


@pytest.mark.parametrize(
    "change", [{"loops": [{"label": "MAC"}]}, {"dsp": 3}, {"clock_mhz": 0}, {"loops": None}]
)
def test_a_qor_without_a_field_is_refused(written, change):
    with pytest.raises(SynthesisReportError) as error:
        check_qor(read_csynth(written(CSYNTH)), {**QOR, **change})
    assert "gemm_int8_krnl" in one_line(error)


# ---- who may say that a kernel is synthesised -------------------------------------------------


def test_without_a_report_nothing_is_synthesised(tmp_path, snapshot):
    assert synthesis_of(tmp_path / "absent") is None
    (tmp_path / "csynth.rpt").write_text("a text report alone is not enough\n")
    (tmp_path / "csynth.xml").mkdir()
    assert synthesis_of(tmp_path) is None
    assert synthesis_of(tmp_path) is None
    snapshot(standing(tmp_path))


@pytest.mark.parametrize("layout", ["hls/syn/report", "project/solution1/syn/report", "."])
def test_with_a_report_it_is(written, tmp_path, layout):
    path = written(CSYNTH, f"{layout}/csynth.xml")
    report = synthesis_of(tmp_path)
    assert report is not None
    assert report == read_csynth(path)
    assert synthesis_of(tmp_path) is not None
    assert f"Vitis HLS 2024.1 for {report.part};" in standing(tmp_path)


def test_a_damaged_report_is_no_synthesis(written, tmp_path):
    written(CSYNTH[:900])
    for judge in (synthesis_of, standing):
        with pytest.raises(SynthesisReportError):
            judge(tmp_path)


def test_several_reports_are_refused(written, tmp_path, snapshot):
    written(CSYNTH, "a/csynth.xml")
    written(CSYNTH, "b/csynth.xml")
    with pytest.raises(SynthesisReportError) as error:
        synthesis_of(tmp_path)
    snapshot(one_line(error))


def test_no_kernel_of_ours_is_synthesised():
    assert synthesis_of(kernel_root()) is None


def test_no_other_source_calls_anything_synthesised():
    """The word stands where csynth.xml is looked for, and elsewhere only to deny it.

    What check.py and manifest.py say of a product is tested beside them: without all reports its
    provenance is None.
    """
    said = []
    package = Path(ecorl.__file__).parent
    named = [f"engines/fpga/bitstream/{name}.py" for name in ("csynth", "check", "manifest")]
    for path in sorted(package.rglob("*.py")):
        if path.relative_to(package).as_posix() in named:
            continue
        for line in path.read_text(encoding="utf-8").splitlines():
            denied = re.search(r"\b(?:not|never|nothing|no)\b.*synthesi[sz]ed", line, re.IGNORECASE)
            if re.search(r"synthesi[sz]ed", line, re.IGNORECASE) and not denied:
                said.append(f"{path.name}: {line.strip()}")
    assert said == []


# ---- Vivado ----------------------------------------------------------------------------------


def test_timing_met_and_not_met():
    assert read_timing(DATA / "timing_met.rpt") is True
    assert read_timing(DATA / "timing_failed.rpt") is False


def test_timing_without_constraints_is_none(written):
    text = (DATA / "timing_failed.rpt").read_text()
    text = re.sub(r"-\d+\.\d+", "NA", text).replace(
        "Timing constraints are not met.", "There are no user specified timing constraints."
    )
    assert read_timing(written(text, "timing.rpt")) is None


def refusals(read, written, texts):
    """The lines with which reports of Vivado are refused."""
    lines = []
    for text in texts:
        with pytest.raises(SynthesisReportError) as error:
            read(written(text, "report.rpt"))
        lines.append(one_line(error))
    return "\n".join(lines)


def test_damaged_or_truncated_timing_is_refused(written, snapshot):
    text = (DATA / "timing_failed.rpt").read_text()
    damages = (("Design Timing Summary", "Design Summary"), ("-0.421", "slow"), ("-318.250  ", ""))
    assert all(old in text for old, _ in damages)
    ends = ("| ----", "    WNS(ns)", "    -------", "     -0.421     -318")
    broken = [text.replace(old, new) for old, new in damages]
    broken += [text[: text.index(end) + len(end)] for end in ends]
    snapshot(refusals(read_timing, written, broken))


def test_utilisation_is_read():
    assert read_utilisation(DATA / "utilisation.rpt") == {
        "lut": site_use(104294, 1303680, 8.0),
        "register": site_use(130368, 2607360, 5.0),
        "bram_tile": site_use(187.5, 2016, 9.3),
        "uram": site_use(64, 960, 6.67),
        "dsp": site_use(2054, 9024, 22.76),
    }


def site_use(used, available, percent):
    return {"used": used, "available": available, "percent": percent}


def test_utilisation_left_out_is_none_and_a_tiny_share_is_worked_out(written):
    text = (DATA / "utilisation.rpt").read_text()
    text = re.sub(r"\| URAM  .*\n", "", text).replace(" 22.76 ", " <0.01 ")
    text = text.replace("|   1303680 |  8.00 |", "|           |       |")
    found = read_utilisation(written(text, "utilisation.rpt"))
    assert "uram" not in found
    assert found["lut"] == site_use(104294, None, None)
    assert found["dsp"] == site_use(2054, 9024, pytest.approx(100 * 2054 / 9024))


def test_damaged_utilisation_is_refused(written, snapshot):
    broken = (
        "",
        "| Ref Name | Used |\n| FDRE | 5 |\n",
        "| Site Type | Used |\n| DSPs | 20",
        "| Site Type | Used |\n| DSPs |\n",
        "| Site Type | Used |\n| DSPs | 20 |\n",
        "| Site Type | Used |\n| DSPs | few |\n",
    )
    snapshot(refusals(read_utilisation, written, broken))


def test_unreadable_reports_are_refused(tmp_path):
    for read in (read_timing, read_utilisation):
        with pytest.raises(SynthesisReportError) as error:
            read(tmp_path / "absent.rpt")
        assert one_line(error).startswith(str(tmp_path / "absent.rpt"))
