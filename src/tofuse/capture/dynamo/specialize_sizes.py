"""Static specialization: a program with symbolic sizes, compiled again for sizes that recur."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

import sympy  # type: ignore[import-untyped]  # it ships no types
import torch
from torch.fx import Graph, GraphModule, Interpreter, Node
from torch.fx.experimental.sym_node import SymNode
from torch.fx.experimental.symbolic_shapes import free_symbols
from torch.fx.node import Argument, Target, map_arg

from tofuse.capture.dynamo.legality import modes_active
from tofuse.torch_internals.autograd_compiler import TracingContext, tracing
from tofuse.torch_internals.dynamo import get_source, preserve_rng_state, set_source
from tofuse.torch_internals.fake_tensors import FakeTensor, FakeTensorMode
from tofuse.torch_internals.torch_types import CompiledFunction

Build = Callable[[GraphModule, Sequence[object]], CompiledFunction]

MAX_VARIANTS = 4  # specialized programs; other sizes run the dynamic program
MAX_TIMED_SIZES = 4096  # sizes whose calls are timed at once
PLAIN_TENSORS = (torch.Tensor, torch.nn.Parameter)


def specialize_sizes(gm: GraphModule, inputs: Sequence[object], build: Build) -> CompiledFunction:
    """Return `build`'s program; if it has symbolic sizes, specialize it for sizes that recur.

    Sizes are specialized once calls with them have taken as long as the compilation of the dynamic
    program did, so at most half of a program's total time is wasted. Known sizes can be worth much:
    rows of three elements need no loops.
    """
    size_arguments = _size_arguments(inputs)
    if not size_arguments:
        return build(gm, inputs)
    copy = _copy(gm)
    float_arguments = [
        k for k, n in enumerate(copy.graph.find_nodes(op="placeholder")) if _is_symbolic_float(n)
    ]
    begin = time.perf_counter()
    dynamic = build(gm, inputs)
    threshold = time.perf_counter() - begin
    return SizeSpecializer(
        dynamic,
        size_arguments,
        float_arguments,
        lambda args: _compile_static(copy, args, float_arguments, build),
        threshold,
    )


@dataclass(eq=False)
class SizeSpecializer:
    """A dynamic program and its specializations.

    The key of a call is the sizes of `size_arguments` and the values of `float_arguments`, both
    positions. A key whose calls have taken `threshold` seconds gets a program of its own.
    """

    dynamic: CompiledFunction
    size_arguments: Sequence[int]
    float_arguments: Sequence[int]  # Python floats, which Dynamo passes in tensors
    compile_static: Callable[[Sequence[object]], CompiledFunction | None]
    threshold: float
    variants: dict[Hashable, CompiledFunction] = field(default_factory=dict)
    seconds: dict[Hashable, float] = field(default_factory=dict)

    def __call__(self, *args: object) -> object:
        sizes = [_size(args[k]) for k in self.size_arguments]
        key = (*sizes, *[args[k].item() for k in self.float_arguments])  # type: ignore[attr-defined]
        variant = self.variants.get(key)
        if variant is not None:
            return variant(*args)
        if len(self.variants) >= MAX_VARIANTS:
            return self.dynamic(*args)
        if self.seconds.get(key, -1.0) >= self.threshold and not modes_active():
            variant = self.variants[key] = self.compile_static(args) or self.dynamic
            return variant(*args)
        if key not in self.seconds:  # the first call is not timed: it may do more work
            if len(self.seconds) >= MAX_TIMED_SIZES:
                self.seconds.clear()
            self.seconds[key] = 0.0
            return self.dynamic(*args)
        begin = time.perf_counter()
        results = self.dynamic(*args)
        self.seconds[key] = self.seconds.get(key, 0.0) + time.perf_counter() - begin
        return results


def _size_arguments(inputs: Sequence[object]) -> list[int]:
    """Return the positions of arguments that determine all symbolic sizes.

    These are integers, and tensors with sizes that no integer argument determines. The list is
    empty if an argument is neither a plain tensor nor a size.
    """
    if not all(_is_supported(v) for v in inputs):
        return []
    integers = [k for k, v in enumerate(inputs) if isinstance(v, torch.SymInt)]
    determined = set().union(*(free_symbols(inputs[k]) for k in integers if _is_symbol(inputs[k])))
    tensors = [k for k, v in enumerate(inputs) if isinstance(v, torch.Tensor)]
    return integers + [k for k in tensors if not free_symbols(inputs[k]) <= determined]


def _is_supported(value: object) -> bool:
    """Return whether it is a plain tensor or a size, other than a nested tensor's ragged size."""
    if isinstance(value, torch.SymInt):
        return isinstance(value.node, SymNode)
    return isinstance(value, int) or type(value) in (FakeTensor, *PLAIN_TENSORS)


def _is_symbol(value: object) -> bool:
    return isinstance(value, torch.SymInt) and isinstance(value.node.expr, sympy.Symbol)


def _is_symbolic_float(argument: Node) -> bool:
    """Return whether an argument is a user's float, which Dynamo passes in a tensor."""
    value = argument.meta.get("example_value")
    return isinstance(value, FakeTensor) and isinstance(value.item_memo, torch.SymFloat)


def _size(value: object) -> Hashable:
    return (value.shape, value.stride()) if isinstance(value, torch.Tensor) else value


def _copy(gm: GraphModule) -> GraphModule:
    """Return a copy of a program with its own graph, because compilation changes graphs."""
    graph, copied = Graph(), dict[Node, Node]()
    graph.output(graph.graph_copy(gm.graph, copied))
    for node in gm.graph.find_nodes(op="placeholder"):
        if (source := get_source(node)) is not None:
            set_source(copied[node], source)
    return GraphModule(gm, graph)


def _compile_static(
    gm: GraphModule, args: Sequence[object], float_arguments: Sequence[int], build: Build
) -> CompiledFunction | None:
    """Return the program for the sizes of these arguments, or None if it cannot be specialized."""
    if not all(type(a) in (*PLAIN_TENSORS, int) for a in args):
        return None
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    fakes = [mode.from_tensor(a) if isinstance(a, torch.Tensor) else a for a in args]
    copy, grad = _copy(gm), torch.set_grad_enabled(torch.is_grad_enabled())
    for k in float_arguments:
        _replace_item(copy.graph.find_nodes(op="placeholder")[k], args[k])
    try:
        with preserve_rng_state(), grad, mode:
            _StaticShapes(copy, mode).run(*fakes)
        with preserve_rng_state(), tracing(TracingContext(mode)):
            return build(copy, fakes)
    except Exception as error:
        warnings.warn(
            f"tofuse cannot specialize a program for these sizes and runs the one for all sizes: "
            f"{error}",
            stacklevel=3,
        )
        return None


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
