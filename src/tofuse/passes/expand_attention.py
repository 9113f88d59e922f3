"""Let kernels compute `F.scaled_dot_product_attention`, which is a call of PyTorch otherwise."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Set
from dataclasses import replace
from functools import cached_property, partial

from tofuse.analysis.reachability import reachable
from tofuse.cost.target_costs import CostsOf
from tofuse.cost.thresholds import MIN_SINGLE_QUERY_FLOAT32_KEY_ELEMENTS
from tofuse.graph_partition import Partition
from tofuse.ir.call_arguments import CallArgument, OperandRef
from tofuse.ir.dims import Dim, product, size_hint
from tofuse.ir.graph import Graph, Op, Scalar, Value
from tofuse.ir.types import DType
from tofuse.passes.product_ops import ProductBuilder
from tofuse.passes.rewrite import Replacement, Rewriter, rewrite

FORWARD = "aten._scaled_dot_product_flash_attention_for_cpu.default"
BACKWARD = "aten._scaled_dot_product_flash_attention_for_cpu_backward.default"
OPTIONS = ("dropout_p", "is_causal", "attn_mask", "scale")
PARAMETERS = {
    FORWARD: ("query", "key", "value", *OPTIONS),
    BACKWARD: ("grad_out", "query", "key", "value", "out", "logsumexp", *OPTIONS),
}

ATTENTION_CALLS = frozenset(PARAMETERS)


def attention_calls(graph: Graph, costs_of: CostsOf) -> frozenset[Value]:
    """Return the first results of the calls of attention that kernels may compute.

    They have no dropout, and keys of a static number that fit the caches, or one query. For a
    backward, keys and values have as many heads as queries.
    """
    opaque = (op for op in graph.ops if op.kind == "opaque")
    calls = (op for op in opaque if op.attr("target") in ATTENTION_CALLS)
    return frozenset(op.result for op in calls if _is_expandable(op, costs_of))


def expand_attention(graph: Graph, chosen: Set[Value]) -> Graph:
    """Replace the calls whose first results are `chosen` by products and a softmax."""
    if not chosen:
        return graph
    return rewrite(graph, {"opaque": (partial(_attention, chosen=chosen),)})


def separate_attention(
    graph: Graph, part: Partition, chosen: Collection[Value]
) -> frozenset[Value]:
    """Return the chosen results of calls in a graph that no kernel computes with their products.

    With one query, each product is fast in a kernel of its own.
    """
    calls = {op.result: op for op in graph.ops if op.results and op.result in chosen}
    producers = part.graph.producers()
    region_of = {op: region for region in part.regions for op in region.ops}

    def is_separate(call: Op) -> bool:
        """Whether a product, and a result that depends on it, are in two kernels."""
        ends = set(call.inputs)

        def operands(op: Op) -> list[Op]:
            return [producers[v] for v in op.inputs if v in producers and v not in ends]

        for result in call.results:
            needed = reachable([producers[result]], operands)
            products = {region_of[op] for op in needed if op.kind == "contract"}
            if products != {region_of[producers[result]]}:
                return True
        return False

    return frozenset(v for v in calls if v.shape[-2] != 1 and is_separate(calls[v]))


def _is_expandable(op: Op, costs_of: CostsOf) -> bool:
    arguments = _arguments(op)
    key, value = (_operand(op, arguments, name) for name in ("key", "value"))
    is_backward = op.attr("target") == BACKWARD
    costs = costs_of(op.result.type.device)
    if key is None or value is None or arguments.get("dropout_p", 0.0) != 0.0:
        return False
    if key.shape[-2] != value.shape[-2]:
        return False
    if not _has_groups(op.result.shape[:-2], key.shape[:-2], value.shape[:-2]):
        return False
    if op.result.dtype not in costs.blocked_dtypes or not isinstance(key.shape[-1], int):
        return False
    if op.result.shape[-2] == 1 and not is_backward:
        elements = size_hint(key.type.numel)
        return key.dtype.is_reduced_float or elements >= MIN_SINGLE_QUERY_FLOAT32_KEY_ELEMENTS
    if is_backward and not key.shape[:-2] == value.shape[:-2] == op.result.shape[:-2]:
        return False
    most = costs.max_chained_bytes // DType.F32.itemsize
    sizes = [product(x.shape[-2:]) for x in (key, value)]
    return all(isinstance(n, int) and 0 < n <= most for n in sizes)


def _has_groups(batch: tuple[Dim, ...], *others: tuple[Dim, ...]) -> bool:
    """Whether queries have the same batch as keys and values, and a multiple of their heads."""
    heads = batch[-1]
    for other in others:
        if other == batch:
            continue
        fewer = other[-1]
        if other[:-1] != batch[:-1] or not isinstance(heads, int) or not isinstance(fewer, int):
            return False
        if heads % fewer:
            return False
    return True


def _arguments(op: Op) -> Mapping[str, CallArgument]:
    """Return the arguments of a call by their names."""
    given = op.arguments
    names = PARAMETERS[str(op.attr("target"))]
    return {**dict(zip(names, given.positional, strict=False)), **dict(given.keyword)}


def _operand(op: Op, arguments: Mapping[str, CallArgument], name: str) -> Value | None:
    argument = arguments.get(name)
    return op.inputs[argument.index] if isinstance(argument, OperandRef) else None


def _attention(op: Op, rewriter: Rewriter, *, chosen: Set[Value]) -> Replacement | None:
    """attention(q, k, v) = exp(s - m) @ v / l, where s = scale * q @ k.T + mask

    m is the maximum of a row of s, and l the sum of its exponentials. A row without keys, whose
    scores are all -inf, has the result 0. The second result is log(l) + m.
    """
    if op.result not in chosen:
        return None
    builder = _AttentionBuilder(op, rewriter)
    if op.attr("target") == BACKWARD:
        return builder.gradients()
    return builder.forward()


class _AttentionBuilder(ProductBuilder):
    """Collect the ops that replace a call of attention."""

    def __init__(self, op: Op, rewriter: Rewriter) -> None:
        super().__init__(op, rewriter)
        self.arguments = _arguments(op)
        self.batch = self._tensor("query").shape[:-2]

    def forward(self) -> tuple[Op, ...]:
        q, k, v = map(self._tensor, ("query", "key", "value"))
        k, v = self._of_all_heads(k), self._of_all_heads(v)
        scores = self._scores(q, k, keys_are_rows=False)
        last = len(scores.shape) - 1
        most = self.add("amax", scores, dims=(last,), dtype=self.dtype)
        is_empty = self.add("eq", most, Scalar(-math.inf))
        most = self.add("where", is_empty, Scalar(0.0), most)
        difference = self.add("sub", scores, self._beside_rows(most, scores))
        e = self.add("exp", difference)
        total = self.add("sum", e, dims=(last,), dtype=self.dtype)
        total = self.add("where", is_empty, Scalar(1.0), total)
        weighted = self._product(e, v)
        if 1 in self._results:
            self.add("add", self.add("log", total), most)
            self._define(1)
        self.add("div", weighted, self._beside_rows(total, weighted))
        self._define(0)
        return tuple(self.ops)

    def gradients(self) -> tuple[Op, ...]:
        """Return the ops of the gradients of queries, keys and values.

        With p = exp(s - logsumexp), g the gradient of the result and d the sums of its rows times
        the result: the gradient of v is p.T @ g, that of s is p * (g @ v.T - d). The products of
        both orders are kernels of their own: rows are queries in one, and keys in the other.
        """
        names = ("query", "key", "value", "grad_out", "out", "logsumexp")
        q, k, v, g, out, logsumexp = map(self._tensor, names)
        products = self.add("mul", self.widen(g), self.widen(out))
        d = self.add("sum", products, dims=(len(g.shape) - 1,), dtype=self.dtype)
        if 0 in self._results:
            scores = self._scores(q, k, keys_are_rows=False)
            p = self._weights(scores, self._beside_rows(self.widen(logsumexp), scores))
            of_p = self._product(g, self._transposed(v))
            of_s = self._of_scores(p, of_p, self._beside_rows(d, scores))
            self._product(of_s, k)
            self._define(0)
        if self._results.keys() & {1, 2}:
            scores = self._scores(k, q, keys_are_rows=True)
            p = self._weights(scores, self._beside_columns(self.widen(logsumexp), scores))
            if 2 in self._results:
                self._product(p, g)
                self._define(2)
            if 1 in self._results:
                of_p = self._product(v, self._transposed(g))
                of_s = self._of_scores(p, of_p, self._beside_columns(d, scores))
                self._product(of_s, q)
                self._define(1)
        return tuple(self.ops)

    def _scores(self, left: Value, right: Value, *, keys_are_rows: bool) -> Value:
        """Return the masked scores of queries and keys in float32, with either as rows."""
        scores = self.add("mul", self._product(left, self._transposed(right)), self._scale())
        mask = _operand(self.op, self.arguments, "attn_mask")
        if mask is not None:
            *others, queries, keys = scores.shape
            shape = (*others, keys, queries) if keys_are_rows else scores.shape
            mask = self.broadcast_to(self.widen(mask), shape)
            mask = self._transposed(mask) if keys_are_rows else mask
            scores = self.add("add", scores, mask)
        return self._causal(scores, keys_are_rows) if self.arguments.get("is_causal") else scores

    def _causal(self, scores: Value, keys_are_rows: bool) -> Value:
        """Return the scores with -inf for the keys behind each query."""
        shape = scores.shape[-2:]
        positions = [self.add("iota", shape=(n,), start=0, step=1, dtype=DType.I64) for n in shape]
        rows, columns = (
            self.add("broadcast", x, shape=shape, dims=(d,)) for d, x in enumerate(positions)
        )
        queries, keys = (columns, rows) if keys_are_rows else (rows, columns)
        is_behind = self.broadcast_to(self.add("lt", queries, keys), scores.shape)
        return self.add("where", is_behind, Scalar(-math.inf), scores)

    def _weights(self, scores: Value, logsumexp: Value) -> Value:
        return self.add("exp", self.add("sub", scores, logsumexp))

    def _of_scores(self, p: Value, of_p: Value, d: Value) -> Value:
        """Return the gradient of the products of queries and keys: p * (of_p - d) * scale.

        p * d comes first. In of_p - d, d would join the kernel of of_p before that of p: with keys
        as rows, a kernel that computes d cannot have p.
        """
        p_times_d = self.add("mul", p, d)
        of_scores = self.add("sub", self.add("mul", p, of_p), p_times_d)
        return self.add("mul", of_scores, self._scale())

    def _product(self, x: Value, w: Value) -> Value:
        """Return x @ w in float32; x is rounded to the type of w, unless it is one row."""
        if x.shape[-2] == 1:
            return self.add("contract", self.widen(x), self.widen(w), dtype=self.dtype)
        x = x if x.dtype is w.dtype else self.add("convert", x, dtype=w.dtype)
        return self.add("contract", x, w, dtype=self.dtype)

    def _scale(self) -> Scalar:
        scale, depth = self.arguments.get("scale"), self._tensor("query").shape[-1]
        if isinstance(scale, (int, float)):
            return Scalar(float(scale))
        assert isinstance(depth, int)
        return Scalar(1 / math.sqrt(depth))

    def _of_all_heads(self, x: Value) -> Value:
        """Return keys or values with one head for each of the queries: a group has the same."""
        if x.shape[:-2] == self.batch:
            return x
        heads, groups = self.batch[-1], x.shape[-3]
        assert isinstance(heads, int) and isinstance(groups, int)
        shape = (*x.shape[:-2], heads // groups, *x.shape[-2:])
        kept = tuple(d for d in range(len(shape)) if d != len(shape) - 3)
        repeated = self.add("broadcast", x, shape=shape, dims=kept)
        return self.add("reshape", repeated, shape=(*self.batch, *x.shape[-2:]))

    def _transposed(self, x: Value) -> Value:
        last = len(x.shape) - 1
        return self.add("permute", x, dims=(*range(last - 1), last, last - 1))

    def _beside_rows(self, x: Value, like: Value) -> Value:
        """Return the numbers of rows beside all elements of a row."""
        return self.add("broadcast", x, shape=like.shape, dims=tuple(range(len(x.shape))))

    def _beside_columns(self, x: Value, like: Value) -> Value:
        """Return the numbers of columns beside all elements of a column."""
        last = len(like.shape) - 1
        return self.add("broadcast", x, shape=like.shape, dims=(*range(last - 1), last))

    def _tensor(self, name: str) -> Value:
        found = _operand(self.op, self.arguments, name)
        assert found is not None
        return found

    @cached_property
    def _results(self) -> Mapping[int, Value]:
        """The results of the call, by their positions."""
        return dict(zip(self.op.ints("picks"), self.op.results, strict=True))

    def _define(self, position: int) -> None:
        """Let the last op define a result of the call, in its type."""
        result = self._results[position]
        if self.ops[-1].result.dtype is not result.dtype:
            self.add("convert", self.ops[-1].result, dtype=result.dtype)
        self.ops[-1] = replace(self.ops[-1], results=(result,))
