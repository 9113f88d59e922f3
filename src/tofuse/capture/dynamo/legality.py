"""Legality checks: which of Dynamo's programs may be compiled and which PyTorch must run."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from tofuse.capture.dynamo.async_collectives import writes_async_input
from tofuse.capture.dynamo.backward_effects import backward_effects_reason
from tofuse.capture.dynamo.returned_views import returned_view_reason
from tofuse.capture.fx.aliases import (
    storage_id,
    storage_ids,
    written_nodes,
    written_storages,
)
from tofuse.capture.fx.node_tensors import (
    example_tensor,
    has_symbolic_layout,
    strided_fake_tensor,
    target_name,
)
from tofuse.capture.fx.overlap import (
    broadcasts_written,
    byte_span,
    has_internal_overlap,
    has_write_overlap,
    overwrites_itself,
    overwrites_operand,
    reaches_beside,
)
from tofuse.capture.fx.sizes import number_symbols
from tofuse.torch_internals.autograd_compiler import fake_argument
from tofuse.torch_internals.dispatch import dispatch_modes, function_modes
from tofuse.torch_internals.fake_tensors import FakeTensor
from tofuse.torch_internals.transforms import forward_mode_active, transforms_active
from tofuse.torch_internals.trees import tree_leaves

# AOTAutograd drops such writes: they do not reach the argument's storage.
BESIDE_ARGUMENT = "it writes into memory that `as_strided` reaches beside an argument"
LOST_OUT = frozenset({"linalg_matrix_rank"})


def fallback_reason(gm: GraphModule, inputs: Sequence[object]) -> str | None:
    """Return why PyTorch must run this program, or None if it can be compiled.

    Fake tensors for oneDNN's private layouts look like strided ones, but have no memory. A write
    into a tensor that overlaps itself depends on the order of the elements, or is an error; a
    functional program cannot express it.
    """
    if any(isinstance(t, torch.Tensor) and t.is_mkldnn for t in inputs):
        return "an argument has a private layout of oneDNN"
    if writes_async_input(gm):
        return "it writes into the result of an unfinished collective"
    if any(target_name(n.target) == "to_mkldnn" for n in gm.graph.nodes):
        return "a tensor gets a private layout of oneDNN"
    placeholders = gm.graph.find_nodes(op="placeholder")
    arguments = [t for n in placeholders if (t := example_tensor(n)) is not None]
    if any(_has_second_symbols(n, x) for n, x in zip(placeholders, inputs, strict=True)):
        return "a size of an argument that another argument views has two symbols"
    overlapping = {storage_id(t) for t in arguments if has_internal_overlap(t)}
    for node in gm.graph.nodes:
        if (why := _write_reason(node, overlapping)) is not None:
            return why
        if overlapping and _is_subgraph(node):
            return "it may write into a tensor that overlaps itself"
    if _returns_strided_view_of_overlapping(gm, arguments):
        return "it returns a view, of symbolic sizes, of an argument that overlaps itself"
    if (why := returned_view_reason(gm) or backward_effects_reason(gm)) is not None:
        return why
    storages = written_storages(gm.graph)
    by_storage = {storage_id(t): t for t in arguments if storage_id(t) in storages}
    for node in gm.graph.nodes:
        view = example_tensor(node) if target_name(node.target) == "as_strided" else None
        argument = None if view is None else by_storage.get(storage_id(view))
        if view is not None and argument is not None and reaches_beside(view, argument):
            return BESIDE_ARGUMENT
    spans = [(*byte_span(t, storage_id(t) << 64), storage_id(t) in storages) for t in arguments]
    return "it writes into an argument that overlaps another" if has_write_overlap(spans) else None


def _has_second_symbols(node: Node, argument: object) -> bool:
    """Return whether AOTAutograd would read other symbols for an argument's sizes than Dynamo.

    If another argument is a view of it, torch makes symbols for it twice; guards on the second
    ones fail, as Dynamo knows no source for them.
    """
    example = example_tensor(node)
    if example is None or not isinstance(argument, torch.Tensor):
        return False
    if not has_symbolic_layout(example):
        return False
    traced = fake_argument(argument)
    return traced is not None and any(
        number_symbols(n) != number_symbols(m)
        for n, m in zip(example.shape, traced.shape, strict=True)
    )


def _returns_strided_view_of_overlapping(gm: GraphModule, arguments: Sequence[FakeTensor]) -> bool:
    """Return whether AOTAutograd loses gradients of elements that share memory.

    It makes a returned view of symbolic sizes with `as_strided`, whose gradient counts each place
    in memory once.
    """
    overlapping = {storage_id(t) for t in arguments if t.requires_grad and has_internal_overlap(t)}
    nodes = gm.graph.output_node().all_input_nodes if overlapping else ()
    return any(
        storage_id(t) in overlapping and has_symbolic_layout(t)
        for t in map(example_tensor, nodes)
        if t is not None
    )


def returns_only_views(gm: GraphModule) -> bool:
    """Return whether a program computes only views of its arguments and writes nothing.

    PyTorch runs such a program without a wrapper.
    """
    storages = storage_ids(gm.graph.find_nodes(op="placeholder"))
    for node in gm.graph.nodes:
        if node.op in ("placeholder", "output"):
            continue
        if node.op not in ("call_function", "call_method") or written_nodes(node):
            return False
        values = tree_leaves(node.meta.get("example_value"))
        tensors = [strided_fake_tensor(v) for v in values if not isinstance(v, (int, torch.SymInt))]
        if not values or any(t is None or storage_id(t) not in storages for t in tensors):
            return False
    return True


def needs_eager(*args: object) -> bool:
    """Return whether a call needs the eager program: kernels have no forward-mode derivatives.

    Transforms of functorch and dispatch modes must see PyTorch's operators; under the mode of fake
    tensors, tensors have no memory.
    """
    return forward_mode_active() or transforms_active() or dispatch_modes() > 0


def modes_active() -> bool:
    """Return whether a mode or transform sees the calls of operators, and would see a capture."""
    return function_modes() > 0 or needs_eager()


def _is_view_of_unfold(node: Node) -> bool:
    """Return whether a node is a view of `unfold`'s result.

    AOTAutograd would zero the elements between written windows.
    """
    while (t := example_tensor(node)) is not None:
        if target_name(node.target) == "unfold":
            return True
        operand = node.args[0] if node.args else None
        base = example_tensor(operand)
        if not isinstance(operand, Node) or base is None or storage_id(base) != storage_id(t):
            return False
        node = operand
    return False


def _write_reason(node: Node, overlapping: set[int]) -> str | None:
    """Return why PyTorch must make the write of a call, if it writes; None if it need not.

    `overlapping` are the storages of arguments that overlap themselves.
    """
    name, written_to = target_name(node.target), written_nodes(node)
    written = [t for n in written_to if (t := example_tensor(n)) is not None]
    first = map(example_tensor, node.all_input_nodes[:1])
    if overwrites_itself(name, written, first) or not overlapping.isdisjoint(
        map(storage_id, written)
    ):
        return "it writes into a tensor that overlaps itself"
    if any(map(_is_view_of_unfold, written_to)):
        return "it writes into the windows of `unfold`"
    if not written:
        return None
    arguments: Sequence[object] = map_arg(
        (*node.args, *node.kwargs.values()), lambda n: n.meta.get("example_value")
    )
    if name in LOST_OUT:
        return f"AOTAutograd loses what {name} writes into `out`"
    if overwrites_operand(name, written, arguments):
        return "a call writes into elements that it also reads or writes elsewhere"
    if broadcasts_written(name, written, arguments):
        return "a call in place has an operand larger than the tensor that it writes"
    return None


def _is_subgraph(node: Node) -> bool:
    """Return whether a node is a program inside the program, whose writes are not analyzed."""
    owner = node.graph.owning_module
    if node.op not in ("get_attr", "call_module"):
        return False
    return owner is None or any(name == node.target for name, _ in owner.named_modules())
