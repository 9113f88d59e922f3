"""The pass that draws one random seed a device for a whole joint graph, before its partition."""

from __future__ import annotations

import torch

from tofuse.capture.decomp.rng import BERNOULLI, SEED, UNIFORM
from tofuse.capture.fx.phases import traced_in_backward


def merge_seeds(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Replace the seeds of each device by the first, and number the streams of random numbers.

    The forward then saves one int64[2] tensor for all random numbers of a device. Random
    numbers that each backward draws anew have a seed of their own.
    """
    firsts: dict[tuple[object, bool], torch.fx.Node] = {}
    for node in [n for n in gm.graph.nodes if n.target is SEED]:
        first = firsts.setdefault((node.args, traced_in_backward(node)), node)
        if first is not node:
            node.replace_all_uses_with(first)
            gm.graph.erase_node(node)
    if not firsts:
        return gm
    draws = [n for n in gm.graph.nodes if n.target in (UNIFORM, BERNOULLI)]
    for stream, node in enumerate(draws):
        node.update_arg(2, stream)
    gm.recompile()
    return gm
