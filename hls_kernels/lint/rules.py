"""The rules on what a source may contain at all, and on what it must declare."""

from __future__ import annotations

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
"""What each rule asks for, by the name that its findings carry."""
