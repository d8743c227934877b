"""Checks that the kernel sources keep to what Vitis HLS can synthesise.

Run as ``python -m hls_kernels.lint``.

No synthesis runs here. Each kernel source is compiled with ``__SYNTHESIS__`` defined and without
the macros of the C-simulation, then clang's syntax tree of the project's files is checked. Code
that the preprocessor removes in that configuration is left out, as are system headers, ap_int and
hls_stream. A kernel's sources are ``"sources"`` in its ``qor.json``, by default ``<kernel>.cpp``;
all other ``.cpp`` files of the folder run on the host. A folder is a kernel's when it has a
``qor.json`` that names ``"loops"`` or ``"sources"``, or one beside ``<kernel>.cpp``.

`rules` names the rules, as the findings do. What each of the first group means is in `rules.py`;
those of the second group, on hardware that Vitis would refuse or make slow or large, are in
`hardware`, whose functions say what Vitis does with such code.

A loop has constant bounds when it is a ``for`` that declares its variable, starts, steps and ends
at constants (template parameters and const variables made of constants count; the ``<`` of an
ap_int does not; so does the variable of a loop around it that is wholly unrolled and has constant
bounds), steps towards its end, and does not assign its variable in the body.
Loops in constexpr functions that only constant expressions call are no hardware and not checked.
A pragma belongs to the loop in whose body it stands directly, not inside a nested block.
"""

from __future__ import annotations

from hls_kernels.lint.findings import Finding
from hls_kernels.lint.kernels import all_kernels
from hls_kernels.lint.rules import SOURCE_RULES


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
