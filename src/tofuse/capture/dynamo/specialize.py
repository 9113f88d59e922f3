"""A program whose sizes are symbols, compiled again for sizes that calls keep coming in."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

import sympy  # type: ignore[import-untyped]  # it ships no types
import torch
from torch._dynamo.utils import preserve_rng_state
from torch._guards import TracingContext, tracing
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx import Graph, GraphModule, Interpreter, Node
from torch.fx.experimental.sym_node import SymNode
from torch.fx.experimental.symbolic_shapes import free_symbols
from torch.fx.node import Argument, Target, map_arg

from tofuse.capture.dynamo.legality import watched
from tofuse.torch_internals.torch_types import CompiledFunction

Build = Callable[[GraphModule, Sequence[object]], CompiledFunction]

VARIANTS = 4  # compiled at most; other sizes stay with the program for all
COUNTED = 4096  # sizes whose calls are counted at a time
PLAIN = (torch.Tensor, torch.nn.Parameter)


def by_size(gm: GraphModule, inputs: Sequence[object], build: Build) -> CompiledFunction:
    """What `build` makes of a program of Dynamo's; where sizes are symbols, for some of them alone
    too.

    Sizes are compiled for by themselves once calls with them have taken as long as compiling the
    program did: of all the time that a program takes at most half is lost by that. What is known
    of sizes can be worth much: rows of three numbers are no loops.
    """
    places = _open_places(inputs)
    if not places:
        return build(gm, inputs)
    copy = _copy(gm)
    numbers = [k for k, n in enumerate(copy.graph.find_nodes(op="placeholder")) if _is_number(n)]
    begin = time.perf_counter()
    program = build(gm, inputs)
    most = time.perf_counter() - begin
    return BySize(program, places, numbers, lambda args: _at(copy, args, numbers, build), most)


@dataclass(eq=False)
class BySize:
    """`run`, but for sizes of the arguments at `places`, and values of the `numbers`, that have
    taken `most` seconds a program of their own."""

    run: CompiledFunction
    places: Sequence[int]
    numbers: Sequence[int]  # Python's, in tensors
    compile: Callable[[Sequence[object]], CompiledFunction | None]
    most: float
    found: dict[Hashable, CompiledFunction] = field(default_factory=dict)
    spent: dict[Hashable, float] = field(default_factory=dict)

    def __call__(self, *args: object) -> object:
        sizes = [_size(args[k]) for k in self.places]
        key = (*sizes, *[args[k].item() for k in self.numbers])  # type: ignore[attr-defined]
        program = self.found.get(key)
        if program is not None:
            return program(*args)
        if len(self.found) >= VARIANTS:
            return self.run(*args)
        if self.spent.get(key, -1.0) >= self.most and not watched():
            program = self.found[key] = self.compile(args) or self.run
            return program(*args)
        if key not in self.spent:  # once is no habit, and the first call may have more to do
            if len(self.spent) >= COUNTED:
                self.spent.clear()
            self.spent[key] = 0.0
            return self.run(*args)
        begin = time.perf_counter()
        results = self.run(*args)
        self.spent[key] = self.spent.get(key, 0.0) + time.perf_counter() - begin
        return results


def _open_places(inputs: Sequence[object]) -> list[int]:
    """The arguments that tell all the sizes that may be others in other calls: numbers, as a rule.

    None where arguments are of other kinds.
    """
    if not all(_is_known(v) for v in inputs):
        return []
    places = [k for k, v in enumerate(inputs) if isinstance(v, torch.SymInt)]
    known = set().union(*(free_symbols(inputs[k]) for k in places if _is_symbol(inputs[k])))
    tensors = [k for k, v in enumerate(inputs) if isinstance(v, torch.Tensor)]
    return places + [k for k in tensors if not free_symbols(inputs[k]) <= known]


def _is_known(value: object) -> bool:
    """Whether it is a plain tensor or a size, and no ragged one of a nested tensor."""
    if isinstance(value, torch.SymInt):
        return isinstance(value.node, SymNode)
    return isinstance(value, int) or type(value) in (FakeTensor, *PLAIN)


def _is_symbol(value: object) -> bool:
    return isinstance(value, torch.SymInt) and isinstance(value.node.expr, sympy.Symbol)


def _is_number(argument: Node) -> bool:
    """Whether it is a float of the user's, which Dynamo has in a tensor."""
    value = argument.meta.get("example_value")
    return isinstance(value, FakeTensor) and isinstance(value.item_memo, torch.SymFloat)


def _size(value: object) -> Hashable:
    return (value.shape, value.stride()) if isinstance(value, torch.Tensor) else value


def _copy(gm: GraphModule) -> GraphModule:
    """The program in a graph of its own, for graphs are changed on the way to a kernel."""
    graph, copied = Graph(), dict[Node, Node]()
    graph.output(graph.graph_copy(gm.graph, copied))
    for node in gm.graph.find_nodes(op="placeholder"):
        if (source := getattr(node, "_dynamo_source", None)) is not None:
            copied[node]._dynamo_source = source
    return GraphModule(gm, graph)


def _at(
    gm: GraphModule, args: Sequence[object], numbers: Sequence[int], build: Build
) -> CompiledFunction | None:
    """The program for the sizes of these arguments; None where there is none for them alone."""
    if not all(type(a) in (*PLAIN, int) for a in args):
        return None
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    fakes = [mode.from_tensor(a) if isinstance(a, torch.Tensor) else a for a in args]
    copy, grad = _copy(gm), torch.set_grad_enabled(torch.is_grad_enabled())
    for k in numbers:
        _put(copy.graph.find_nodes(op="placeholder")[k], args[k])
    try:
        with preserve_rng_state(), grad, mode:
            _Sized(copy, mode).run(*fakes)
        with preserve_rng_state(), tracing(TracingContext(mode)):
            return build(copy, fakes)
    except Exception as error:
        warnings.warn(f"tofuse keeps to the program for all sizes: {error}", stacklevel=3)
        return None


def _put(argument: Node, number: object) -> None:
    """Have those who read a number have the number."""
    assert isinstance(number, torch.Tensor)
    value = number.item()
    for item in [u for u in argument.users if u.target == "item"]:
        for user in list(item.users):

            def put(node: Node, item: Node = item) -> Argument:
                return value if node is item else node

            user.args, user.kwargs = map_arg(user.args, put), map_arg(user.kwargs, put)
        item.graph.erase_node(item)


class _Sized(Interpreter):
    """Has every node know what it is for these arguments."""

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
