"""Writing calls on real and imaginary parts into an FX graph."""

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
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import Graph, Node
from torch.fx.node import Argument, Target, map_arg

from tofuse.capture.fx.devices import SUPPORTED_DEVICES
from tofuse.capture.lower.lowerable import value_tensors

aten = torch.ops.aten
Part = Union[Node, float]  # noqa: UP007  (evaluated at run time)
REAL_DTYPES = {torch.complex64: torch.float32, torch.complex128: torch.float64}
NODE_SPECIFIC_META = ("val", "tensor_meta", "desc", "eager_input_vals")  # of a node's meta


class Pair(NamedTuple):
    """Two real tensors, or numbers, that broadcast to one shape."""

    re: Part
    im: Part


def is_complex(node: Node) -> bool:
    """Whether a node's value, or one of them, is complex."""
    return any(t.dtype.is_complex for t in value_tensors(node))


def is_supported_call(node: Node) -> bool:
    """Whether the pass knows the types, layouts and devices of a call's complex tensors."""
    found = (
        t for n in (*node.all_input_nodes, node) for t in value_tensors(n) if t.dtype.is_complex
    )
    return all(
        t.dtype in REAL_DTYPES
        and t.layout is torch.strided
        and not t.is_neg()
        and t.device.type in SUPPORTED_DEVICES
        for t in found
    )


def operator_name(node: Node) -> str:
    """An operator's name without its overload."""
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        return str(target).split(".")[1] if target.namespace == "aten" else ""
    return "getitem" if target is operator.getitem else ""


def real_dtype_of(node: Node) -> torch.dtype:
    """The type of a complex node's parts."""
    return REAL_DTYPES[value_tensors(node)[0].dtype]


@dataclass
class PairBuilder(ABC):
    """Writes calls into a graph, each at the place and of the origin of one that is there."""

    graph: Graph

    def __post_init__(self) -> None:
        values = (n.meta.get("val") for n in self.graph.nodes)
        self.mode = next(v.fake_mode for v in values if isinstance(v, FakeTensor))
        self.like: Node | None = None

    @contextmanager
    def before(self, node: Node, origin: Node) -> Iterator[None]:
        """New calls stand before a node."""
        with self.graph.inserting_before(node), self.stemming_from(origin):
            yield

    @contextmanager
    def stemming_from(self, node: Node) -> Iterator[None]:
        """New calls are of the line of code that a node is of."""
        outer, self.like = self.like, node
        yield
        self.like = outer

    def call(self, target: Target, *args: Argument, **kwargs: Argument) -> Node:
        """A new call and its value."""
        assert callable(target)
        node = self.graph.call_function(target, args, kwargs)
        given = map_arg((args, kwargs), lambda n: n.meta["val"])
        with self.mode, torch.no_grad():
            value = target(*given[0], **given[1])
        origin = {} if self.like is None else self.like.meta
        node.meta = {k: v for k, v in origin.items() if k not in NODE_SPECIFIC_META} | {
            "val": value
        }
        return node

    def node(self, part: Part, value: Tensor | list[Tensor]) -> Node:
        """A part as a tensor of the shape of its whole, or as the list that it is."""
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
        """In another type, where it is a tensor."""
        if not isinstance(part, Node) or not isinstance(part.meta["val"], Tensor):
            return part
        if part.meta["val"].dtype == dtype:
            return part
        return self.call(aten._to_copy.default, part, dtype=dtype)

    @abstractmethod
    def pair(self, argument: Argument) -> Pair:
        """The parts of an operand."""

    def permute(self, node: Node, dims: list[int]) -> Node:
        """With its dimensions in another order, if it is another."""
        return node if dims == sorted(dims) else self.call(aten.permute.default, node, dims)

    def side_by_side(self, *parts: Node) -> Node:
        """Along a new last dimension."""
        return self.call(
            aten.cat.default, [self.call(aten.unsqueeze.default, p, -1) for p in parts], -1
        )

    def _binary(self, op: Callable[..., float], target: Target, a: Part, b: Part) -> Part:
        if isinstance(a, Node):
            return self.call(target, a, b)
        return self.call(target, self._scalar(a, b), b) if isinstance(b, Node) else op(a, b)

    def _scalar(self, number: float, like: Node) -> Node:
        value = like.meta["val"]
        return self.call(aten.scalar_tensor.default, number, dtype=value.dtype, device=value.device)

    def add(self, a: Part, b: Part) -> Part:
        """a + b."""
        return self._binary(operator.add, aten.add.Tensor, a, b)

    def sub(self, a: Part, b: Part) -> Part:
        """a - b."""
        return self._binary(operator.sub, aten.sub.Tensor, a, b)

    def mul(self, a: Part, b: Part) -> Part:
        """a * b."""
        return self._binary(operator.mul, aten.mul.Tensor, a, b)

    def div(self, a: Part, b: Part) -> Part:
        """a / b."""
        return self._binary(_quotient, aten.div.Tensor, a, b)

    def maximum(self, a: Part, b: Part) -> Part:
        """The greater one."""
        if isinstance(a, Node):
            return self.call(aten.maximum.default, a, self.tensor(b, a))
        return self.call(aten.clamp_min.default, b, a) if isinstance(b, Node) else max(a, b)

    def neg(self, a: Part) -> Part:
        """-a."""
        return self.call(aten.neg.default, a) if isinstance(a, Node) else -a

    def abs(self, a: Part) -> Part:
        """Without its sign."""
        return self.call(aten.abs.default, a) if isinstance(a, Node) else abs(a)

    def tensor(self, part: Part, like: Part) -> Node:
        """A part that an operator without numbers takes."""
        if isinstance(part, Node):
            return part
        assert isinstance(like, Node)
        return self._scalar(part, like)


def _quotient(a: float, b: float) -> float:
    return a / b if b else math.nan
