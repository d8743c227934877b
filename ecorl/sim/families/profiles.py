"""Device profiles that no packaged file holds: CPUs, and cards at the limit of their silicon."""

from __future__ import annotations

from dataclasses import replace

from ecorl.devices import DeviceFigure, DeviceProfile, load_profile
from ecorl.records import DeviceKind, Provenance


def cpu_profile(n_cores: int = 4) -> DeviceProfile:
    """A CPU as the GPU path, with the assumptions of the ``host_cpu`` profile on fixed cores."""
    source = "assumed: the host_cpu profile's figures a core, 2.5 GHz, 32 FLOP a cycle"
    figures = {
        "idle_w": (1.5 * n_cores, "W"),
        "active_w": (6.0 * n_cores, "W"),
        "tdp_w": (6.0 * n_cores, "W"),
        "peak_fp32_flops": (n_cores * 2.5e9 * 32, "FLOP/s"),
        "memory_bytes": (64e9, "B"),
        "memory_bytes_per_s": (8e9 * n_cores, "B/s"),
        "launch_s": (1e-4, "s"),
        "mfu_prefill": (0.5, "1"),
        "mfu_train": (0.35, "1"),
        "mbu_decode": (0.6, "1"),
        "n_cores": (float(n_cores), "1"),
    }
    made = {
        k: DeviceFigure(v, unit, Provenance.MODELLED, source) for k, (v, unit) in figures.items()
    }
    return DeviceProfile(f"cpu{n_cores}", f"CPU with {n_cores} cores", DeviceKind.CPU, made)


def silicon_card(name: str, clock_share: float = 1.0) -> DeviceProfile:
    """Make up a card from what a named part's silicon can do at most.

    All its DSPs multiply, at a share of the data sheet's highest clock; its memory and its link are
    the real ones, and it draws its board's limit at the full clock. What the part's own profile
    does not hold is that of the U55C. No kernels for it exist.

    Args:
        name: profile of the part, ``u55c`` or ``v80``.
        clock_share: clock over the data sheet's highest, above 0 to 1.
    """
    part, known = load_profile(name), load_profile("u55c")
    tdp_w = part.value("tdp_w")
    resting = known.value("idle_w") / known.value("tdp_w")
    source = (
        f"hypothetical: all DSPs of a {name} at {clock_share:.3g} of its data sheet's clock, power "
        "in proportion to the clock above idle, up to the board's limit"
    )
    idle_w = part.get("idle_w") or resting * tdp_w
    made = {
        "clock_hz": clock_share * part.value("clock_max_hz"),
        "n_dsp_used": part.value("n_dsp"),
        "n_dsp_usable": part.value("n_dsp"),
        "idle_w": idle_w,
        "active_w": idle_w + clock_share * (tdp_w - idle_w),
    }
    figures: dict[str, DeviceFigure] = {**known.figures, **part.figures}
    for key, value in made.items():
        figure = figures[key]
        figures[key] = replace(
            figure, value=value, low=None, high=None, provenance=Provenance.MODELLED, source=source
        )
    title = f"hypothetical {part.title} at its silicon's limit"
    return DeviceProfile(f"{name}_silicon_{clock_share:.3g}", title, DeviceKind.FPGA, figures)


def varied_gpu(name: str, speed: float, power: float) -> DeviceProfile:
    """Make up a GPU from a known one; for training alone.

    Args:
        name: profile of the known GPU.
        speed: factor on its arithmetic and its memory's bandwidth.
        power: factor on all of its power.
    """
    base = load_profile(name)
    factors = dict.fromkeys(("peak_bf16_flops", "memory_bytes_per_s"), speed)
    factors |= dict.fromkeys(("idle_w", "active_w", "tdp_w", "busy_w"), power)
    # Of a byte and an operation: the same share of the power over the same share of the speed.
    factors |= dict.fromkeys(("j_per_byte", "j_per_op"), power / speed)
    source = f"made up: {name} at {speed:.3g} x its speed and {power:.3g} x its power"
    figures = dict(base.figures)
    for key, factor in factors.items():
        figure = figures.get(key)
        if figure is not None:
            figures[key] = replace(
                figure, value=figure.value * factor, low=None, high=None,
                provenance=Provenance.MODELLED, source=source,
            )  # fmt: skip
    return DeviceProfile(f"{name}_x{speed:.3g}", f"made-up {base.title}", DeviceKind.GPU, figures)
