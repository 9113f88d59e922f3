"""Rules for indices that the program's inputs have no part in: neighbours that are repeated.

`interpolate(mode="nearest")` by whole factors reaches us as an index of computed places. Where
these are 0, 0, 1, 1, ... it is a broadcast, and its gradient is a sum.
"""

from __future__ import annotations

from typing import Union

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx import Node

from tofuse.capture.lower.builder import Refused
from tofuse.capture.lower.call import Call, Rule
from tofuse.capture.lower.rules.view_ops import fixed, unsafe_index
from tofuse.ir.dims import Dim
from tofuse.ir.graph import Value

MOST = 1 << 16  # elements of an index that is looked at
STEPS = 32  # operators that compute it
Known = Union[torch.Tensor, int, float, bool, None]  # noqa: UP007


def repeated(call: Call) -> Value:
    """`x[:, :, i, j]` with i and j as above."""
    try:
        factors = _factors(call)
    except Refused:
        return unsafe_index(call)
    x, build = call.tensor("self"), call.build
    thin = build.reshape(x, _apart(x.shape, factors, ones=True))
    wide = build.expand(thin, _apart(x.shape, factors, ones=False))
    return build.copy(build.reshape(wide, call.out.shape))


def repeated_put(call: Call) -> Value:
    """What is added to each element, from all the places that read it."""
    if not call.arguments.get("accumulate"):
        raise Refused("places that are written one over the other")
    factors, build, out = _factors(call), call.build, call.out
    shape = _apart(out.shape, factors, ones=False)
    parts = build.reshape(call.tensor("values"), shape)
    dims = tuple(k for k, kept in enumerate(_kept(out.shape, factors)) if not kept)
    total = build.reduce("sum", parts, dims, out.dtype)
    return build.emit("add", (call.tensor("self"), total), {})


def _factors(call: Call) -> dict[int, int]:
    """How often each element of a dimension is read, one after the other."""
    picked, of = call.node.args[1], call.tensor("self").shape
    if not isinstance(picked, (list, tuple)):
        raise Refused("no list of indices")
    places = [k for k, p in enumerate(picked) if p is not None]
    if not places or places[-1] - places[0] != len(places) - 1:
        raise Refused("indices that are not adjacent")
    found: dict[int, int] = {}
    for k in places:
        node, extent = picked[k], fixed(of[k])
        index = _constant(node, places[-1] - k) if isinstance(node, Node) else None
        if not index or extent == 0:
            raise Refused("places that inputs have a part in")
        factor = max(1, len(index) // extent)
        if len(index) != factor * extent or index != [n // factor for n in range(len(index))]:
            raise Refused("places that are not neighbours repeated")
        found[k] = factor
    return found


def _apart(shape: tuple[Dim, ...], factors: dict[int, int], ones: bool) -> tuple[Dim, ...]:
    """The shape with a dimension behind each that is repeated: as often, or once."""
    apart: list[Dim] = []
    for k, d in enumerate(shape):
        apart.append(d)
        if k in factors:
            apart.append(1 if ones else factors[k])
    return tuple(apart)


def _kept(shape: tuple[Dim, ...], factors: dict[int, int]) -> list[bool]:
    kept: list[bool] = []
    for k in range(len(shape)):
        kept += [True, False] if k in factors else [True]
    return kept


def _constant(node: Node, behind: int) -> list[int] | None:
    """The numbers of a small tensor of integers that no input has a part in, if all of them lie
    along the dimension with so many behind it."""
    fake = node.meta.get("val")
    if not isinstance(fake, torch.Tensor) or fake.dtype is not torch.int64:
        return None
    if not all(isinstance(d, int) for d in fake.shape) or fake.numel() > MOST:
        return None
    if fake.dim() <= behind or fake.shape[-1 - behind] != fake.numel():
        return None
    known: dict[Node, Known] = {}
    with unset_fake_temporarily(), torch.no_grad():
        value = _evaluate(node, known)
        return value.flatten().tolist() if isinstance(value, torch.Tensor) else None


def _evaluate(node: Node, known: dict[Node, Known]) -> Known:
    """What a node is; None where inputs, or random numbers, have a part in it."""
    if node not in known:
        known[node] = None
        target = node.target
        if not isinstance(target, torch._ops.OpOverload) or target._schema.is_mutable:
            return None
        if torch.Tag.nondeterministic_seeded not in target.tags and len(known) < STEPS:
            needed = {n: _evaluate(n, known) for n in node.all_input_nodes}
            if all(v is not None for v in needed.values()):
                args, kwargs = torch.fx.map_arg((node.args, node.kwargs), needed.__getitem__)
                known[node] = target(*args, **kwargs)
    return known[node]


RESAMPLES: dict[str, Rule] = {
    "aten._unsafe_index": repeated,
    "aten._unsafe_index_put": repeated_put,
}
