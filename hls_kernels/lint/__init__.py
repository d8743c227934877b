"""Checks that the kernel sources keep to what Vitis HLS can synthesise.

Run as ``python -m hls_kernels.lint``.

No synthesis runs here. Each kernel source is compiled with ``__SYNTHESIS__`` defined and without
the macros of the C-simulation, then clang's syntax tree of the project's files is checked. Code
that the preprocessor removes in that configuration is left out, as are system headers, ap_int and
hls_stream. A kernel's sources are ``"sources"`` in its ``qor.json``, by default ``<kernel>.cpp``;
all other ``.cpp`` files of the folder run on the host. A folder is a kernel's when it has a
``qor.json`` that names ``"loops"`` or ``"sources"``, or one beside ``<kernel>.cpp``.

The rules, by the names that the findings carry:

=================  =================================================================================
``compile``        the source compiles as C++17 (no arrays of run-time length either)
``include``        outside our files only <cstdint>, <cstddef>, <type_traits>, <ap_int.h>,
                   <hls_stream.h> and what these include
``heap``           no new, delete, malloc family, nor a std name that allocates
``stl``            of std:: only int*_t, uint*_t, size_t and what <type_traits> declares
``libm``           no call into <cmath>
``float``          no float or double: neither type, value nor literal
``recursion``      no cycle in the call graph, templates included; no virtual functions and no
                   calls through pointers, which no graph can follow
``unbounded-loop`` no loop whose condition is missing or constant, no goto; while and do only with
                   a LOOP_TRIPCOUNT
``trip-count``     a for loop with run-time bounds has LOOP_TRIPCOUNT with min and max
``loop-label``     a label stands directly before each loop, but for those that are wholly
                   unrolled and have constant bounds
``label-twice``    a label stands once in a function
``qor``            ``"loops"`` of qor.json lists the labelled loops that are pipelined, all of them
                   and no others, with the II that the pragma asks for: the loops of the kernel's
                   folder, and in other headers those that its functions reach
=================  =================================================================================

A loop has constant bounds when it is a ``for`` that declares its variable, starts, steps and ends
at constants (template parameters and const variables made of constants count; the ``<`` of an
ap_int does not; so does the variable of a loop around it that is wholly unrolled and has constant
bounds), steps towards its end, and does not assign its variable in the body.
Loops in constexpr functions that only constant expressions call are no hardware and not checked.
A pragma belongs to the loop in whose body it stands directly, not inside a nested block.
"""
