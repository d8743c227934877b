"""Checks that the kernel sources keep to what Vitis HLS can synthesise.

Run as ``python -m hls_kernels.lint``.

No synthesis runs here. Each kernel source is compiled with ``__SYNTHESIS__`` defined and without
the macros of the C-simulation, then clang's syntax tree of the project's files is checked. Code
that the preprocessor removes in that configuration is left out, as are system headers, ap_int and
hls_stream. A kernel's sources are ``"sources"`` in its ``qor.json``, by default ``<kernel>.cpp``;
all other ``.cpp`` files of the folder run on the host. A folder is a kernel's when it has a
``qor.json`` that names ``"loops"`` or ``"sources"``, or one beside ``<kernel>.cpp``.

`rules` names the rules, as the findings do. What those of the first group mean is in
`SOURCE_RULES`; those of the second group, on hardware that Vitis would refuse or make slow or
large, are in `hardware`, whose functions say what Vitis does with such code.

A loop has constant bounds when it is a ``for`` that declares its variable, starts, steps and ends
at constants (template parameters and const variables made of constants count; the ``<`` of an
ap_int does not; so does the variable of a loop around it that is wholly unrolled and has constant
bounds), steps towards its end, and does not assign its variable in the body.
Loops in constexpr functions that only constant expressions call are no hardware and not checked.
A pragma belongs to the loop in whose body it stands directly, not inside a nested block.
"""

from __future__ import annotations

from hls_kernels.lint.kernels import Finding, all_kernels

SOURCE_RULES = {
    "compile": "The source compiles as C++17 (no arrays of run-time length either).",
    "include": "Outside our files only <cstdint>, <cstddef>, <type_traits>, <ap_int.h>, "
    "<hls_stream.h> and what these include.",
    "heap": "No new, delete, malloc family, nor a std name that allocates.",
    "stl": "Of std:: only int*_t, uint*_t, size_t and what <type_traits> declares.",
    "libm": "No call into <cmath>.",
    "float": "No float or double: neither type, value nor literal.",
    "recursion": "No cycle in the call graph, templates included; no virtual functions and no "
    "calls through pointers, which no graph can follow.",
    "unbounded-loop": "No loop whose condition is missing or constant, no goto; while and do only "
    "with a LOOP_TRIPCOUNT.",
    "trip-count": "A for loop with run-time bounds has LOOP_TRIPCOUNT with min and max.",
    "loop-label": "A label stands directly before each loop, but for those that are wholly "
    "unrolled and have constant bounds.",
    "label-twice": "A label stands once in a function.",
    "qor": '"loops" of qor.json lists the labelled loops that are pipelined, all of them and no '
    "others, with the II that the pragma asks for: the loops of the kernel's folder, and in other "
    "headers those that its functions reach.",
}
"""What each rule asks for on what a source may contain at all, and on what it must declare."""


def rules() -> dict[str, str]:
    """What each rule asks for, by the rule's name.

    Raises:
        ImportError: libclang is not installed.
    """
    from hls_kernels.lint.hardware import HARDWARE_RULES  # it imports clang

    asked = {name: check.__doc__ or "" for name, (check, *_) in HARDWARE_RULES.items()}
    return SOURCE_RULES | {name: text.partition("\n\n")[0] for name, text in asked.items()}


def findings() -> list[Finding]:
    """What the rules find in the kernels of the project.

    Raises:
        ImportError: libclang is not installed.
        EcorlError: the compiler, its headers or a file are missing.
    """
    from hls_kernels.lint.judge import judge  # it imports clang

    return judge(all_kernels())[0]
