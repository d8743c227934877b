"""AdamW whose steps shorten while the training stage computes in a noisy gear.

CarbonGearRL, section 3.2, gives each gear a temperature gamma = sigma_gear / sigma_BF16, the noise
of its gradients over that of BF16 (`ecorl.trainer.optimizer.noise` measures it), and says that
"low-precision steps (FP8: gamma about 4) thus automatically decelerate". The step here is

    theta <- (1 - lr lambda) theta - lr m_hat / (gamma sqrt(v_hat) + eps),        gamma >= 1,

with the moments, their bias correction and the decoupled decay of torch's AdamW. The decay is
multiplied with the undivided learning rate: a gear does not change what the weights are drawn to.

Two slips of the paper's Eq. 11, theta - lr m / (sqrt(v) / gamma + eps) + lambda theta, are not
followed: it *divides* sqrt(v) by gamma, so that a noisy gear would take larger steps, against the
text, and its weight decay has the wrong sign (and no learning rate), so that weights would grow.
``form="literal"`` computes Eq. 11 as printed, with the bias correction of the paper's appendix B.2;
it is there for an ablation and for nothing else: weights grow by lambda at each step.

Because gamma sqrt(v) + eps = gamma (sqrt(v) + eps / gamma), a step is torch's own with lr / gamma,
eps / gamma and gamma lambda. So torch's step runs, whichever of its paths it takes (single tensor,
foreach, fused, capturable, differentiable), and at gamma = 1 it runs with its very own numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, Literal, TypedDict, Unpack

import torch
from torch import Tensor
from torch.optim import AdamW
from torch.optim.optimizer import ParamsT

from ecorl.errors import ConfigError

Form = Literal["decelerate", "literal"]
DECELERATE: Final = "decelerate"
LITERAL: Final = "literal"
"""How gamma enters a step. Plain strings, so that a checkpoint of them is read by ``torch.load``
with ``weights_only``."""


class AdamWFlags(TypedDict, total=False):
    """The flags of torch's AdamW that are handed on to it as they are."""

    maximize: bool
    foreach: bool | None
    capturable: bool
    differentiable: bool
    fused: bool | None


class PrecisionAdaptiveAdamW(AdamW):
    """torch's AdamW with the denominator gamma sqrt(v_hat) + eps (CarbonGearRL, Eq. 11).

    At gamma = 1 its steps are torch's to the last bit. Each parameter group has its gamma and its
    form, so that both are in the checkpoint. A checkpoint of torch's AdamW loads with gamma = 1,
    and one of this class loads into torch's AdamW, which passes over what it does not know.

    In a CUDA graph gamma stands as it was when the graph was captured: each gear wants its own.

    Args:
        params: as of torch's AdamW.
        lr: as of torch's AdamW.
        betas: as of torch's AdamW.
        eps: as of torch's AdamW.
        weight_decay: as of torch's AdamW.
        amsgrad: as of torch's AdamW.
        gamma: noise of the gear over that of BF16, 1 or more.
        form: ``decelerate``, or ``literal`` for Eq. 11 with its slips, see the module's text.
        **flags: ``maximize``, ``foreach``, ``capturable``, ``differentiable``, ``fused``.

    Raises:
        ValueError: for a gamma below 1 or not finite, an unknown form, and what torch refuses.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        betas: tuple[float | Tensor, float | Tensor] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        gamma: float = 1.0,
        form: Form = DECELERATE,
        **flags: Unpack[AdamWFlags],
    ) -> None:
        # Before torch makes the groups: it calls `add_param_group`, which looks for them.
        self._own_defaults = {"gamma": _checked_gamma(gamma), "form": _checked_form(form)}
        super().__init__(params, lr, betas, eps, weight_decay, amsgrad, **flags)
        self.defaults.update(self._own_defaults)
        del self._own_defaults

    _in_place_of: AdamW | None = None
    """The optimizer that it was made of, whose schedulers set its learning rate."""

    @property
    def gamma(self) -> float | None:
        """The gamma of all parameter groups; None where they differ."""
        gammas = {group["gamma"] for group in self.param_groups}
        return float(gammas.pop()) if len(gammas) == 1 else None

    def decelerate(self, gamma: float, form: Form | None = None) -> None:
        """Set the gamma of all parameter groups, from the next step on.

        Args:
            gamma: noise of the gear over that of BF16; 1.0 for torch's own steps.
            form: how gamma enters a step, see the class; None: as it does now.

        Raises:
            ValueError: for a gamma below 1 or not finite, and an unknown form; nothing is changed
                then.
        """
        own: dict[str, object] = {"gamma": _checked_gamma(gamma)}
        if form is not None:
            own["form"] = _checked_form(form)
        for group in (self.defaults, *self.param_groups):
            group.update(own)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a parameter group, as torch does; it may have a ``gamma`` and a ``form`` of its own.

        Args:
            param_group: ``params`` and what differs from the optimizer's defaults.

        Raises:
            ValueError: for a gamma below 1 or not finite, an unknown form, and what torch refuses.
        """
        if isinstance(param_group, dict):  # of anything else torch complains in its own words
            _complete(param_group, self.__dict__.get("_own_defaults", self.defaults))
        super().add_param_group(param_group)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take a state over, of a checkpoint or a pickle; where it has no gamma, gamma is 1."""
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self.defaults.setdefault("gamma", 1.0)
        self.defaults.setdefault("form", DECELERATE)
        for group in self.param_groups:
            _complete(group, {"gamma": 1.0, "form": self.defaults["form"]})
        if self._in_place_of is not None:
            # A checkpoint brings groups of its own: the scheduler has to find them.
            vars(self._in_place_of).update(state=self.state, param_groups=self.param_groups)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step.

        Args:
            closure: computes the loss again and returns it.

        Returns:
            What the closure returned; None without one.
        """
        loss = None
        if closure is not None:  # before the numbers are exchanged, which it may read
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            if group["form"] == LITERAL and group["weight_decay"] != 0:
                self._grow(group)
        with _exchanged(self.param_groups):
            _plain_step()(self)
        return loss

    def _grow(self, group: dict[str, Any]) -> None:
        """Add lambda theta to the weights, as Eq. 11 has it."""
        found_inf = getattr(self, "found_inf", None)  # set by a GradScaler, for fused steps alone
        with torch.set_grad_enabled(self.defaults["differentiable"]):
            for weight in group["params"]:
                if weight.grad is not None:
                    skip = 0.0 if found_inf is None else found_inf.to(weight.device)
                    weight.mul_(1.0 + group["weight_decay"] * (1.0 - skip))


