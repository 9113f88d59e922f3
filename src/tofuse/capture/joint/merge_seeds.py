"""The pass that draws one random seed for a whole joint graph, before its partition."""

from __future__ import annotations

import torch

from tofuse.capture.decomp.rng import SEED, UNIFORM


def merge_seeds(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Replace all seeds by the first, and number the streams of the uniforms.

    The forward then saves one int64[2] tensor for all random numbers.
    """
    seeds = [n for n in gm.graph.nodes if n.target is SEED]
    if not seeds:
        return gm
    first = seeds[0]
    for other in seeds[1:]:
        other.replace_all_uses_with(first)
        gm.graph.erase_node(other)
    uniforms = [n for n in gm.graph.nodes if n.target is UNIFORM]
    for stream, node in enumerate(uniforms):
        node.update_arg(2, stream)
    gm.recompile()
    return gm
