"""lint-hls: each rule rejects what it names at the right line, and leaves good code alone."""

from __future__ import annotations

import json
import re
import sys

import pytest

from hls_kernels.lint import SOURCE_RULES, findings, rules
from hls_kernels.lint.__main__ import main
from hls_kernels.lint.kernels import all_kernels
from tests.fakes.hls_refused import BEGIN, REFUSED
from tests.fakes.hls_sources import BAD, GOOD
from tests.fakes.hls_taken import TAKEN


@pytest.fixture(autouse=True)
def _tools(require_tool):
    require_tool("libclang")
    require_tool("gxx")
    require_tool("hls_headers")


@pytest.fixture
def lint(capsys):
    """Run the lint on files; gives the exit code, (file, line, rule) found, and all it printed."""

    def run(*files):
        code = main([str(path) for path in files])
        printed = capsys.readouterr()
        found = re.findall(r"^(?:.*/)?([^/\n]+):(\d+): ([a-z-]+): ", printed.out, re.MULTILINE)
        return code, [(name, int(line), rule) for name, line, rule in found], "".join(printed)

    return run


def marked(text):
    """The lines that a source says to be bad: ``//! rule rule``."""
    lines = enumerate(text.splitlines(), 1)
    return sorted((n, rule) for n, t in lines for rule in t.partition("//!")[2].split())


@pytest.mark.parametrize("name", BAD)
def test_bad_source_is_rejected_at_its_lines(lint, tmp_path, name):
    source = tmp_path / "bad.cpp"
    source.write_text(BAD[name])
    code, found, text = lint(source)
    assert sorted((line, rule) for _, line, rule in found) == marked(BAD[name]), text
    assert code == 1
    assert {name for name, _, _ in found} == {"bad.cpp"}


def test_good_source_passes(lint, tmp_path, snapshot):
    source = tmp_path / "good.cpp"
    source.write_text(GOOD)
    code, _, text = lint(source)
    snapshot(text, rules=f"{len(rules())} rules")
    assert code == 0


@pytest.mark.deep  # `make lint-hls` is a part of `make test`
def test_kernels_of_the_project_pass(lint):
    code, _, text = lint()
    assert code == 0, text
    assert all(int(n) > 0 for n in re.findall(r"\d+", text))
    assert "gemm_int8" in [kernel.folder.name for kernel in all_kernels()]


def test_all_rules_are_tried():
    tried = {rule for text in BAD.values() for _, rule in marked(text)} | {"qor"}
    assert tried == set(SOURCE_RULES)
    of_hardware = set(rules()) - set(SOURCE_RULES)
    assert set(REFUSED) == set(TAKEN) == of_hardware
    assert all(asked.endswith(".") for asked in rules().values())


# ---- hardware -------------------------------------------------------------------------------


def together(texts):
    """Sources in one, each in a namespace of its own: the HLS headers are parsed once."""
    parts = [re.sub(r"\btop\b", f"top_{i}", text) for i, text in enumerate(texts)]
    return BEGIN + "".join(f"namespace case_{i} {{\n{one}\n}}\n" for i, one in enumerate(parts))


def test_hardware_that_is_refused_is_found_at_its_lines(lint, tmp_path):
    for rule, texts in REFUSED.items():
        assert all(rule in {found for _, found in marked(text)} for text in texts), rule
    source, text = (
        tmp_path / "bad.cpp",
        together(one for texts in REFUSED.values() for one in texts),
    )
    source.write_text(text)
    code, found, printed = lint(source)
    assert sorted((line, rule) for _, line, rule in found) == marked(text), printed
    assert code == 1


def test_hardware_that_is_good_passes(lint, tmp_path):
    source = tmp_path / "good.cpp"
    source.write_text(together(TAKEN.values()))
    code, _, text = lint(source)
    assert code == 0, text


# ---- qor.json -------------------------------------------------------------------------------

PIPELINED = """
#include "shared.hpp"
#include "own.hpp"
extern "C" int top(int n) {
LOAD:
    for (int i = 0; i < 8; ++i) {
#pragma HLS PIPELINE II = 2
        n += i;
    }
PLAIN:
    for (int i = 0; i < 8; ++i) {
#pragma HLS PIPELINE off
        n += own(i);
    }
    return n + used(n);
}
"""
OWN = """
inline int own(int n) {
OWN:
    for (int i = 0; i < 8; ++i) {
#pragma HLS PIPELINE
        n += i;
    }
    return n;
}
"""
SHARED = "".join(OWN.replace("own", f).replace("OWN", f.upper()) for f in ("used", "unused"))