def adapted(optimizer: AdamW) -> PrecisionAdaptiveAdamW:
    """Make a precision-adaptive optimizer of torch's AdamW, to be used in place of it.

    Parameter groups, state and hooks are shared with the old one, not copied: moments go on where
    they were, and a learning-rate scheduler of the old one still sets the rate, also after a
    checkpoint was loaded. The old optimizer must not step any more. Its flags are kept. One that is
    precision-adaptive is returned as it is.

    Args:
        optimizer: made by the framework, not wrapped in anything.

    Raises:
        ConfigError: with the key ``gears.optimizer``, for anything but torch's AdamW: what a
            subclass or another optimizer does with the denominator is not known.
    """
    if type(optimizer) is PrecisionAdaptiveAdamW:
        return optimizer
    if type(optimizer) is not AdamW:
        kind = type(optimizer)
        raise ConfigError(
            "gears.optimizer",
            f"{kind.__module__}.{kind.__qualname__}",
            "torch.optim.AdamW (in TRL optim = 'adamw_torch' or 'adamw_torch_fused')",
        )
    taken = dict(vars(optimizer))
    # A scheduler counts steps by a method that it puts on the instance and that calls torch's own.
    taken.pop("step", None)
    taken["defaults"] = dict(optimizer.defaults)
    new = PrecisionAdaptiveAdamW.__new__(PrecisionAdaptiveAdamW)
    new.__setstate__(taken)
    new._in_place_of = optimizer
    return new


def _plain_step() -> Callable[[AdamW], object]:
    """Give torch's step without its hooks, which run around ours and would run twice.

    torch hooks the method of a class when its first instance is made: what it is can only be seen
    when a step is taken.
    """
    step: Any = AdamW.step
    if getattr(step, "hooked", False):
        step = step.__wrapped__
    return step  # type: ignore[no-any-return]


@contextmanager
def _exchanged(groups: list[dict[str, Any]]) -> Iterator[None]:
    """Put the numbers with which torch's step is ours into the groups, and the user's back."""
    saved = []
    try:
        for group in groups:
            numbers = _numbers(group)
            saved.append((group, {key: group[key] for key in numbers}))
            group.update(numbers)
        yield
    finally:
        for group, numbers in saved:
            group.update(numbers)


def _numbers(group: Mapping[str, Any]) -> dict[str, Any]:
    """What lr, eps and weight decay torch's step must have; empty where it has the right ones."""
    gamma = group["gamma"]
    if group["form"] == LITERAL:
        return {"lr": group["lr"] * gamma, "eps": group["eps"] * gamma, "weight_decay": 0.0}
    if gamma == 1.0:
        return {}
    return {
        "lr": group["lr"] / gamma,
        "eps": group["eps"] / gamma,
        "weight_decay": group["weight_decay"] * gamma,
    }


def _complete(group: dict[str, Any], defaults: Mapping[str, Any]) -> None:
    """Give a group what it lacks of gamma and form, and check what it has."""
    group["gamma"] = _checked_gamma(group.get("gamma", defaults["gamma"]))
    group["form"] = _checked_form(group.get("form", defaults["form"]))


def _checked_gamma(gamma: float) -> float:
    value = float(gamma)
    if not (math.isfinite(value) and value >= 1.0):
        raise ValueError(f"gamma = {gamma}: allowed is a finite number, 1 or more")
    return value


def _checked_form(form: str) -> str:
    if form not in (DECELERATE, LITERAL):
        raise ValueError(f"form = {form!r}: allowed is {DECELERATE!r} or {LITERAL!r}")
    return form
