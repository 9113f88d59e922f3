"""Which statements the referee in float64 can judge."""

import re
from collections.abc import Sequence

import torch
from torch import Tensor

from suites.fuzz.program import Namespace, Statement

MOST_OF_TANH = 2.5  # where its derivative is less than 0.03
MOST_OF_MEAN = 8  # in standard deviations
FUNCTIONS = (
    "scaled_dot_product_attention|layer_norm|group_norm|normalize|cosine_similarity|sinc|tanh|"
    "var_mean|std_mean"
)
CALL = re.compile(rf"(?:(?:F|torch)\.({FUNCTIONS})\(|\b(?=\w+\.(tanh|var|std)\())(\w+)(?:, (\w+))?")
PIECES = re.compile(r"(\w+)\.(unbind|h?split)\(")
MOST_PIECES = 128  # torch's symbolic sizes take minutes for more views
DIM = re.compile(r"(?:\.var\(|\.std\(|_mean\(\w+, )(-?\d+)")


def cannot_be_judged(s: Statement, names: Namespace, inputs: Sequence[object]) -> bool:
    """Return whether the results of a statement say nothing, or take too long."""
    return (
        rounds_unseen(s.text, names)
        or reads_leftovers(s, names, inputs)
        or has_many_pieces(s.text, names)
    )


def rounds_unseen(text: str, names: Namespace) -> bool:
    """Return whether rounding inside a call is most of what its result or gradient has.

    The gradient of a norm of one number is zero, that of `sinc` cancels near 0, and that of `tanh`
    far from it, and that of attention where it attends to one place. A norm of numbers that differ
    little has the errors of their mean. A vector over its own length does not depend on its length:
    not at all, if it repeats one number. The referee adds rounding errors between calls only.
    """
    found = CALL.search(text)
    operands = [names.get(n) for n in (found[3], found[4])] if found else []
    x, y = operands if operands else (None, None)
    if found is None or not isinstance(x, Tensor):
        return False
    name = found[1] or found[2]
    if name == "scaled_dot_product_attention":  # float64 is its own referee
        return x.requires_grad and x.dtype == torch.float64
    if name in ("sinc", "tanh"):
        far = x.numel() > 0 and bool((x.detach().abs() > MOST_OF_TANH).all())
        return x.requires_grad and (name == "sinc" or far)
    if not x.dim():
        return True
    if name in ("cosine_similarity", "normalize"):
        dim = re.search(r"dim=(-?\d+)", text)
        assert dim is not None
        if name == "normalize":
            return x.requires_grad and _repeats(x, x.dim(), int(dim[1]))
        assert isinstance(y, Tensor)
        if min(x.dtype.itemsize, y.dtype.itemsize) == 2:  # eager rounds the norms to it
            return True
        if x is y and x.requires_grad:  # whose gradient is zero
            return True
        return any(_repeats(z, x.dim(), int(dim[1])) for z in (x, y))
    dims = [-1] if name == "layer_norm" else list(range(1, x.dim()))
    if name != "group_norm" and (dim := DIM.search(text)):
        dims = [int(dim[1])]
    mean = x.detach().double().mean(dims).abs()
    spread = x.detach().double().std(dims, correction=0)
    most = MOST_OF_MEAN if x.dtype.itemsize > 2 else 1
    return bool((mean > most * spread).any())


def _repeats(x: Tensor, rank: int, dim: int) -> bool:
    """Return whether a tensor that is broadcast to a rank has one number along a dimension."""
    axis = dim % rank - (rank - x.dim())
    return axis < 0 or x.shape[axis] == 1 or x.stride(axis) == 0


def reads_leftovers(s: Statement, names: Namespace, inputs: Sequence[object]) -> bool:
    """Return whether a view may reach what an operator left beside its result.

    Some losses leave the terms of their mean there.
    """
    x = names.get(s.reads[0]) if "as_strided" in s.text else None
    if not isinstance(x, Tensor):
        return False
    given = {storage_of(y) for y in inputs if isinstance(y, Tensor)}
    whole = x if x._base is None else x._base
    has_leftovers = whole.untyped_storage().nbytes() > whole.numel() * whole.itemsize
    return has_leftovers and storage_of(x) not in given


def has_many_pieces(text: str, names: Namespace) -> bool:
    """Return whether a call may split a tensor into more views than torch can trace soon."""
    found = PIECES.search(text)
    x = names.get(found[1]) if found else None
    return isinstance(x, Tensor) and max(x.shape, default=0) > MOST_PIECES


def reads_beyond(s: Statement, names: Namespace) -> bool:
    """Return whether attention has fewer keys than values: eager reads keys beyond the last one."""
    attention = re.search(r"scaled_dot_product_attention\(\w+, (\w+), (\w+)", s.text)
    keys, values = (
        (names.get(n) for n in (attention[1], attention[2])) if attention else (None, None)
    )
    if not isinstance(keys, Tensor) or not isinstance(values, Tensor):
        return False
    return keys.dim() > 1 and values.dim() > 1 and keys.shape[-2] != values.shape[-2]


def is_tame(x: Tensor) -> bool:
    """Return whether numbers are finite and not so large that they soon are not."""
    if x.is_complex():
        x = torch.view_as_real(x.resolve_conj())
    if not x.is_floating_point() or not x.numel():
        return True
    return bool((x.detach().abs().double() < 1e3).all())


def storage_of(x: Tensor) -> int:
    """Return what identifies the memory of a tensor that stays alive."""
    return x.untyped_storage().data_ptr() or id(x)
