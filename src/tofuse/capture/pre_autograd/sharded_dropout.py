"""Dropout of a DTensor that is split over ranks: each rank's part of one mask."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx import GraphModule

from tofuse.capture.decomp.rng import scaled


def sharded_dropout(gm: GraphModule) -> tuple[GraphModule, tuple[str, ...]]:
    """Replace in place each dropout of such a DTensor by `dropout`."""
    for target in (F.dropout, torch.dropout):
        for node in gm.graph.find_nodes(op="call_function", target=target, sort=False):
            operand = node.args[0] if node.args else node.kwargs.get("input")
            if isinstance(operand, torch.fx.Node) and _is_split(operand.meta.get("example_value")):
                node.target = dropout
                gm.recompile()
    return gm, ()


def dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Return the dropout of a DTensor; arguments as PyTorch's.

    Ranks that were seeded alike drop the elements that one process drops, which has the whole
    tensor. Each draws only the random numbers of its own part. In eager, each rank draws for its
    part as if that were the whole tensor.
    """
    if not training or inplace or not 0 < p < 1 or not _is_split(input):
        return F.dropout(input, p, training, inplace)
    local: Tensor = input.to_local()  # type: ignore[attr-defined]  # of DTensor
    kept = torch.rand(input.shape, device=local.device) < 1.0 - p
    for dim, start in _offsets(input):
        kept = kept.narrow(dim, start, local.shape[dim])
    result = scaled(local, kept, 1.0 / (1.0 - p))
    whole: Tensor = type(input).from_local(  # type: ignore[attr-defined]
        result,
        input.device_mesh,  # type: ignore[attr-defined]
        input.placements,  # type: ignore[attr-defined]
        run_check=False,
        shape=input.shape,
        stride=input.stride(),
    )
    return whole


def _is_split(x: object) -> bool:
    """Return whether a value is a DTensor of which each rank has a part, in order of the ranks."""
    kinds = {type(p).__name__ for p in getattr(x, "placements", ())}
    return isinstance(x, Tensor) and "Shard" in kinds and kinds <= {"Shard", "Replicate"}


def _offsets(x: Tensor) -> Iterator[tuple[int, int]]:
    """Yield each dimension that is split, and where this rank's part of it begins.

    As `torch.chunk`, all parts but the last ones have the same size. A dimension that is split
    twice is split into parts of parts.
    """
    mesh, placements = x.device_mesh, x.placements  # type: ignore[attr-defined]
    begin, size = [0] * x.dim(), list(x.shape)
    for axis, placement in enumerate(placements):
        if type(placement).__name__ == "Shard":
            dim = placement.dim % x.dim()
            part = -(-size[dim] // mesh.size(axis))
            start = min(part * mesh.get_local_rank(axis), size[dim])
            begin[dim] += start
            size[dim] = min(part, size[dim] - start)
    for dim in sorted({p.dim % x.dim() for p in placements if type(p).__name__ == "Shard"}):
        yield dim, begin[dim]
