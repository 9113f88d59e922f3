"""Run a region or a graph op by op through PyTorch, where no kernel of ours can."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from tofuse.ir.graph import Graph
from tofuse.ir.region import Region
from tofuse.ops.reference import run_graph


def graph_runner(gm: torch.fx.GraphModule) -> Callable[[list[object]], list[object]]:
    """A callable that runs a whole ATen graph op by op; it takes its arguments in one list."""

    def run(args: list[object]) -> list[object]:
        taken = list(args)
        args.clear()
        return list(torch.fx.Interpreter(gm).boxed_run(taken))

    return run


def region_runner(region: Region) -> Callable[..., tuple[torch.Tensor, ...]]:
    """A callable from the region's inputs (and its size symbols) to its outputs."""
    graph = Graph(region.inputs, region.ops, region.outputs, region.name)
    device = region.ops[0].results[0].type.device

    def run(inputs: Sequence[torch.Tensor], **sizes: int) -> tuple[torch.Tensor, ...]:
        with torch.device(device):  # where constants and ranges are made
            values = run_graph(graph, dict(zip(region.inputs, inputs, strict=True)), sizes)
        return tuple(values[v] for v in region.outputs)

    return run
