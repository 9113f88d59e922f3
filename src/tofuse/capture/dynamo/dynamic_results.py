"""Results with sizes that vary: the next program that takes one is compiled for all sizes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.fx import GraphModule

from tofuse.capture.aot.boxed import CompiledFunction
from tofuse.torch_internals.autograd_compiler import mark_dynamic_result


def mark_dynamic_results(run: CompiledFunction, gm: GraphModule) -> CompiledFunction:
    """Return `run`, which marks the dimensions of its results that have symbolic sizes.

    After a graph break, Dynamo sees only the tensors of one call. Without a mark it would compile
    the rest of the function for their sizes, and again at the next ones.
    """
    dimensions = _symbolic_dimensions(gm)
    if not dimensions:
        return run

    def call(*args: object) -> object:
        results = run(*args)
        assert isinstance(results, Sequence)
        for k, dims in dimensions.items():
            result = results[k]
            if isinstance(result, torch.Tensor):
                mark_dynamic_result(result, dims)
        return results

    return call


def _symbolic_dimensions(gm: GraphModule) -> dict[int, set[int]]:
    """Return the dimensions with symbolic sizes of each result that has any, by its position."""
    (results,) = gm.graph.output_node().args
    assert isinstance(results, Sequence)
    values = [getattr(node, "meta", {}).get("example_value") for node in results]
    symbolic = {
        k: {d for d, size in enumerate(value.shape) if type(size) is not int}
        for k, value in enumerate(values)
        if isinstance(value, torch.Tensor)
    }
    return {k: dims for k, dims in symbolic.items() if dims}
