"""The split of an ATen graph at calls whose result has a size or number that depends on data.

PyTorch runs these calls, and the checks of such sizes. The calls between them form parts, which
are compiled: to a part, a size that depends on data is one more argument. The order is that of the
program, and a check runs before the part that follows it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import sympy  # type: ignore[import-untyped]  # it ships no types
import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import Argument

from tofuse.capture.fx.aliases import has_side_effect, viewed_node
from tofuse.capture.fx.location import source_location
from tofuse.capture.fx.node_tensors import value_tensors
from tofuse.capture.fx.sizes import SYMBOLIC, Number, SymbolicSizes, number_symbols
from tofuse.capture.lower.convert import is_size_check
from tofuse.errors import CaptureError
from tofuse.ir.size_expression import SizeTerm, evaluate_size, size_symbols
from tofuse.ops.check_shape import check_number, check_shape
from tofuse.torch_internals.operators import OpOverload, schema_of
from tofuse.torch_internals.symbolic_shapes import deferred_checks, symbol_of_bool

ASSERT = torch.ops.aten._assert_scalar.default
TENSOR_SIZE = torch.Tensor.size
READ_NUMBER = torch.ops.aten._local_scalar_dense.default
DEFAULT_MESSAGE = "Runtime assertion failed"


@dataclass(frozen=True)
class SplitGraph:
    """A graph that PyTorch runs, and its parts: calls whose target is the compiled graph.

    `calls` are the calls whose results depend on data.
    """

    outer: GraphModule
    parts: tuple[tuple[Node, GraphModule], ...]
    calls: tuple[Node, ...]

    @property
    def note(self) -> str:
        """What PyTorch runs, and why."""
        places = [(n.target, source_location(n)) for n in self.calls]
        texts = [
            f"{target} ({loc!r}: {loc.code})" if loc else str(target) for target, loc in places
        ]
        return (
            f"PyTorch runs {', '.join(dict.fromkeys(texts))}: a size or number that depends on data"
            f" comes from there; the graph between is compiled in {len(self.parts)} parts"
        )


def split_data_dependent(gm: GraphModule) -> SplitGraph | None:
    """Return the split graph; None if no size and no number depends on data.

    Raises CaptureError if a size depends on data in a way that no call's result shows.
    """
    calls = _data_dependent_calls(gm.graph)
    return _Splitter(gm, calls).run() if calls else None


def _data_dependent_calls(graph: Graph) -> list[Node]:
    """Return the calls that read a number, or whose result has a size of a new symbol."""
    known: set[sympy.Symbol] = set()
    calls = []
    for n in graph.nodes:
        found = {s for x in _sizes_and_numbers(n) for s in number_symbols(x)}
        if n.op == "call_function" and (n.target is READ_NUMBER or not found <= known):
            calls.append(n)
        known |= found
    return calls


def _sizes_and_numbers(node: Node) -> list[Number]:
    """Return the sizes of a node's tensors, and its numbers."""
    value = node.meta.get("val")
    values = value if isinstance(value, (list, tuple)) else (value,)
    numbers = [x for x in values if isinstance(x, (bool, int, float, *SYMBOLIC))]
    return [*numbers, *(x for t in value_tensors(node) for x in t.shape)]


def _is_number(node: Node) -> bool:
    return isinstance(node.meta.get("val"), (bool, int, float, *SYMBOLIC))


def _is_view(node: Node) -> bool:
    """Whether a node only views another one's memory: each graph that reads it has its own."""
    if viewed_node(node) is None:
        return False
    return not isinstance(node.target, OpOverload) or not schema_of(node.target).is_mutable


def _base(node: Node) -> Node:
    """Return the node at the end of a chain of views that write nothing."""
    while _is_view(node) and (viewed := viewed_node(node)) is not None:
        node = viewed
    return node


@dataclass
class _Copier:
    """Copies nodes of one graph into another, whose values they read.

    `symbol` and `argument` give the node of a symbol, and of a tensor that is computed elsewhere.
    """

    graph: Graph
    sizes: SymbolicSizes
    symbol: Callable[[str], Node]
    argument: Callable[[Node], Node]
    env: dict[Node, Node] = field(default_factory=dict)

    def copy(self, node: Node) -> Node:
        self.env[node] = copied = self.graph.node_copy(node, self.value)
        return copied

    def value(self, node: Node) -> Node:
        """Return the node of a value; views and constants are copied where they are read."""
        if node in self.env:
            return self.env[node]
        if _is_number(node):
            # FX takes numbers for arguments, but declares only nodes
            return self.number(node.meta["val"])  # type: ignore[return-value]
        if node.op == "get_attr" or _is_view(node):
            return self.copy(node)
        self.env[node] = argument = self.argument(node)
        return argument

    def number(self, value: Number) -> Argument:
        """Return a number, or a node that computes it from symbols."""
        if isinstance(value, (bool, int, float)):
            return value
        term = self.sizes.term(value)
        computed = self.term(term)
        if isinstance(computed, Node):
            computed.meta.setdefault("val", value)
        return computed

    def term(self, term: SizeTerm) -> Argument:
        if isinstance(term, (bool, int, float)):
            return term
        names = size_symbols(term)
        nodes = tuple(map(self.symbol, names))
        if repr(term) in names:  # a symbol alone
            return nodes[0]

        def evaluate(*values: int) -> bool | int | float:
            return evaluate_size(term, dict(zip(names, values, strict=True)))

        return self.graph.call_function(evaluate, nodes)


