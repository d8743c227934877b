"""How much each rule of a pool counts, learnt from the errors that the rules made before."""

from __future__ import annotations

import numpy as np

from ecorl.carbon.forecasts.hindcast import Hindcast
from ecorl.carbon.forecasts.history import HOUR_S, FloatArray

STEPS = 20
"""Steps of the descent toward the best weights. Few on purpose: the descent starts from weights by
each rule's own error, and the farther it goes, the more it believes chance."""

STEP_SIZE = 0.4
"""Size of such a step. Tuned on real grids together with `STEPS`."""

CAUTION_H = 72.0
"""Lead time beyond which the descent goes less far, h: by this time over the lead time, to the
power of 1.5. Long lead times bring few independent errors to learn from. Tuned on real grids; the
power is invented."""

_RIDGE = 0.1
"""What is added to each rule's own squared error, as a share of it. Invented: keeps two rules that
say the same from being played off against each other."""

_SMALLEST = 0.01
"""Errors are taken relative to the signal's size at their time, but to no less than this share of
its mean size. Invented: keeps hours at which a signal is zero from counting alone."""

_NEWEST_CAUTION = 10.0
"""Independent errors at which the pull of the newest value is believed by half. Invented: about ten
are needed to tell a slope of one half from none."""


def learn_weights(predicted: FloatArray, tried: Hindcast, step_s: float) -> FloatArray:
    """Weights with which the rules together would have made the least squared relative error.

    They come from exponentiated gradient descent on the discounted covariance of the rules' errors
    (Kivinen and Warmuth 1997), so that they are positive and sum to one.

    Args:
        predicted: ``[M, O, L] float64``, what each rule said.
        tried: where it said so, and what came.
        step_s: length of an interval, s.

    Returns:
        ``[C, M, G] float64``, the weights as they were known at each checkpoint; all equal where
        no error was known.
    """
    rules, checkpoints, groups = len(predicted), *tried.independent.shape
    if predicted.size == 0:
        return np.full((checkpoints, rules, groups), 1.0 / rules)
    size = _sizes(predicted, tried.truth)
    covariance = _covariances((predicted - tried.truth) / size[:, None], tried)
    own = np.einsum("cgii->cgi", covariance).copy()
    known = own.sum(axis=-1) > 0.0
    scale = np.where(known, own.mean(axis=-1), 1.0)[..., None]
    covariance, own = covariance / scale[..., None], own / scale
    own = np.where(known[..., None], np.maximum(own, 1e-6), 1.0)
    covariance[~known] = np.eye(rules)
    np.einsum("cgii->cgi", covariance)[...] += _RIDGE * own
    lead_h = tried.groups.centres * step_s / HOUR_S
    step = STEP_SIZE * np.minimum(1.0, CAUTION_H / lead_h) ** 1.5
    weights = 1.0 / own
    weights /= weights.sum(axis=-1, keepdims=True)
    for _ in range(STEPS):
        slope = np.matmul(covariance, weights[..., None])[..., 0]
        loss = np.sum(weights * slope, axis=-1, keepdims=True)
        weights *= np.exp(-step[:, None] * slope / loss)
        weights /= weights.sum(axis=-1, keepdims=True)
    return np.ascontiguousarray(weights.transpose(0, 2, 1))


def learn_pull(errors: FloatArray, residuals: FloatArray, tried: Hindcast) -> FloatArray:
    """How much of the newest value's distance from the day's mean is still there later.

    This is the impulse response of an autoregression on that distance, estimated for each group of
    lead times by itself, and held back where few errors are known.

    Args:
        errors: ``[O, L] float64``, truth less the pool's forecast; NaN where unknown.
        residuals: ``[O] float64``, the newest value's distance at each origin.
        tried: where the errors were made.

    Returns:
        ``[C, G] float64``, as known at each checkpoint, without unit.
    """
    used = np.where(np.isnan(errors), 0.0, errors)
    product = tried.weight * used * residuals[:, None]
    square = tried.weight * residuals[:, None] ** 2
    pull = np.zeros_like(tried.independent)
    if errors.size == 0:
        return pull
    for group in range(pull.shape[1]):
        columns = tried.columns(group)
        known_at = tried.known_at[:, columns].ravel() + 1
        above, below = (
            np.bincount(known_at, part[:, columns].ravel(), minlength=tried.checkpoints + 1)
            for part in (product, square)
        )
        above, below = (
            np.cumsum(part[1 : tried.checkpoints + 1][::-1])[::-1] for part in (above, below)
        )
        pull[:, group] = np.divide(above, below, out=np.zeros_like(above), where=below > 0.0)
    return pull * tried.independent / (tried.independent + _NEWEST_CAUTION)


def _sizes(predicted: FloatArray, truth: FloatArray) -> FloatArray:
    """How large the signal was taken to be at each origin, ``[O] float64``, never 0."""
    came = np.abs(truth[~np.isnan(truth)])
    usual = float(np.abs(predicted).mean()) + (float(came.mean()) if came.size else 0.0)
    if usual == 0.0:
        return np.ones(predicted.shape[1])
    sizes: FloatArray = np.maximum(np.mean(np.abs(predicted), axis=(0, 2)), _SMALLEST * usual)
    return sizes


def _covariances(errors: FloatArray, tried: Hindcast) -> FloatArray:
    """Sums of products of the rules' errors, ``[C, G, M, M]``, as known at each checkpoint."""
    rules, groups = len(errors), len(tried.groups.centres)
    found = np.zeros((tried.checkpoints, groups, rules, rules))
    for group in range(groups):
        columns = tried.columns(group)
        known_at = tried.known_at[:, columns].ravel()
        order = np.argsort(known_at, kind="stable")
        order = order[known_at[order] >= 0]
        weighted = np.sqrt(tried.weight[:, columns].ravel()[order])
        table = errors[:, :, columns].reshape(rules, -1)[:, order] * weighted
        edges = np.searchsorted(known_at[order], np.arange(tried.checkpoints + 1))
        for checkpoint in range(tried.checkpoints):
            part = table[:, edges[checkpoint] : edges[checkpoint + 1]]
            found[checkpoint, group] = part @ part.T
    return np.cumsum(found[::-1], axis=0)[::-1].copy()
