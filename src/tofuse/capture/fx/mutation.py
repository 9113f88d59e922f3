"""The tensors that a call of Dynamo's graph writes into."""

from __future__ import annotations

import operator

import torch
from torch.fx import GraphModule, Node

from tofuse.capture.fx.node_tensors import example_tensor, storage_id, target_name
from tofuse.torch_internals.operators import OpOverload, schema_of
from tofuse.torch_internals.trees import tree_leaves


def written_storages(gm: GraphModule) -> set[int]:
    """Return the ids of the storages that a program writes into."""
    return {storage_id(t) for node in gm.graph.nodes for t in written_tensors(node)}


def written_tensors(node: Node) -> list[torch.Tensor]:
    """Return the tensors that a call writes into."""
    return [t for x in written_nodes(node) if (t := example_tensor(x)) is not None]


def is_mutating_name(name: str) -> bool:
    """Whether functions and methods of this name write into their first argument."""
    in_place = name.endswith("_") and not name.endswith("__") and name not in OPERATOR_NAMES
    return in_place or name in MUTATING_NAMES


def written_nodes(node: Node) -> list[Node]:
    """Return the arguments that a call writes into."""
    if node.op not in ("call_function", "call_method"):
        return []
    name, written = target_name(node.target), [node.kwargs.get("out")] if node.kwargs else []
    if is_mutating_name(name) or node.kwargs.get("inplace") is True:
        first = node.args[:1] or (node.kwargs.get("input"), node.kwargs.get("self"))
        written += node.args if name.startswith("_fused") else first
    if isinstance(node.target, OpOverload):
        pairs = zip(schema_of(node.target).arguments, node.args, strict=False)
        written += [x for a, x in pairs if a.alias_info is not None and a.alias_info.is_write]
    return [x for x in tree_leaves(written) if isinstance(x, Node)] if written else []


OPERATOR_NAMES = frozenset(dir(operator))  # `and_` and `or_` end in "_" but do not write


AUGMENTED_ASSIGNMENTS = frozenset(  # `iadd` beside `add`, `iand` beside `and_`; not `invert`
    n
    for n in OPERATOR_NAMES
    if n.startswith("i") and not OPERATOR_NAMES.isdisjoint((n[1:], f"{n[1:]}_"))
)


MUTATING_NAMES = (
    AUGMENTED_ASSIGNMENTS | {f"__{n}__" for n in ("setitem", *AUGMENTED_ASSIGNMENTS)} | {"setitem"}
)
