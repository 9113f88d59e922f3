"""How a program without a backward runs, from what AOTAutograd says of it."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tofuse.ir.runtime_kind import InferenceRuntime
from tofuse.torch_internals.autograd_compiler import OutputType, ViewAndMutationMeta


def inference_runtime(
    meta: ViewAndMutationMeta, arguments: Sequence[object]
) -> InferenceRuntime | None:
    """Return the runtime of an inference graph, or None if it needs AOTAutograd's wrappers.

    It needs them if the graph does not do all writes itself, or if a result requires grad: then
    results are views of arguments.
    """
    if meta.mutated_inp_runtime_indices or any(i.mutates_metadata for i in meta.input_info):
        return None
    if any(o.requires_grad for o in meta.output_info):
        return None
    requires_grad = any(isinstance(t, torch.Tensor) and t.requires_grad for t in arguments)
    of_argument = (o.output_type is OutputType.alias_of_input for o in meta.output_info)
    mutated = tuple(meta.mutated_graph_handled_indices_seen_by_autograd)
    returned = (
        o.base_idx if o.output_type is OutputType.is_input else None for o in meta.output_info
    )
    return InferenceRuntime(tuple(of_argument), requires_grad, mutated, tuple(returned))