def _is_size_of(extent: Argument, tensor: Node, dim: int) -> bool:
    """Whether an extent was read from this dimension of this tensor."""
    return (
        isinstance(extent, Node) and extent.target is TENSOR_SIZE and extent.args == (tensor, dim)
    )


class _Splitter:
    """The outer graph under construction, and the parts that it calls."""

    def __init__(self, gm: GraphModule, calls: Sequence[Node]) -> None:
        self.gm, self.calls, self.sizes = gm, dict.fromkeys(calls), SymbolicSizes()
        self.outer = _Copier(Graph(), self.sizes, self._symbol, self._missing)
        self.symbols: dict[str, tuple[Node, Number]] = {}
        self.part_of: dict[Node, int] = {}  # the calls that are compiled
        self.escaping: set[Node] = set()  # results of parts that others read
        self.parts: list[tuple[Node, GraphModule]] = []
        self.asserted: set[str] = set()
        self.items: dict[tuple[Node, int], Node] = {}

    def run(self) -> SplitGraph:
        nodes = list(self.gm.graph.nodes)
        self._arguments([n for n in nodes if n.op == "placeholder"])
        self._assign_parts(nodes)
        segment: list[Node] = []
        for n in nodes:
            if n in self.part_of:
                segment.append(n)
            elif n in self.calls or n.op == "output":
                self._deferred_checks()
                self._part(segment)
                segment = []
                copied = self.outer.copy(n)
                self._bind_symbols(copied, n.meta.get("val"))
                self._check(str(n.target), copied, n.meta.get("val"))
            elif n.op == "call_function" and is_size_check(n):
                self._size_check(n)
            elif n.target is operator.getitem and not _is_number(n) and not _is_view(n):
                self.outer.copy(n)
        return SplitGraph(
            GraphModule(self.gm, self.outer.graph), tuple(self.parts), tuple(self.calls)
        )

    def _arguments(self, nodes: Sequence[Node]) -> None:
        for n in nodes:
            copied = self.outer.copy(n)
            value = n.meta.get("val")
            if isinstance(value, SYMBOLIC):
                self._bind_symbols(copied, value)
        for n in nodes:
            self._bind_symbols(self.outer.env[n], n.meta.get("val"))

    def _assign_parts(self, nodes: Sequence[Node]) -> None:
        """Number the parts, and find the results of each that others read."""
        number = 0
        for n in nodes:
            if n in self.calls:
                number += 1
            elif n.target is operator.getitem:
                source = n.all_input_nodes[0]
                if source in self.part_of and not _is_number(n):
                    self.part_of[n] = self.part_of[source]
            elif n.op == "call_function" and not _is_number(n) and not is_size_check(n):
                self.part_of[n] = number
        for n in nodes:
            if _is_number(n) and n not in self.calls:
                continue
            for read in n.all_input_nodes:
                base = _base(read)
                if base in self.part_of and self.part_of.get(n) != self.part_of[base]:
                    self.escaping.add(base)

    def _part(self, nodes: Sequence[Node]) -> None:
        """Add the call of a part, with its graph, if a result or an effect of it is needed."""
        results = [n for n in nodes if n in self.escaping]
        needed = {
            *results,
            *(n for n in nodes if n.target is not operator.getitem and has_side_effect(n)),
        }
        if not needed:
            return
        for n in reversed(nodes):
            if n in needed:
                needed |= {*n.all_input_nodes}
        graph, arguments = Graph(), list[Node]()

        def add(name: str, argument: Node, value: object) -> Node:
            first = next(iter(graph.nodes), None)
            with graph.inserting_before(first):
                placeholder = graph.placeholder(name)
            placeholder.meta["val"] = value
            arguments.insert(0, argument)
            return placeholder

        inside: dict[str, Node] = {}

        def symbol(name: str) -> Node:
            if name not in inside:
                inside[name] = add(f"size_{name}", self._symbol(name), self.symbols[name][1])
            return inside[name]

        def argument(node: Node) -> Node:
            return add(node.name, self.outer.value(node), node.meta.get("val"))

        part = _Copier(graph, self.sizes, symbol, argument)
        for n in nodes:
            if n in needed:
                part.copy(n)
        values = [x for n in (*needed, *part.env) for x in _sizes_and_numbers(n)]
        for name in sorted({s.name for x in values for s in number_symbols(x)}):
            if name in self.symbols:
                symbol(name)
        graph.output([part.env[n] for n in results])
        self._call(GraphModule(self.gm, graph), arguments, results)

    def _call(self, part: GraphModule, arguments: Sequence[Node], results: Sequence[Node]) -> None:
        call = self.outer.graph.call_function(_run_part, (*arguments,))
        self.parts.append((call, part))
        for k, n in enumerate(results):
            item = self.outer.graph.call_function(operator.getitem, (call, k))
            item.meta = dict(n.meta)
            self.outer.env[n] = item

    # -- symbols and checks ----------------------------------------------------------------------

    def _symbol(self, name: str) -> Node:
        if name not in self.symbols:
            raise CaptureError(f"the size {name} depends on no argument and no call of the program")
        return self.symbols[name][0]

    def _missing(self, node: Node) -> Node:
        raise CaptureError(f"{node} is computed by no part of the program")

    def _bind_symbols(self, node: Node, value: object) -> None:
        """Record the symbols that a number is, or that sizes of tensors are."""
        graph = self.outer.graph
        if isinstance(value, (list, tuple)):
            for k, x in enumerate(value):
                if isinstance(x, (torch.Tensor, *SYMBOLIC)):
                    self._bind_symbols(self._item(node, k), x)
        elif isinstance(value, torch.Tensor) and value.layout is torch.strided:
            for d, extent in enumerate(value.shape):
                if self._is_new(extent):
                    size = graph.call_function(TENSOR_SIZE, (node, d))
                    size.meta["val"] = extent
                    self._bind_symbols(size, extent)
        elif isinstance(value, (torch.SymInt, torch.SymFloat)) and self._is_new(value):
            (symbol,) = number_symbols(value)
            self.symbols[symbol.name] = node, value
            self.sizes.add_argument(len(self.symbols), value)
        elif isinstance(value, torch.SymBool) and (number := symbol_of_bool(value)) is not None:
            self._bind_symbols(graph.call_function(int, (node,)), number)

    def _item(self, node: Node, k: int) -> Node:
        """Return an item of a tuple, or of a list; one node for each."""
        if (node, k) not in self.items:
            self.items[node, k] = self.outer.graph.call_function(operator.getitem, (node, k))
        return self.items[node, k]

    def _is_new(self, number: Number) -> bool:
        """Whether a number is a symbol alone that was not seen before."""
        if not isinstance(number, (torch.SymInt, torch.SymFloat)):
            return False
        names = [s.name for s in number_symbols(number)]
        return names == [str(number.node.expr)] and names[0] not in self.symbols

    def _check(self, target: str, node: Node, value: object) -> None:
        """Check the shapes of a call's results, or its number, against what was traced."""
        graph = self.outer.graph
        if isinstance(value, (list, tuple)):
            for k, x in enumerate(value):
                if isinstance(x, (torch.Tensor, bool, int, float, *SYMBOLIC)):
                    self._check(target, self._item(node, k), x)
        elif isinstance(value, torch.Tensor) and value.layout is torch.strided:
            extents = tuple(map(self.outer.number, value.shape))
            if extents and all(_is_size_of(e, node, d) for d, e in enumerate(extents)):
                return

            def check(tensor: torch.Tensor, *shape: int) -> None:
                check_shape(target, tensor.shape, shape)

            graph.call_function(check, (node, *extents))
        elif isinstance(value, (bool, int, float, *SYMBOLIC)):
            expected = self.outer.number(value)
            if expected is not node:
                graph.call_function(check_number, (target, node, expected))

    def _size_check(self, node: Node) -> None:
        """Add a check of a number; it runs before the part around it."""
        name = str(node.target).split(".")[1]
        if name in ("_assert_scalar", "_functional_assert_scalar"):
            tested = node.args[0]
            number: object = tested.meta["val"] if isinstance(tested, Node) else tested
            if isinstance(number, SYMBOLIC):
                self._assert(self.sizes.term(number), _message(node))
            else:
                self._assert(bool(number), _message(node))
        elif name.startswith("sym_constrain_range"):
            self.outer.copy(node)

    def _deferred_checks(self) -> None:
        """Add the checks that torch deferred to run time after Dynamo had made the program."""
        for expr, message in deferred_checks(v for _, v in self.symbols.values()):
            if {s.name for s in expr.free_symbols} <= self.symbols.keys():
                self._assert(self.sizes.expression(expr), message)

    def _assert(self, condition: SizeTerm, message: str) -> None:
        if condition is not True and repr(condition) not in self.asserted:
            self.asserted.add(repr(condition))
            self.outer.graph.call_function(ASSERT, (self.outer.term(condition), message))


def _run_part(*arguments: object) -> None:
    """Stand for a part that is not compiled yet."""
    raise AssertionError("a part of a program is not compiled")


def _message(node: Node) -> str:
    """Return the message of an assertion; torch's own names no line."""
    message, loc = str(node.args[1]), source_location(node)
    if loc is None or not message.startswith(DEFAULT_MESSAGE):
        return message
    return f"{message} ({loc!r}: {loc.code})"
