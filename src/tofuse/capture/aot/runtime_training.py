"""How a program with a backward runs, from its graphs and from what AOTAutograd says of it."""

from __future__ import annotations

import torch
from torch.fx import GraphModule

from tofuse.capture.fx.aliases import is_impure
from tofuse.capture.fx.phases import NO_VERSION_CHECK, written_placeholders
from tofuse.ir.runtime_kind import TrainingRuntime
from tofuse.torch_internals.autograd_compiler import ViewAndMutationMeta


def training_runtime(
    graphs: tuple[GraphModule, GraphModule], meta: ViewAndMutationMeta
) -> TrainingRuntime | None:
    """Return the runtime of a forward and a backward graph, or None if it needs AOTAutograd's.

    It does if the backward takes a written argument, or if an argument that requires grad is
    written or gets no gradient. AOTAutograd hides these from autograd.
    """
    forward, backward = graphs
    requires_grad = [i.requires_grad for i in meta.input_info]
    mutated = [k for k, i in enumerate(meta.input_info) if i.mutates_data or i.mutates_metadata]
    if mutated != list(meta.mutated_inp_runtime_indices):
        return None
    gradients = backward.graph.find_nodes(op="output")[0].args[0]
    if len(gradients) != len(requires_grad):
        return None
    if any(g is None and required for g, required in zip(gradients, requires_grad, strict=True)):
        return None
    if any(requires_grad[k] or meta.input_info[k].mutates_metadata for k in mutated):
        return None
    names = [getattr(n, "name", None) for n in forward.graph.find_nodes(op="output")[0].args[0]]
    arguments = forward.graph.find_nodes(op="placeholder")
    last = len(mutated) + len(meta.output_info)
    mutated_names = {arguments[k].name for k in mutated}
    saved_sizes: list[int] = []
    saved_tensors: list[int] = []
    tangents: list[int] = []
    for node in backward.graph.find_nodes(op="placeholder"):
        target = str(node.target)
        if target.startswith("tangents_"):
            tangents.append(int(target.removeprefix("tangents_")) - 1)
        elif target not in names[last:] or target in mutated_names or tangents:
            return None
        elif isinstance(node.meta.get("val"), torch.Tensor):
            saved_tensors.append(last + names[last:].index(target))
        elif not saved_tensors:
            saved_sizes.append(last + names[last:].index(target))
        else:
            return None
    into = written_placeholders(backward)
    written = {k: n for k, n in enumerate(backward.graph.find_nodes(op="placeholder")) if n in into}
    differentiable = tuple(o.requires_grad for o in meta.output_info)
    parameters = {k for k in meta.static_input_indices if requires_grad[k]}  # a module's
    non_parameters = tuple(k for k in range(len(requires_grad)) if k not in parameters)
    return TrainingRuntime(
        tuple(mutated),
        differentiable,
        tuple(saved_sizes),
        tuple(saved_tensors),
        tuple(tangents),
        tuple(requires_grad),
        non_parameters,
        not mutated
        and not any(map(is_impure, forward.graph.nodes))
        and not any(_is_read(n.name, forward) for n in written.values()),
        tuple(written),
        tuple(k for k, n in written.items() if n.meta.get(NO_VERSION_CHECK)),
    )


def _is_read(name: str, forward: GraphModule) -> bool:
    """Whether the forward does more with an argument than save it."""
    arguments = (n for n in forward.graph.find_nodes(op="placeholder") if n.name == name)
    return any(user.op != "output" for n in arguments for user in n.users)