@pytest.fixture
def kernel(tmp_path, monkeypatch):
    """Write a kernel folder beside a shared header; gives its source."""
    shared, folder = tmp_path / "include", tmp_path / "adder"
    shared.mkdir()
    folder.mkdir()
    (shared / "shared.hpp").write_text(SHARED)
    (folder / "own.hpp").write_text(OWN)
    (folder / "adder.cpp").write_text(PIPELINED.replace("shared", "../include/shared"))
    monkeypatch.setattr("hls_kernels.lint.kernels.ROOT", tmp_path)
    intervals = {"LOAD": 2, "OWN": 1, "USED": 1}

    def write(changes=None, **other):
        loops = [
            {"label": label, "ii": ii}
            for label, ii in {**intervals, **(changes or {})}.items()
            if ii is not None
        ]
        text = json.dumps({"loops": loops, **other}, indent=0)
        (folder / "qor.json").write_text(text)
        return folder / "adder.cpp"

    return write


def test_qor_names_the_pipelined_loops_that_the_kernel_reaches(lint, kernel, tmp_path):
    kernel()
    (tmp_path / "rtl").mkdir()
    (tmp_path / "rtl" / "qor.json").write_text('{"blocks": []}')  # not of a kernel in C++
    code, found, text = lint()
    assert (code, found) == (0, [])
    assert " 5 loops" in text


def test_qor_and_source_must_agree(lint, kernel, snapshot):
    texts = []
    for changes in ({"LOAD": None}, {"USED": None}, {"PLAIN": 1}, {"LOAD": 1}, {"LOAD": 0}):
        code, _, text = lint(kernel(changes))
        assert code == 1
        texts.append(text)
    snapshot("\n".join(texts), rules=f"{len(rules())} rules")


def test_findings_are_those_of_all_kernels(kernel):
    kernel()
    assert findings() == []
    kernel({"USED": None})
    assert [(found.path.name, found.line, found.rule) for found in findings()] == [
        ("shared.hpp", 4, "qor")
    ]


def test_sources_of_a_kernel_are_those_of_its_qor(lint, kernel, tmp_path):
    (tmp_path / "adder" / "more.cpp").write_text("float more() { return 1.0f; }\n")
    (tmp_path / "adder" / "adder_tb.cpp").write_text("float bench() { return 1.0f; }\n")
    assert lint(kernel())[0] == 0
    code, found, _ = lint(kernel(sources=["adder.cpp", "more.cpp"]))
    assert (code, found) == (1, [("more.cpp", 1, "float")])
    code, found, text = lint(kernel(sources=["adder.cpp", "absent.cpp"]))
    assert (code, found) == (1, [("qor.json", 16, "qor")])
    assert "absent.cpp" in text


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        ("{\n]", 2, "not JSON"),
        ("[]", 1, '"loops" is missing'),
        ('{"loops": [],\n"sources": "adder.cpp"}', 2, "list of file names"),
    ],
)
def test_faulty_qor_is_a_finding(lint, kernel, text, line, what):
    source = kernel()
    source.with_name("qor.json").write_text(text)
    code, found, printed = lint(source)
    assert (code, found) == (1, [("qor.json", line, "qor")])
    assert what in printed


# ---- the command ----------------------------------------------------------------------------


def test_wrong_files_end_with_one_line(lint, kernel, tmp_path, snapshot):
    source = kernel()
    lines = []
    for path in (tmp_path / "absent.cpp", source.with_name("own.hpp")):
        code, _, text = lint(path)
        assert code == 2
        assert text.count("\n") == 1
        lines.append(text)
    snapshot("".join(lines))


@pytest.mark.parametrize(
    ("tool", "what"), [("libclang", 'pip install "ecorl[dev]"'), ("compiler", "no-such-compiler")]
)
def test_missing_tool_ends_with_one_line(lint, monkeypatch, tool, what):
    if tool == "libclang":
        monkeypatch.setitem(sys.modules, "clang.cindex", None)
    else:
        monkeypatch.setenv("CXX", "no-such-compiler")
    code, found, text = lint()
    assert (code, found) == (2, [])
    assert what in text
    assert text.count("\n") == 1
