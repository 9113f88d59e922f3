"""Aliases and effects in FX graphs: who shares memory with whom, who writes."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from types import FunctionType

import torch
from torch.fx import Graph, Node
from torch.fx.node import Target

from tofuse.analysis.alias import UNDECLARED_VIEWS
from tofuse.capture.fx.node_tensors import example_tensor, target_name, value_tensors
from tofuse.capture.fx.sizes import size_hint
from tofuse.capture.fx.subgraphs import nodes_of_all_graphs
from tofuse.torch_internals.memory import storage_key
from tofuse.torch_internals.operators import OpOverload, schema_of
from tofuse.torch_internals.trees import tree_leaves

# -- storages -------------------------------------------------------------------------------------


def storage_id(tensor: torch.Tensor) -> int:
    """Return a number that is equal for tensors that share a storage."""
    return storage_key(tensor.untyped_storage())


def storage_ids(nodes: Iterable[Node]) -> set[int]:
    """Return the storages of nodes of Dynamo's graph."""
    return {storage_id(t) for n in nodes if (t := example_tensor(n)) is not None}


def node_storages(node: Node) -> list[tuple[int, int]]:
    """Return (key, bytes) of each storage behind the value of a node of ATen's graph."""
    tensors = [t for t in value_tensors(node) if t.layout is torch.strided]
    return [(storage_id(t), size_hint(t.untyped_storage().nbytes())) for t in tensors]


# -- views in ATen's graphs -----------------------------------------------------------------------


@cache
def shared_argument(target: OpOverload) -> tuple[int, str] | None:
    """Return the position and name of the argument that an operator returns, or returns views of.

    None if its results have memory of their own.
    """
    schema = schema_of(target)
    aliases = [r.alias_info for r in schema.returns if r.alias_info is not None]
    returned = {s for alias in aliases for s in alias.before_set}
    for k, a in enumerate(schema.arguments if aliases else ()):
        # a list of views names no set
        if a.alias_info and (not returned or returned.intersection(a.alias_info.before_set)):
            return k, a.name
    return (0, schema.arguments[0].name) if str(target) in UNDECLARED_VIEWS else None


def viewed_node(node: Node) -> Node | None:
    """Return the node whose memory a call's results share; None if they have their own."""
    if node.target is operator.getitem:
        return viewed_node(node.all_input_nodes[0])
    shared = shared_argument(node.target) if isinstance(node.target, OpOverload) else None
    if shared is None:
        return None
    k, name = shared
    argument = node.args[k] if k < len(node.args) else node.kwargs.get(name)
    return argument if isinstance(argument, Node) else None


def base_node(node: Node) -> Node:
    """Return the node at the end of the chain of views from `node`."""
    while (operand := viewed_node(node)) is not None:
        node = operand
    return node


def reads_mutated_argument(node: Node) -> bool:
    """Whether a call reads an argument, or a view of one, that a call writes into."""
    copy_into = torch.ops.aten.copy_.default
    bases = map(base_node, node.all_input_nodes)
    return any(u.target is copy_into and u.args[0] is base for base in bases for u in base.users)


# -- writes and other effects ---------------------------------------------------------------------


def written_storages(graph: Graph) -> set[int]:
    """Return the storages that Dynamo's program writes into, in its forward or its backward."""
    return {s for node in nodes_of_all_graphs(graph) for s in storage_ids(written_nodes(node))}


def written_tensors(node: Node) -> list[torch.Tensor]:
    """Return the tensors that a call writes into."""
    return [t for x in written_nodes(node) if (t := example_tensor(x)) is not None]


def written_nodes(node: Node) -> list[Node]:
    """Return the arguments that a call writes into."""
    if node.op not in ("call_function", "call_method"):
        return []
    written = written_arguments(node.target, node.args, node.kwargs)
    if isinstance(node.target, OpOverload):
        declared = schema_of(node.target).arguments
        named = dict(zip((a.name for a in declared), node.args, strict=False)) | node.kwargs
        writes = (a for a in declared if a.alias_info is not None and a.alias_info.is_write)
        written += [named.get(a.name) for a in writes]
    return [x for x in tree_leaves(written) if isinstance(x, Node)] if written else []


def written_arguments(
    target: Target, args: Sequence[object], kwargs: Mapping[str, object]
) -> list[object]:
    """Return what a function or method writes into, by its name, `out=` and `inplace=True`."""
    name, written = target_name(target), [kwargs.get("out")] if kwargs else []
    if is_mutating_name(name) or _has_inplace(target, args, kwargs):
        first = args[:1] or (kwargs.get("input"), kwargs.get("self"))
        written += args if name.startswith("_fused") else first
    return written


def _has_inplace(target: Target, args: Sequence[object], kwargs: Mapping[str, object]) -> bool:
    """Whether a call has `inplace=True`, by name or by position: `F.relu(x, True)`."""
    position = _inplace_position(target)
    return kwargs.get("inplace") is True or (
        position is not None and position < len(args) and args[position] is True
    )


def _inplace_position(target: Target) -> int | None:
    if not isinstance(target, FunctionType):
        return None
    code = target.__code__
    names = code.co_varnames[: code.co_argcount]
    return names.index("inplace") if "inplace" in names else None


def is_mutating_name(name: str) -> bool:
    """Whether functions and methods of this name write into their first argument."""
    in_place = name.endswith("_") and not name.endswith("__") and name not in OPERATOR_NAMES
    return in_place or name in MUTATING_NAMES


def has_side_effect(node: Node) -> bool:
    """Whether a node has a side effect; drawing random numbers does not count.

    A custom operator that writes has one, though AOTAutograd calls it on copies: it must run as
    often as in eager.
    """
    if node.target in CALLS_ON_COPIES:
        return True
    if not isinstance(node.target, OpOverload):
        return node.op in ("placeholder", "output") or node.is_impure()
    schema = schema_of(node.target)
    return schema.is_mutable or not schema.returns


def is_impure(node: Node) -> bool:
    """Whether an operator writes into an argument, or returns random numbers."""
    target = node.target
    return isinstance(target, OpOverload) and (schema_of(target).is_mutable or is_random(node))


def is_random(node: Node) -> bool:
    """Whether an operator draws random numbers."""
    target = node.target
    return isinstance(target, OpOverload) and torch.Tag.nondeterministic_seeded in target.tags


CALLS_ON_COPIES = (
    torch.ops.higher_order.auto_functionalized,
    torch.ops.higher_order.auto_functionalized_v2,
)
OPERATOR_NAMES = frozenset(dir(operator))  # `and_` and `or_` end in "_" but do not write

_MUTATING_OPERATORS = (
    "setitem iadd iand iconcat ifloordiv ilshift imatmul imod imul ior ipow irshift isub itruediv "
    "ixor"
)
MUTATING_NAMES = frozenset(name for n in _MUTATING_OPERATORS.split() for name in (n, f"__{n}__"))

# Methods that write in place, but no memory.
METADATA_WRITERS = frozenset(
    ("as_strided_", "detach_", "requires_grad_", "resize_", "resize_as_", "set_", "squeeze_")
) | frozenset(("swapaxes_", "swapdims_", "t_", "transpose_", "unsqueeze_"))
