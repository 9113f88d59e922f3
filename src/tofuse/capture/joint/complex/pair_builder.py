"""The builder of FX calls on real and imaginary parts."""

from __future__ import annotations

import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple, Union

import torch
from torch import Tensor
from torch.fx import Graph, Node
from torch.fx.node import Argument, Target, map_arg

from tofuse.capture.fx.devices import is_supported
from tofuse.capture.fx.node_tensors import value_tensors
from tofuse.torch_internals.fake_tensors import FakeTensor
from tofuse.torch_internals.operators import OpOverload
from tofuse.torch_internals.symbolic_shapes import tracing_operators

aten = torch.ops.aten
Part = Union[Node, float]  # noqa: UP007  (evaluated at run time)
REAL_DTYPES = {torch.complex64: torch.float32, torch.complex128: torch.float64}
NODE_SPECIFIC_META = ("val", "tensor_meta", "desc", "eager_input_vals")  # not copied


class Pair(NamedTuple):
    """The real and imaginary part: tensors or numbers that broadcast to one shape."""

    re: Part
    im: Part


def is_complex(node: Node) -> bool:
    """Whether a node has a complex value, or one in a tuple."""
    return any(t.dtype.is_complex for t in value_tensors(node))


def is_supported_call(node: Node) -> bool:
    """Whether the pass supports the dtypes, layouts and devices of a call's complex tensors."""
    nodes = (*node.all_input_nodes, node)
    tensors = (t for n in nodes for t in value_tensors(n) if t.dtype.is_complex)
    return all(
        t.dtype in REAL_DTYPES
        and t.layout is torch.strided
        and not t.is_neg()
        and is_supported(t.device)
        for t in tensors
    )


def operator_name(node: Node) -> str:
    """Return the name of a node's ATen operator, without overload; "" for others."""
    target = node.target
    if isinstance(target, OpOverload):
        return str(target).split(".")[1] if target.namespace == "aten" else ""
    return "getitem" if target is operator.getitem else ""


def real_dtype_of(node: Node) -> torch.dtype:
    """Return the dtype of a complex node's parts."""
    return REAL_DTYPES[value_tensors(node)[0].dtype]


def _example(number: object) -> complex:
    """Return a number of the same type, for one that is an expression of sizes."""
    if isinstance(number, (int, float, complex)):
        return number
    return 1.0 if isinstance(number, torch.SymFloat) else 1


def _arithmetic(
    op: Callable[[float, float], float], target: Target
) -> Callable[[PairBuilder, Part, Part], Part]:
    """Return the method that computes `op` of two numbers, or calls `target` on tensors."""

    def method(builder: PairBuilder, a: Part, b: Part) -> Part:
        if isinstance(a, Node):
            return builder.call(target, a, b)
        if isinstance(b, Node):
            return builder.call(target, builder.tensor(a, b), b)
        return op(a, b)

    return method


