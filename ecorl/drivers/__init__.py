"""Vendor drivers: the only lazy imports of ``pynvml`` and ``pyxrt``.

Each module reads one family of devices, converts to SI units at the edge and turns every error of
its driver into a class below `ecorl.errors.DriverError`. Nothing here is imported by
``import ecorl``, and importing these modules loads no vendor library: that happens in ``open``.
"""
