"""Which tensors a call of Dynamo's program writes into."""

from __future__ import annotations

import operator

import torch
from torch.fx import GraphModule, Node
from torch.utils._pytree import tree_leaves

from tofuse.capture.fx.node_tensors import memory, name_of, tensor_of


def _written_memory(gm: GraphModule) -> set[int]:
    return {memory(t) for node in gm.graph.nodes for t in written(node)}


def written(node: Node) -> list[torch.Tensor]:
    """The tensors a call writes into."""
    return [t for x in _written_nodes(node) if (t := tensor_of(x)) is not None]


def writes_by_name(name: str) -> bool:
    """Whether functions and methods of a name write into their first argument."""
    in_place = name.endswith("_") and not name.endswith("__") and name not in OPERATORS
    return in_place or name in WRITERS


def _written_nodes(node: Node) -> list[Node]:
    if node.op not in ("call_function", "call_method"):
        return []
    name, found = name_of(node.target), [node.kwargs.get("out")] if node.kwargs else []
    if writes_by_name(name) or node.kwargs.get("inplace") is True:
        first = node.args[:1] or (node.kwargs.get("input"), node.kwargs.get("self"))
        found += node.args if name.startswith("_fused") else first
    if isinstance(node.target, torch._ops.OpOverload):
        pairs = zip(node.target._schema.arguments, node.args, strict=False)
        found += [x for a, x in pairs if a.alias_info is not None and a.alias_info.is_write]
    return [x for x in tree_leaves(found) if isinstance(x, Node)] if found else []


OPERATORS = frozenset(dir(operator))  # `and_` and `or_` end like writes and are none


AUGMENTED = frozenset(  # `iadd` beside `add`, `iand` beside `and_`; not `invert`
    n for n in OPERATORS if n.startswith("i") and not OPERATORS.isdisjoint((n[1:], f"{n[1:]}_"))
)


WRITERS = AUGMENTED | {f"__{n}__" for n in ("setitem", *AUGMENTED)} | {"setitem"}
