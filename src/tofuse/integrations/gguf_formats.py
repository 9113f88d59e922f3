"""The quantized formats of GGUF files: where the parts of a block are, and what they decode to.

A row of a weight is stored in blocks. The parts of a block (codes, scales, minima) become tensors
of their own when a file is read. They take the same memory, except that the six-bit scales of the K
formats get a byte each; codes of four bits are paired anew. The formulas are those of the format's
specification, https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, and of `gguf.quants`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

Parts = dict[str, Tensor]

# Code book of IQ4_NL.
NONLINEAR_VALUES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)


@dataclass(frozen=True)
class Format:
    """A format of blocks of `elements` numbers in `nbytes` bytes.

    `split` takes the bytes of blocks, [..., nbytes], and returns its parts. `decode` takes the
    parts and returns the numbers in float32, of shape [..., elements] or one that reshapes to it.
    """

    elements: int
    nbytes: int
    split: Callable[[Tensor], Parts]
    decode: Callable[[Mapping[str, Tensor]], Tensor]


def _fields(**widths: int) -> Callable[[Tensor], Parts]:
    """Return a function that cuts blocks into fields of so many bytes.

    `d` and `m` become float16, a field `h` of four bytes int32.
    """

    def split(blocks: Tensor) -> Parts:
        cut = blocks.split(tuple(widths.values()), -1)
        parts = {name: part.contiguous() for name, part in zip(widths, cut, strict=True)}
        halves = {n: parts[n].view(torch.float16) for n in ("d", "m") if n in parts}
        words = {
            n: parts[n].view(torch.int32) for n, width in widths.items() if (n, width) == ("h", 4)
        }
        return parts | halves | words

    return split


def _bits(codes: Tensor, width: int) -> Tensor:
    """Return the fields of `width` bits in bytes [..., n], lowest first: [..., 8 / width, n]."""
    shifts = torch.arange(0, 8, width, dtype=torch.uint8, device=codes.device)
    return (codes.unsqueeze(-2) >> shifts.unsqueeze(-1)) & (2**width - 1)


def _halves(codes: Tensor) -> Tensor:
    """Return the low halves of bytes, then the high ones: [..., n] to [..., 2 n]."""
    return torch.cat((codes & 15, codes >> 4), -1)


def _pack(codes: Tensor) -> Tensor:
    """Return pairs of codes of four bits in a byte, the first in the low half: for `_unpack`.

    Vectors of neighbours in pairs are loaded faster than halves of a block.
    """
    first, second = codes.unflatten(-1, (-1, 2)).unbind(-1)
    return first | (second << 4)


def _unpack(pairs: Tensor) -> Tensor:
    return torch.stack((pairs & 15, pairs >> 4), -1).flatten(-2)


def _fifth_bits(high: Tensor) -> Tensor:
    """Return the bits of an int32, lowest first, as values of 0 or 16: [..., 1] to [..., 32]."""
    shifts = torch.arange(32, dtype=torch.int32, device=high.device)
    return ((high >> shifts) & 1) << 4


def _q4_0(p: Mapping[str, Tensor]) -> Tensor:
    return (_unpack(p["q"]).float() - 8) * p["d"].float()


def _q4_1(p: Mapping[str, Tensor]) -> Tensor:
    return _unpack(p["q"]).float() * p["d"].float() + p["m"].float()


def _q5_0(p: Mapping[str, Tensor]) -> Tensor:
    return ((_unpack(p["q"]) | _fifth_bits(p["h"])).float() - 16) * p["d"].float()


def _q5_1(p: Mapping[str, Tensor]) -> Tensor:
    return (_unpack(p["q"]) | _fifth_bits(p["h"])).float() * p["d"].float() + p["m"].float()


def _q8_0(p: Mapping[str, Tensor]) -> Tensor:
    return p["q"].view(torch.int8).float() * p["d"].float()


def _iq4_nl(p: Mapping[str, Tensor]) -> Tensor:
    values = torch.tensor(NONLINEAR_VALUES, dtype=torch.float32, device=p["q"].device)
    return values[_unpack(p["q"]).int()] * p["d"].float()


def _q2_k(p: Mapping[str, Tensor]) -> Tensor:
    codes = _bits(p["q"].unflatten(-1, (2, 32)), 2).flatten(-3).unflatten(-1, (16, 16)).float()
    scales, least = p["s"] & 15, p["s"] >> 4
    scaled = codes * (p["d"].float() * scales.float()).unsqueeze(-1)
    return scaled - (p["m"].float() * least.float()).unsqueeze(-1)


def _q3_k(p: Mapping[str, Tensor]) -> Tensor:
    low = _bits(p["q"].unflatten(-1, (2, 32)), 2).flatten(-3).unflatten(-1, (16, 16))
    high = _bits(p["h"], 1).flatten(-2).unflatten(-1, (16, 16))
    codes = low.float() - 4 + 4 * high.float()
    return codes * (p["d"].float() * p["s"].view(torch.int8).float()).unsqueeze(-1)


def _k_scaled(codes: Tensor, p: Mapping[str, Tensor]) -> Tensor:
    """Scale eight groups of 32 codes, and subtract the minimum of each."""
    scaled = codes.float() * (p["d"].float() * p["s"].float()).unsqueeze(-1)
    return scaled - (p["m"].float() * p["l"].float()).unsqueeze(-1)


def _q4_k(p: Mapping[str, Tensor]) -> Tensor:
    return _k_scaled(_unpack(p["q"]), p)


def _q5_k(p: Mapping[str, Tensor]) -> Tensor:
    return _k_scaled(_unpack(p["q"]) | (_bits(p["h"], 1) << 4), p)


def _q6_k(p: Mapping[str, Tensor]) -> Tensor:
    low = _bits(p["q"].unflatten(-1, (2, 64)), 4).flatten(-3).unflatten(-1, (16, 16))
    high = _bits(p["h"].unflatten(-1, (2, 32)), 2).flatten(-3).unflatten(-1, (16, 16))
    codes = (low | (high << 4)).float() - 32
    return codes * (p["d"].float() * p["s"].view(torch.int8).float()).unsqueeze(-1)


def _paired(**widths: int) -> Callable[[Tensor], Parts]:
    """Return `_fields`, with the codes `q` of four bits in pairs."""
    fields = _fields(**widths)

    def split(blocks: Tensor) -> Parts:
        parts = fields(blocks)
        return parts | {"q": _pack(_halves(parts["q"]))}

    return split


def _split_k(**widths: int) -> Callable[[Tensor], Parts]:
    """Return `_fields`, with codes in pairs, and scales and minima of six bits as bytes `s`, `l`.

    The codes `q` of eight groups of 32 are stored as the low and the high halves of four groups of
    bytes. Of the 12 bytes of scales, bytes 0 to 3 have the first four scales and bits 4 and 5 of
    the last four; bytes 4 to 7 have the same of the minima; bytes 8 to 11 have the low halves of
    the last four of both.
    """
    fields = _fields(**widths)

    def split(blocks: Tensor) -> Parts:
        parts = fields(blocks)
        parts["q"] = _pack(_bits(parts["q"].unflatten(-1, (4, 32)), 4).flatten(-3, -2))
        scales, least, low = parts["s"].split(4, -1)
        parts["s"] = torch.cat((scales & 63, (low & 15) | ((scales >> 2) & 48)), -1)
        parts["l"] = torch.cat((least & 63, (low >> 4) | ((least >> 2) & 48)), -1)
        return parts

    return split


def _split_q3_k(blocks: Tensor) -> Parts:
    """Cut blocks into fields, with the 16 scales of 6 bits as signed bytes, stored as bytes."""
    parts = _fields(h=32, q=64, s=12, d=2)(blocks)
    low, high = parts["s"].split((8, 4), -1)
    scales = _halves(low) | (_bits(high, 2).flatten(-2) << 4)
    parts["s"] = (scales.to(torch.int8) - 32).view(torch.uint8)
    return parts


FORMATS: dict[str, Format] = {
    "Q4_0": Format(32, 18, _paired(d=2, q=16), _q4_0),
    "Q4_1": Format(32, 20, _paired(d=2, m=2, q=16), _q4_1),
    "Q5_0": Format(32, 22, _paired(d=2, h=4, q=16), _q5_0),
    "Q5_1": Format(32, 24, _paired(d=2, m=2, h=4, q=16), _q5_1),
    "Q8_0": Format(32, 34, _fields(d=2, q=32), _q8_0),
    "IQ4_NL": Format(32, 18, _paired(d=2, q=16), _iq4_nl),
    "Q2_K": Format(256, 84, _fields(s=16, q=64, d=2, m=2), _q2_k),
    "Q3_K": Format(256, 110, _split_q3_k, _q3_k),
    "Q4_K": Format(256, 144, _split_k(d=2, m=2, s=12, q=128), _q4_k),
    "Q5_K": Format(256, 176, _split_k(d=2, m=2, s=12, h=32, q=128), _q5_k),
    "Q6_K": Format(256, 210, _fields(q=128, h=64, s=16, d=2), _q6_k),
}


def split_rows(rows: Tensor, kind: str) -> Parts:
    """Return the parts of a weight from the bytes of its rows: [*rows, bytes of a row]."""
    form = FORMATS[kind]
    return form.split(rows.unflatten(-1, (-1, form.nbytes)))
