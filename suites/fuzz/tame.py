"""Which statements the referee in float64 can judge."""

import math
import re

import torch
from torch import Tensor

from suites.fuzz.program import Namespace


def rounds_unseen(text: str, names: Namespace) -> bool:
    """Return whether rounding inside a call is all that its result or gradient has.

    The gradient of a norm of one number is zero, that of `sinc` cancels near 0; a vector over its
    own length, in half precision, does not depend on the vector. The referee adds rounding errors
    between calls only.
    """
    found = re.search(r"(?:F|torch)\.(layer_norm|group_norm|cosine_similarity|sinc)\((\w+)", text)
    x = names.get(found[2]) if found else None
    if found is None or not isinstance(x, Tensor):
        return False
    if found[1] == "sinc":
        return x.requires_grad
    if not x.dim():
        return True
    dim = re.search(r"dim=(-?\d+)", text)
    if found[1] == "group_norm":
        return math.prod(x.shape[1:]) == 1
    if found[1] == "cosine_similarity" and x.dtype.itemsize == 2:
        return True
    return x.shape[int(dim[1]) if dim else -1] == 1


def is_tame(x: Tensor) -> bool:
    """Return whether numbers are finite and not so large that they soon are not."""
    if x.is_complex():
        x = torch.view_as_real(x.resolve_conj())
    if not x.is_floating_point() or not x.numel():
        return True
    return bool((x.detach().abs().double() < 1e3).all())
