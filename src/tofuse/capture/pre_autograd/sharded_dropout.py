"""Dropout of a DTensor that is split over ranks. Each rank draws its part of one mask."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx import GraphModule, Node

from tofuse.capture.decomp.rng import scaled


def sharded_dropout(gm: GraphModule) -> tuple[GraphModule, tuple[str, ...]]:
    """Replace in place each dropout of a split DTensor by `dropout`, in programs inside as well."""
    for module in (m for m in gm.modules() if isinstance(m, GraphModule)):
        for node in module.graph.nodes:
            if node.op == "call_function" and node.target in (F.dropout, torch.dropout):
                operand = node.args[0] if node.args else node.kwargs.get("input")
                example = operand.meta.get("example_value") if isinstance(operand, Node) else None
                if _is_split(example):
                    node.target = dropout
                    module.recompile()
    return gm, ()


def dropout(
    input: Tensor,
    p: float = 0.5,
    training: bool = True,
    inplace: bool = False,
    *,
    train: bool | None = None,
) -> Tensor:
    """Return the dropout of a DTensor; arguments as those of PyTorch's two functions.

    Ranks that were seeded alike drop the elements that a process with the whole tensor drops. The
    mask has the shape of the whole tensor; a kernel computes only the part that it reads. Other
    tensors are left to PyTorch.
    """
    training = training if train is None else train
    if not training or not 0 < p < 1 or not _is_split(input) or not input.is_floating_point():
        return F.dropout(input, p, training, inplace)
    mesh, placements = input.device_mesh, input.placements  # type: ignore[attr-defined]
    coordinate = mesh.get_coordinate()
    if coordinate is None:  # this rank has no part
        return F.dropout(input, p, training, inplace)
    local: Tensor = input.to_local()  # type: ignore[attr-defined]
    drawn = torch.empty(input.shape, dtype=torch.float32, device=local.device).bernoulli_(1.0 - p)
    whole = drawn != 0
    part = whole
    for dim, start in _offsets(input, coordinate):
        part = part.narrow(dim, start, local.shape[dim])
    mask: Tensor = type(input).from_local(  # type: ignore[attr-defined]
        part, mesh, placements, run_check=False, shape=input.shape, stride=whole.stride()
    )
    result = scaled(input, mask, 1.0 / (1.0 - p))
    return input.copy_(result) if inplace else result


def _is_split(x: object) -> bool:
    """Return whether a value is a DTensor whose parts follow each other in order of the ranks."""
    kinds = {type(p).__name__ for p in getattr(x, "placements", ())}
    return isinstance(x, Tensor) and "Shard" in kinds and kinds <= {"Shard", "Replicate"}


def _offsets(x: Tensor, coordinate: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield each dimension that is split, and where the part of a rank begins.

    As `torch.chunk`, all parts but the last ones have the same size. A dimension that is split
    twice is split into parts of parts. `coordinate` is the rank's in the mesh.
    """
    mesh, placements = x.device_mesh, x.placements  # type: ignore[attr-defined]
    begin, size = [0] * x.dim(), list(x.shape)
    split = {k: p.dim % x.dim() for k, p in enumerate(placements) if type(p).__name__ == "Shard"}
    for axis, dim in split.items():
        part = -(-size[dim] // mesh.size(axis))
        start = min(part * coordinate[axis], size[dim])
        begin[dim] += start
        size[dim] = min(part, size[dim] - start)
    for dim in sorted(set(split.values())):
        yield dim, begin[dim]
