"""Static specialization: a program with symbolic sizes, compiled again for sizes that recur."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import sympy  # type: ignore[import-untyped]  # it ships no types
import torch
from torch.fx import GraphModule, Interpreter, Node
from torch.fx.experimental.sym_node import SymNode
from torch.fx.experimental.symbolic_shapes import free_symbols
from torch.fx.node import Argument, Target, map_arg

from tofuse.capture.aot.boxed import CompiledFunction
from tofuse.capture.dynamo.eager_program import copy_graph
from tofuse.capture.fx.node_tensors import symbolic_item
from tofuse.errors import CaptureError
from tofuse.torch_internals.autograd_compiler import TracingContext, tracing
from tofuse.torch_internals.dynamo import preserve_rng_state
from tofuse.torch_internals.fake_tensors import FakeTensor, FakeTensorMode

Build = Callable[[GraphModule, Sequence[object]], CompiledFunction]
PLAIN_TENSORS = (torch.Tensor, torch.nn.Parameter)


@dataclass(frozen=True, eq=False)
class SymbolicProgram:
    """A program with symbolic sizes, as it was before passes changed its graph.

    All sizes follow from the arguments at `sizes`, all Python floats, which Dynamo passes in
    tensors, from those at `floats`.
    """

    gm: GraphModule
    sizes: Sequence[int]
    floats: Sequence[int]

    def key(self, *args: object) -> Hashable:
        """Return the sizes and the floats of a call."""
        floats = [args[k].item() for k in self.floats]  # type: ignore[attr-defined]
        return (*sizes_at(self.sizes, args), *floats)

    def specialize(self, args: Sequence[object], build: Build) -> CompiledFunction:
        """Return `build`'s program for the sizes of these arguments; raise if there is none."""
        if not all(type(a) in (*PLAIN_TENSORS, int) for a in args):
            raise CaptureError("an argument is no plain tensor")
        mode = FakeTensorMode(allow_non_fake_inputs=True)
        fakes = [mode.from_tensor(a) if isinstance(a, torch.Tensor) else a for a in args]
        copy = GraphModule(self.gm, copy_graph(self.gm.graph))
        grad = torch.set_grad_enabled(torch.is_grad_enabled())
        for k in self.floats:
            _replace_item(copy.graph.find_nodes(op="placeholder")[k], args[k])
        with preserve_rng_state(), grad, mode:
            _StaticShapes(copy, mode).run(*fakes)
        with preserve_rng_state(), tracing(TracingContext(mode)):
            return build(copy, fakes)


def symbolic_program(gm: GraphModule, inputs: Sequence[object]) -> SymbolicProgram | None:
    """Return a copy of a program that can be specialized; None without symbolic sizes.

    Known sizes can be worth much: rows of three elements need no loops. None, too, if a size or
    number depends on data: it stays symbolic.
    """
    sizes = size_arguments(inputs)
    if not sizes or any(n.meta.get("unbacked_bindings") for n in gm.graph.nodes):
        return None
    copy = GraphModule(gm, copy_graph(gm.graph))
    items = enumerate(map(symbolic_item, copy.graph.find_nodes(op="placeholder")))
    return SymbolicProgram(copy, sizes, [k for k, x in items if isinstance(x, torch.SymFloat)])


def has_symbolic_sizes(inputs: Sequence[object]) -> bool:
    """Return whether calls of a program may have other sizes than these arguments."""
    return any(
        isinstance(v, torch.SymInt) or (isinstance(v, torch.Tensor) and bool(free_symbols(v)))
        for v in inputs
    )


def size_arguments(inputs: Sequence[object]) -> list[int]:
    """Return the positions of arguments that determine all symbolic sizes.

    These are integers, and tensors with sizes that no integer argument determines. The list is
    empty if an argument is neither a plain tensor nor a size.
    """
    if not all(_is_supported(v) for v in inputs):
        return []
    integers = {k: v.node.expr for k, v in enumerate(inputs) if isinstance(v, torch.SymInt)}
    determined = {expr for expr in integers.values() if isinstance(expr, sympy.Symbol)}
    tensors = [k for k, v in enumerate(inputs) if isinstance(v, torch.Tensor)]
    return [*integers, *[k for k in tensors if not free_symbols(inputs[k]) <= determined]]


def _is_supported(value: object) -> bool:
    """Return whether it is a plain tensor or a size, other than a nested tensor's ragged size."""
    if isinstance(value, torch.SymInt):
        return isinstance(value.node, SymNode)
    return isinstance(value, int) or type(value) in (FakeTensor, *PLAIN_TENSORS)


def sizes_at(positions: Sequence[int], args: Sequence[object]) -> tuple[Hashable, ...]:
    """Return the sizes in a call that the arguments at these positions determine."""
    return tuple(_size(args[k]) for k in positions)


def _size(value: object) -> Hashable:
    return (value.shape, value.stride()) if isinstance(value, torch.Tensor) else value


def _replace_item(argument: Node, tensor: object) -> None:
    """Replace calls of `argument.item()` by the number that `tensor` holds."""
    assert isinstance(tensor, torch.Tensor)
    number = tensor.item()
    for item in [u for u in argument.users if u.target == "item"]:
        for user in list(item.users):

            def replaced(node: Node, item: Node = item) -> Argument:
                return number if node is item else node

            user.args, user.kwargs = map_arg(user.args, replaced), map_arg(user.kwargs, replaced)
        item.graph.erase_node(item)


class _StaticShapes(Interpreter):
    """An interpreter that sets the example value of each node for static sizes."""

    def __init__(self, gm: GraphModule, mode: FakeTensorMode) -> None:
        super().__init__(gm)
        self.mode = mode

    def run_node(self, node: Node) -> object:
        value = super().run_node(node)
        if node.op != "output":
            node.meta["example_value"] = value
        return value

    def get_attr(
        self, target: Target, args: tuple[Argument, ...], kwargs: dict[str, Argument]
    ) -> object:
        value = super().get_attr(target, args, kwargs)
        return self.mode.from_tensor(value) if isinstance(value, torch.Tensor) else value
