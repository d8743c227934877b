"""The quantised decoder in plain NumPy, row by row: what the kernels are held against.

Written from the description in decoder.hpp, not from the C++: products in int64, everything else
in float32 with NumPy's own functions, one row at a time, no blocks.
"""

from __future__ import annotations

import numpy as np

F = np.float32


def quantise(x):
    """Symmetric INT8 over the last axis: integers as int64, and the scale."""
    largest = np.abs(x).max(axis=-1, keepdims=True).astype(F)
    safe = np.where(largest < F(1e-30), F(1), largest)
    q = np.where(largest < F(1e-30), 0, np.rint(x * (F(127) / safe))).astype(np.int64)
    return q, np.where(largest < F(1e-30), F(0), largest / F(127)).astype(F)


def linear(x, weight, bias=None):
    """Quantised product of float rows with a float weight matrix."""
    (qx, sx), (qw, sw) = quantise(x), quantise(weight)
    out = (qx @ qw.T).astype(F) * sw[:, 0] * sx
    return out if bias is None else out + bias


def rmsnorm(x, weight, eps):
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + F(eps)) * weight


def rotate(x, position_angles):
    """Half rotation of ``[length, heads, d]``."""
    half = x.shape[-1] // 2
    c, s = np.cos(position_angles)[:, None].astype(F), np.sin(position_angles)[:, None].astype(F)
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * c - b * s, b * c + a * s], axis=-1)


def attention(q, k, v):
    """Causal attention of ``[length, heads, d]`` with GQA, all operands INT8."""
    length, n_heads, d = q.shape
    share = n_heads // k.shape[1]
    (q, sq), (k, sk), (v, sv) = quantise(q), quantise(k), quantise(v)
    out = np.zeros((length, n_heads, d), F)
    for h in range(n_heads):
        g = h // share
        scores = (q[:, h] @ k[:, g].T).astype(F) * sq[:, h] * sk[:, g].T / F(np.sqrt(d))
        for t in range(length):
            row = scores[t, : t + 1]
            p = np.exp(row - row.max())
            weights, worth = quantise(p * sv[: t + 1, g, 0])
            out[t, h] = (weights @ v[: t + 1, g]).astype(F) * (worth / p.sum())
    return out.reshape(length, n_heads * d)


def hidden(checkpoint, ids):
    """Residual stream ``[length, hidden]`` of one row before the final norm."""
    c, s, tensor = checkpoint.config, checkpoint.config.shape, checkpoint.tensor
    x = tensor("model.embed_tokens.weight")[ids]
    angles = np.arange(len(ids))[:, None] * c.rope.frequencies(s.head_dim)[None, :]
    for i in range(s.n_layers):
        at = f"model.layers.{i}"

        def project(name, x, at=at):
            bias = f"{at}.{name}.bias"
            has = bias in checkpoint.tensors
            return linear(x, tensor(f"{at}.{name}.weight"), tensor(bias) if has else None)

        normed = rmsnorm(x, tensor(f"{at}.input_layernorm.weight"), c.rms_norm_eps)
        q, k, v = (
            project(f"self_attn.{part}_proj", normed).reshape(len(ids), -1, s.head_dim)
            for part in "qkv"
        )
        context = attention(rotate(q, angles), rotate(k, angles), v)
        x = x + project("self_attn.o_proj", context)
        normed = rmsnorm(x, tensor(f"{at}.post_attention_layernorm.weight"), c.rms_norm_eps)
        gate, up = project("mlp.gate_proj", normed), project("mlp.up_proj", normed)
        x = x + project("mlp.down_proj", gate / (1 + np.exp(-gate)) * up)
    return x


def head(checkpoint, x):
    """The head's outputs for rows of the residual stream."""
    normed = rmsnorm(x, checkpoint.tensor("model.norm.weight"), checkpoint.config.rms_norm_eps)
    return linear(normed, checkpoint.tensor(checkpoint.head_name))


def reward(checkpoint, ids):
    return head(checkpoint, hidden(checkpoint, ids)[-1:])[0, 0]


def logprobs(checkpoint, ids, n_completion, temperature):
    if n_completion == 0:
        return np.zeros(0, F)
    first = len(ids) - 1 - n_completion
    z = head(checkpoint, hidden(checkpoint, ids)[first:-1]).astype(np.float64) / temperature
    top = z.max(axis=-1, keepdims=True)
    z = z - top - np.log(np.exp(z - top).sum(axis=-1, keepdims=True))
    return z[np.arange(n_completion), ids[first + 1 :]]
