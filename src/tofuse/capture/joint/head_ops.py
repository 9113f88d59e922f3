"""What the operators of a loss do to rows, and whether they are linear in a tangent."""

from __future__ import annotations

from collections.abc import Set

import torch
from torch.fx import Node

from tofuse.torch_internals.operators import OpOverload

aten = torch.ops.aten
VIEWS = frozenset(
    (
        *(aten.view.default, aten._unsafe_view.default, aten.expand.default, aten.alias.default),
        *(aten.unsqueeze.default, aten.squeeze.dim, aten.squeeze.dims),
        *(aten.clone.default, aten._to_copy.default, aten.detach.default),
    )
)
TRANSPOSES = frozenset((aten.t.default, aten.permute.default, aten.transpose.int))
SUMS = frozenset((aten.sum.default, aten.sum.dim_IntList))
REDUCTIONS = frozenset((aten.sum.dim_IntList, aten.mean.dim, aten.amax.default, aten.amin.default))
EXTREMES = frozenset((aten.argmax.default, aten.argmin.default, aten.max.dim, aten.min.dim))
CONSTANTS = frozenset((aten.full.default, aten.full_like.default, aten.scalar_tensor.default))
ZEROS = frozenset((aten.zeros.default, aten.zeros_like.default, aten.new_zeros.default))
PRODUCTS = frozenset((aten.mm.default, aten.addmm.default))


def is_linear(n: Node, dependent: Set[Node]) -> bool:
    """Whether a call is linear in its operands among `dependent`; False if it is not known."""
    dependents = [i in dependent for i in n.args]
    match n.target:
        case target if target in VIEWS | TRANSPOSES | SUMS or target is aten.neg.default:
            return True
        case target if target in (aten.add.Tensor, aten.sub.Tensor):
            return all(i in dependent or is_zero(i) for i in n.args)
        case target if target in (aten.mul.Tensor, aten.mm.default):
            return sum(dependents) == 1
        case target if target in (aten.mul.Scalar, aten.div.Scalar, aten.div.Tensor):
            return dependents[0] and not any(dependents[1:]) and "rounding_mode" not in n.kwargs
        case aten.where.self:
            return not dependents[0] and all(i in dependent or is_zero(i) for i in n.args[1:])
    return is_zero(n)


def is_zero(x: object) -> bool:
    """Whether an argument of a call is the constant zero."""
    if not isinstance(x, Node):
        return isinstance(x, (int, float)) and x == 0
    return x.target in ZEROS or (x.target in CONSTANTS and bool(x.args[-1] == 0))


def keeps_rows(n: Node) -> bool:
    """Whether a call of a wide tensor works row by row, along its first dimension.

    Sums over all elements do, since the sums of some rows can be added.
    """
    target = n.target
    if target in PRODUCTS or target in VIEWS or target in (aten.sum.default, aten.mean.default):
        return True
    if target in TRANSPOSES:
        return all(user.target in PRODUCTS for user in n.users)
    if target in REDUCTIONS:
        dims = n.args[1] if len(n.args) > 1 else []
        rank = n.args[0].meta["val"].dim()  # type: ignore[union-attr]  # it is a tensor
        return [d % rank for d in dims] != [0]  # type: ignore[union-attr]  # a list
    if target in EXTREMES or target is aten.gather.default:
        rank = n.args[0].meta["val"].dim()  # type: ignore[union-attr]  # it is a tensor
        return len(n.args) > 1 and isinstance(n.args[1], int) and n.args[1] % rank != 0
    if not isinstance(target, OpOverload):
        return True  # an element of a tuple
    random = torch.Tag.nondeterministic_seeded in target.tags
    return torch.Tag.pointwise in target.tags and not random
