"""Programs of matrix products with what comes before and after them, and shapes of their inputs."""

import torch
import torch.nn.functional as F


def linear_with_activation(x, w, b):
    return F.gelu(F.linear(x, w, b))


def norm_before(x, g, w):
    return F.rms_norm(x, (x.shape[-1],), g) @ w.t()


def layer_norm_before(x, g, b, w):
    return F.relu(F.linear(F.layer_norm(x, (x.shape[-1],), g, b), w))


def gated(x, w, v, d):
    return x + (F.silu(x @ w) * (x @ v)) @ d


def gate_in_one_weight(x, w):
    a, b = (x @ w).chunk(2, -1)
    return F.silu(a) * b


def attention(q, k, v):
    return F.softmax(q @ k.transpose(-1, -2) / 4, -1) @ v


def normed_attention(q, k, v, g, angles):
    """Norms and rotations before a product: sums over the depth on both of its sides."""

    def rotated(x):
        x = F.rms_norm(x, (x.shape[-1],), g)
        a, b = x.chunk(2, -1)
        return x * angles.cos() + torch.cat([-b, a], -1) * angles.sin()

    return F.softmax(rotated(q) @ rotated(k).transpose(-1, -2), -1) @ v


def residual(x, w, r):
    return F.dropout((x @ w) * 0.5, 0.0) + r.t()


def quantized_weight(x, w, scale):
    return F.linear(x, torch.round(w * 8).to(torch.int8).to(x.dtype) * scale[:, None])


def deep(x, w):
    return (x.t() @ w).tanh()


def of_images(x, w):
    return torch.einsum("bchw,dc->bdhw", x, w).sigmoid()


PROGRAMS = [
    (linear_with_activation, [(37, 40), (50, 40), (50,)]),
    (norm_before, [(3, 17, 40), (40,), (50, 40)]),
    (layer_norm_before, [(37, 67), (67,), (67,), (50, 67)]),
    (gated, [(37, 48), (48, 70), (48, 70), (70, 48)]),
    (gate_in_one_weight, [(37, 48), (48, 70)]),
    (attention, [(2, 3, 17, 16), (2, 3, 23, 16), (2, 3, 23, 16)]),
    (normed_attention, [(2, 3, 17, 16), (2, 3, 17, 16), (2, 3, 17, 16), (16,), (17, 16)]),
    (residual, [(33, 20), (20, 18), (18, 33)]),
    (quantized_weight, [(5, 64), (33, 64), (33,)]),
    (deep, [(700, 9), (700, 11)]),
    (of_images, [(2, 20, 5, 3), (18, 20)]),
]
