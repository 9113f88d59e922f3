"""How a program with a backward runs, from its graphs and from what AOTAutograd says of it."""

from __future__ import annotations

import torch
from torch.fx import GraphModule

from tofuse.capture.fx.aliases import is_impure, node_storages
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
    written, unchecked, reads_written = _backward_writes(forward, backward)
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
        not mutated and not any(map(is_impure, forward.graph.nodes)) and not reads_written,
        written,
        unchecked,
    )


def _backward_writes(
    forward: GraphModule, backward: GraphModule
) -> tuple[tuple[int, ...], tuple[int, ...], bool]:
    """Return which arguments the backward writes, and for which autograd checks no version.

    Both are positions. The third result is whether the forward does more with the written ones than
    save them.
    """
    arguments = list(enumerate(backward.graph.find_nodes(op="placeholder")))
    into = written_placeholders(backward.graph.nodes)
    storages = {key for n in into for key, _ in node_storages(n)}
    unchecked = tuple(
        k
        for k, n in arguments
        if n.meta.get(NO_VERSION_CHECK)
        if not storages.isdisjoint(key for key, _ in node_storages(n))
    )
    names = {n.name for n in into}
    saved = (n for n in forward.graph.find_nodes(op="placeholder") if n.name in names)
    is_read = any(user.op != "output" for n in saved for user in n.users)
    return tuple(k for k, n in arguments if n in into), unchecked, is_read