@dataclass
class PairBuilder(ABC):
    """Inserts calls into a graph, with the meta data of the node that they originate from."""

    graph: Graph

    def __post_init__(self) -> None:
        values = (n.meta.get("val") for n in self.graph.nodes)
        self.fake_mode = next(v.fake_mode for v in values if isinstance(v, FakeTensor))
        self.origin = next(iter(self.graph.nodes))

    @contextmanager
    def with_origin(self, node: Node) -> Iterator[None]:
        """Give new calls the source location and other meta data of a node."""
        outer, self.origin = self.origin, node
        yield
        self.origin = outer

    def call(self, target: Target, *args: Argument, **kwargs: Argument) -> Node:
        """Insert a call and compute its fake value."""
        assert callable(target)
        node = self.graph.call_function(target, args, kwargs)
        fake = map_arg((args, kwargs), lambda n: n.meta["val"])
        with tracing_operators(self.fake_mode):
            value = target(*fake[0], **fake[1])
        meta = self.origin.meta.items()
        node.meta = {k: v for k, v in meta if k not in NODE_SPECIFIC_META} | {"val": value}
        return node

    def node(self, part: Part, value: Tensor | list[Tensor]) -> Node:
        """Return a part as a tensor of the shape of its complex value; a list stays a list."""
        if not isinstance(value, Tensor):
            assert isinstance(part, Node)
            return part
        shape = list(value.shape)
        if not isinstance(part, Node):
            dtype = REAL_DTYPES.get(value.dtype, value.dtype)
            return self.call(aten.full.default, shape, part, dtype=dtype, device=value.device)
        if part.meta["val"].shape == value.shape:
            return part
        return self.call(aten.expand.default, part, shape)

    def cast(self, part: Part, dtype: torch.dtype) -> Part:
        """Convert a tensor part to another dtype."""
        if not isinstance(part, Node) or not isinstance(part.meta["val"], Tensor):
            return part
        if part.meta["val"].dtype == dtype:
            return part
        return self.call(aten._to_copy.default, part, dtype=dtype)

    @abstractmethod
    def pair(self, argument: Argument) -> Pair:
        """Return the parts of an operand."""

    def promoted_pairs(self, *operands: Argument) -> list[Pair]:
        """Return the parts of one or two operands, in the dtype that torch promotes them to."""
        values = [x.meta["val"] if isinstance(x, Node) else x for x in operands]
        numbers = [x if isinstance(x, Tensor) else _example(x) for x in values]
        dtype = torch.result_type(numbers[0], numbers[-1])
        dtype = REAL_DTYPES.get(dtype, dtype)
        pairs = map(self.pair, operands)
        return [Pair(self.cast(re, dtype), self.cast(im, dtype)) for re, im in pairs]

    def permute(self, node: Node, dims: list[int]) -> Node:
        """Permute the dimensions, unless the order is the same."""
        return node if dims == sorted(dims) else self.call(aten.permute.default, node, dims)

    def stack_last(self, *parts: Node) -> Node:
        """Stack along a new last dimension."""
        return self.call(
            aten.cat.default, [self.call(aten.unsqueeze.default, p, -1) for p in parts], -1
        )

    def unstack_last(self, whole: Node) -> Pair:
        """Return the two parts along the last dimension."""
        last = whole.meta["val"].dim() - 1
        return Pair(*[self.call(aten.select.int, whole, last, k) for k in range(2)])

    add = _arithmetic(operator.add, aten.add.Tensor)
    sub = _arithmetic(operator.sub, aten.sub.Tensor)
    mul = _arithmetic(operator.mul, aten.mul.Tensor)
    div = _arithmetic(lambda a, b: a / b if b else math.nan, aten.div.Tensor)

    def compare(self, op: Callable[[float, float], bool], a: Part, b: Part) -> Node | bool:
        """Return a comparison by a function of `operator`."""
        target = getattr(aten, op.__name__)
        if isinstance(b, Node):
            return self.call(target.Tensor, self.tensor(a, b), b)
        return self.call(target.Scalar, a, b) if isinstance(a, Node) else op(a, b)

    def where(self, condition: Argument, yes: Part, no: Part) -> Part:
        """Return `yes` where the condition holds, else `no`."""
        if isinstance(condition, bool):
            return yes if condition else no
        return self.call(aten.where.self, condition, self.tensor(yes, no), self.tensor(no, yes))

    def neg(self, a: Part) -> Part:
        """Return -a."""
        return self.call(aten.neg.default, a) if isinstance(a, Node) else -a

    def abs(self, a: Part) -> Part:
        """Return |a|."""
        return self.call(aten.abs.default, a) if isinstance(a, Node) else abs(a)

    def tensor(self, part: Part, example: Part) -> Node:
        """Return a part as a tensor like the example, for operators that take no numbers."""
        if isinstance(part, Node):
            return part
        value = (example if isinstance(example, Node) else self.origin).meta["val"]
        dtype = REAL_DTYPES.get(value.dtype, value.dtype)
        return self.call(aten.scalar_tensor.default, part, dtype=dtype, device=value.device)
