"""Programs that decode the weight of a linear layer: formats of codes, by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

NORMAL_FLOATS = torch.tensor(
    (
        *(-1, -0.6961928, -0.5250731, -0.3949175, -0.2844414, -0.1847734, -0.09105, 0),
        *(0.0795803, 0.1609302, 0.2461123, 0.3379152, 0.4407098, 0.562617, 0.7229568, 1),
    )
)
CODEBOOK = torch.linspace(-2, 2, 27)


@dataclass(frozen=True)
class Format:
    """`make(rows, columns)` returns the codes, scales and so on; `decode` the weight.

    `decode` takes the dtype of the weight first. Columns are a multiple of `group`.
    """

    make: Callable[[int, int], tuple[Tensor, ...]]
    decode: Callable[..., Tensor]
    group: int = 1

    def layer(self, x: Tensor, *codes: Tensor) -> Tensor:
        return F.linear(x, self.decode(x.dtype, *codes))


def _scales(*shape: int) -> Tensor:
    return torch.rand(shape) * 0.02 + 0.001


def _int8(rows: int, columns: int) -> tuple[Tensor, ...]:
    return torch.randint(-128, 128, (rows, columns), dtype=torch.int8), _scales(rows, 1)


def _pairs(group: int) -> Callable[[int, int], tuple[Tensor, ...]]:
    def make(rows: int, columns: int) -> tuple[Tensor, ...]:
        codes = torch.randint(0, 256, (rows, columns // 2), dtype=torch.uint8)
        shape = (rows, columns // group)
        return codes, _scales(*shape), torch.randint(0, 16, shape).float()

    return make


def _unpack(codes: Tensor) -> Tensor:
    return torch.stack([codes & 15, codes >> 4], -1).reshape(codes.shape[0], -1)


def _grouped(q: Tensor, scale: Tensor) -> Tensor:
    return q.reshape(*scale.shape, -1) * scale[..., None]


def _int4_with_zero(dtype: torch.dtype, codes: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
    q = _unpack(codes).reshape(*scale.shape, -1).to(dtype) - zero[..., None].to(dtype)
    return (q * scale[..., None].to(dtype)).reshape(codes.shape[0], -1)


def _int4(dtype: torch.dtype, codes: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
    q = (_unpack(codes).to(torch.int8) - 8).to(dtype)
    repeats = q.shape[1] // scale.shape[1]
    return q * scale.repeat_interleave(repeats, 1).to(dtype)


def _looked_up(table: Tensor) -> Callable[..., Tensor]:
    def decode(dtype: torch.dtype, codes: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
        numbers = table[_unpack(codes).long()]
        return _grouped(numbers, scale).reshape(codes.shape[0], -1).to(dtype)

    return decode


def _codebook(dtype: torch.dtype, codes: Tensor, scale: Tensor) -> Tensor:
    return CODEBOOK[codes.int()].to(dtype) * scale.to(dtype)


def _ternary(dtype: torch.dtype, codes: Tensor, scale: Tensor) -> Tensor:
    parts = [(codes >> shift) & 3 for shift in (0, 2, 4, 6)]
    q = torch.stack(parts, -1).reshape(codes.shape[0], -1).to(torch.int8) - 1
    return q.to(dtype) * scale.to(dtype)


def _float8(dtype: torch.dtype, codes: Tensor, scale: Tensor) -> Tensor:
    return codes.to(dtype) * scale.to(dtype)


FORMATS = {
    "int8": Format(_int8, lambda dtype, w, s: w.to(dtype) * s.to(dtype)),
    "int4, groups of 32, zero": Format(_pairs(32), _int4_with_zero, 32),
    "int4, groups of 14": Format(_pairs(14), _int4, 14),
    "int4, groups of 128": Format(_pairs(128), _int4, 128),
    "nf4": Format(_pairs(64), _looked_up(NORMAL_FLOATS), 64),
    "codebook of 27": Format(
        lambda n, k: (torch.randint(0, 27, (n, k), dtype=torch.uint8), _scales(n, 1)), _codebook
    ),
    "ternary": Format(
        lambda n, k: (torch.randint(0, 256, (n, k // 4), dtype=torch.uint8), _scales(1)),
        _ternary,
        4,
    ),
    "float8_e4m3": Format(
        lambda n, k: (torch.randn(n, k).to(torch.float8_e4m3fn), _scales(n, 1)), _float8
    ),
    "float8_e5m2": Format(
        lambda n, k: (torch.randn(n, k).to(torch.float8_e5m2), _scales(n, 1)), _float8
    ),
}
