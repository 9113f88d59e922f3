"""The pass that reads tangents in the dtype of their results.

Autograd passes tangents of the dtype that the compiled result has. Torch's prediction for an
operator can differ from its decomposition: for `soft_margin_loss` of two dtypes, for instance.
"""

from __future__ import annotations

import torch
from torch.fx import GraphModule, Node

from tofuse.torch_internals.autograd_compiler import TangentAOTInput
from tofuse.torch_internals.fake_tensors import FakeTensor
from tofuse.torch_internals.symbolic_shapes import tracing_operators
from tofuse.torch_internals.trees import tree_leaves


def tangent_dtypes(joint: GraphModule) -> GraphModule:
    """Convert tangents to the dtype that the graph expects, if their results have another."""
    output = joint.graph.output_node()
    results = dict(
        zip(tree_leaves(output.meta.get("desc", ())), tree_leaves(output.args), strict=False)
    )
    for tangent in joint.graph.find_nodes(op="placeholder"):
        description = tangent.meta.get("desc")
        if not isinstance(description, TangentAOTInput):
            continue
        result, expected = results.get(description.output), tangent.meta["val"]
        if not isinstance(result, Node) or not isinstance(expected, FakeTensor):
            continue
        dtype = result.meta["val"].dtype
        if dtype is expected.dtype:
            continue
        with joint.graph.inserting_after(tangent):
            cast = joint.graph.call_function(
                torch.ops.aten._to_copy.default, (tangent,), {"dtype": expected.dtype}
            )
        cast.meta["val"] = expected
        tangent.replace_all_uses_with(cast)
        cast.args = (tangent,)
        with tracing_operators(expected.fake_mode):
            tangent.meta["val"] = torch.empty_like(expected, dtype=dtype)
    return joint
