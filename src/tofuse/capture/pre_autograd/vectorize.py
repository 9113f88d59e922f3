"""Vectorization of isomorphic branches: `f` on many slices of a tensor becomes one `f` under vmap.

`torch.stack([f(x[:, k]) for k in range(16)])` makes 16 times the calls of `f`, and PyTorch traces
each of them, forward and backward. Kernels can fuse such branches, but matrix products and
convolutions remain 16 library calls. This pass runs before autograd, so the backward is vectorized
as well.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import Argument, Target, map_arg

from tofuse.capture.fx.mutation import written_tensors
from tofuse.capture.fx.node_tensors import example_tensor, node_nbytes, storage_id, target_name
from tofuse.capture.pre_autograd.slice_match import ConsecutiveSlices, match_slices
from tofuse.cost.thresholds import BYTES_PER_CALL, MIN_BRANCHES, TOLERATED_EXCESS
from tofuse.hints import HINT_KEY, set_call_count
from tofuse.torch_internals.operators import BUILTIN_NN
from tofuse.torch_internals.transforms import (
    add_batch_dim,
    enter_vmap,
    leave_vmap,
    load_vmap_decompositions,
    remove_batch_dim,
    without_vmap_fallback,
)

VECTORIZED = "{count} isomorphic branches of {calls} each, on slices of a tensor, are vectorized"
CONCATS = {torch.stack: 1, torch.cat: 0, torch.concat: 0, torch.concatenate: 0}  # dimensions added
_LIBRARY_CALLS = (
    "linear matmul mm bmm addmm baddbmm einsum conv1d conv2d conv3d __matmul__ bilinear"
)
LIBRARY_CALLS = frozenset(_LIBRARY_CALLS.split())
# Functions and methods whose results under vmap are those for each slice; none is random.
_PURE = """
abs absolute acos acosh add addcdiv addcmul all amax amin and_ any arange argmax argmin argsort
asin asinh atan atan2 atanh bool cat ceil celu chunk clamp clamp_max clamp_min clip clone concat
contiguous cos cosh cumprod cumsum detach div divide double elu embedding eq erf erfc exp exp2
expand expm1 flatten flip float floor floor_divide floordiv full full_like gather ge gelu getitem
glu group_norm gt half hardsigmoid hardswish hardtanh index_select int invert isfinite isinf isnan
layer_norm le leaky_relu lerp log log10 log1p log2 log_softmax logaddexp logical_and logical_not
logical_or logical_xor logsigmoid logsumexp long lt masked_fill max maximum mean min minimum mish
mod movedim mul multiply narrow ne neg negative new_full new_ones new_zeros normalize ones
ones_like or_ pad permute pos pow prod reciprocal relu relu6 repeat reshape rms_norm roll round
rsqrt rsub select selu sigmoid sign silu sin sinh softmax softmin softplus softsign sort split
sqrt square squeeze stack std sub subtract sum swapaxes t tan tanh tanhshrink to topk transpose
tril triu true_divide truediv trunc unbind unflatten unsqueeze var view where xor zeros zeros_like
"""
PURE = frozenset(_PURE.split()) | LIBRARY_CALLS
_IN_PLACE = "celu elu hardsigmoid hardswish hardtanh leaky_relu mish relu relu6 selu silu"
IN_PLACE = frozenset(_IN_PLACE.split())  # if called with `inplace`
POOLS = frozenset((F.max_pool1d, F.max_pool2d, F.avg_pool2d, F.adaptive_avg_pool2d))
MODULES = (torch, F, operator, BUILTIN_NN, torch.special)
STATE_CHANGES = ("set_grad", "inference", "autocast", "nesting", "dual_level", "_enter", "_exit")

Bundle = tuple[Node, ...]  # one node of each branch


@dataclass
class IsomorphicBranches:
    """The branches that compute the operands of a concat, in bundles of corresponding nodes.

    The node of the first branch identifies a bundle.
    """

    concat: Node
    operands: Bundle
    calls: dict[Node, Bundle] = field(default_factory=dict)
    slices: dict[Node, ConsecutiveSlices] = field(default_factory=dict)
    shared: set[Node] = field(default_factory=set)  # read by all branches
    branch_of: dict[Node, int] = field(default_factory=dict)
    slice_nodes: list[Node] = field(default_factory=list)  # of all branches

    def match(self) -> bool:
        """Match the branches backwards; return whether they are isomorphic and private."""
        worklist: list[Bundle] = [self.operands]
        visited: set[Node] = set()
        while worklist:
            bundle = worklist.pop()
            if bundle[0] in visited:
                if bundle != self.calls.get(bundle[0], bundle):
                    return False
                continue
            visited.add(bundle[0])
            slices = match_slices(bundle)
            if slices is not None:
                self.slices[bundle[0]] = slices
                self.slice_nodes += bundle
                continue
            inputs = self._match_calls(bundle)
            if inputs is None:
                return False
            worklist += inputs
        return bool(self.slices and self.calls) and self._are_private()

    def _match_calls(self, bundle: Bundle) -> list[Bundle] | None:
        """Return the bundles that equal calls read, without shared nodes; None if calls differ."""
        templates, inputs = zip(*map(_call_template, bundle), strict=True)
        if len(set(templates)) > 1 or not _is_pure(bundle[0]):
            return None
        for k, node in enumerate(bundle):
            if self.branch_of.setdefault(node, k) != k or HINT_KEY in node.meta.get("custom", {}):
                return None
        self.calls[bundle[0]] = bundle
        bundles = []
        for each in zip(*inputs, strict=True):
            if all(n is each[0] for n in each):
                self.shared.add(each[0])
            elif len(set(each)) < len(each):
                return None
            else:
                bundles.append(each)
        return bundles

    def _are_private(self) -> bool:
        """Return whether every call is read only in its own branch."""
        operands = set(self.operands)
        for node, branch in self.branch_of.items():
            readers = set(node.users) - ({self.concat} if node in operands else set())
            if any(self.branch_of.get(reader) != branch for reader in readers):
                return False
        return self.shared.isdisjoint(self.branch_of)

    def library_calls(self) -> list[Node]:
        """Return the library calls of the first branch."""
        return [n for n in self.calls if target_name(n.target) in LIBRARY_CALLS]

    def is_profitable(self) -> bool:
        """Return whether the saved calls outweigh the copies of slices."""
        count, library_calls = len(self.operands), self.library_calls()
        if len(library_calls) == 0:
            return count >= MIN_BRANCHES
        copied = sum(count * node_nbytes(n) for n, s in self.slices.items() if s.dim > 0)
        return copied <= (count - 1) * len(library_calls) * BYTES_PER_CALL

    def max_width(self) -> int:
        """Return how many branches can be vectorized without exceeding eager's memory.

        `TOLERATED_EXCESS` more are allowed. With gradients, eager holds all branches: no limit.
        """
        count, library_calls = len(self.operands), self.library_calls()
        result = self.operands[0].meta["example_value"]
        if not library_calls or result.requires_grad:
            return count
        peak = max(
            node_nbytes(n) + sum(map(node_nbytes, self._branch_inputs(n))) for n in library_calls
        )
        # eager holds the results of all branches, and their concat
        each = peak - 2 * node_nbytes(self.operands[0])
        return min(count, (peak + TOLERATED_EXCESS) // each) if each > 0 else count

    def _branch_inputs(self, node: Node) -> list[Node]:
        return [n for n in node.all_input_nodes if n in self.calls or n in self.slices]

    def traces_under_vmap(self) -> bool:
        """Return whether vmap can trace the branches, by a trial on fake tensors."""
        values = {n: n.meta.get("example_value") for n in (*self.slices, *self.shared)}
        fakes = [v for v in values.values() if isinstance(v, torch.Tensor)]
        if len(fakes) < len(values):
            return False
        result = self.operands[0].meta["example_value"]
        order = list(self.calls_in_order())

        def branch(*slices: torch.Tensor) -> object:
            env: dict[Node, object] = {**values, **dict(zip(self.slices, slices, strict=True))}
            for node in order:
                env[node] = _evaluate(node, env)
            return env[self.operands[0]]

        try:
            with result.fake_mode, torch.no_grad(), without_vmap_fallback():
                batches = [_batch_of(values[n], len(self.operands)) for n in self.slices]
                made = torch.func.vmap(branch)(*batches)
        except Exception:  # any error: the branches stay
            return False
        return isinstance(made, torch.Tensor) and (made.shape[1:], made.dtype) == (
            result.shape,
            result.dtype,
        )

    def calls_in_order(self) -> Iterator[Node]:
        """Return the calls of the first branch, in program order."""
        return (n for n in self.concat.graph.nodes if n in self.calls)

    def rewrite(self) -> None:
        """Replace the concat by one branch under vmap."""
        graph, count = self.concat.graph, len(self.operands)
        result = self.operands[0].meta["example_value"]
        with graph.inserting_before(self.concat), result.fake_mode, torch.no_grad():
            stacked = [s.stack(self.add_call) for s in self.slices.values()]
            graph.call_function(load_vmap_decompositions)
            graph.call_function(enter_vmap, (count, "error"))
            copied = {
                n: _batched_slice(graph, n, s) for n, s in zip(self.slices, stacked, strict=True)
            }
            for node in list(self.calls_in_order()):
                copied[node] = graph.node_copy(node, lambda n: copied.get(n, n))
                set_call_count(copied[node], count)
                if "inplace" in node.kwargs:
                    copied[node].update_kwarg("inplace", False)
            last = copied[self.operands[0]]
            batch = graph.call_function(remove_batch_dim, (last, 1, count, 0))
            batch.meta["example_value"] = _batch_of(result, count)
            graph.call_function(leave_vmap)
            batch = self._move_to_concat_dim(batch)
        batch.meta = dict(self.concat.meta)
        self.concat.replace_all_uses_with(batch)
        self._erase_dead()

    def add_call(self, target: Target, *args: Argument) -> Node:
        """Insert a call on plain tensors, with its example value."""
        kind = "call_method" if isinstance(target, str) else "call_function"
        node = self.concat.graph.create_node(kind, target, args)
        values: dict[Node, object] = {n: example_tensor(n) for n in node.all_input_nodes}
        node.meta["example_value"] = _evaluate(node, values)
        set_call_count(node, 0)
        return node

    def _move_to_concat_dim(self, batch: Node) -> Node:
        """Move the first dimension of the vectorized results to the concat's."""
        dim, added = _concat_dim(self.concat), CONCATS[self.concat.target]  # type: ignore[index]
        dim %= self.concat.meta["example_value"].dim()
        if dim > 0:
            batch = self.add_call("movedim", batch, 0, dim)
        if not added:
            return self.add_call("flatten", batch, dim, dim + 1)
        return self.add_call("contiguous", batch)

    def _erase_dead(self) -> None:
        """Erase the concat, the branches, and splits without users."""
        graph, dead = self.concat.graph, {self.concat, *self.branch_of, *self.slice_nodes}
        splits = {n.args[0] for n in self.slice_nodes if example_tensor(n.args[0]) is None}  # type: ignore[arg-type]
        for node in [n for n in reversed(graph.nodes) if n in dead or n in splits]:
            if not node.users:
                graph.erase_node(node)


def vectorize(gm: GraphModule) -> tuple[GraphModule, tuple[str, ...]]:
    """Return a copy of the program with isomorphic branches under vmap, and a note for each.

    Return the program itself if it has none, or changes a state such as grad mode.
    """
    if not any(_is_concat(n) for n in gm.graph.nodes) or any(map(_changes_state, gm.graph.nodes)):
        return gm, ()
    graph, notes = Graph(), list[str]()
    graph.output(graph.graph_copy(gm.graph, {}))
    worklist = [n for n in graph.nodes if _is_concat(n)]
    while worklist:
        concat = worklist.pop()
        operands = _concat_operands(concat)
        branches = IsomorphicBranches(concat, operands) if operands is not None else None
        if not branches or not branches.match():
            continue
        if not branches.is_profitable() or _inputs_are_written(branches):
            continue
        if (width := branches.max_width()) < 2 or not branches.traces_under_vmap():
            continue
        if width < len(branches.operands):
            worklist += _split_concat(branches, width)
            continue
        calls = "1 call" if len(branches.calls) == 1 else f"{len(branches.calls)} calls"
        notes.append(VECTORIZED.format(count=len(branches.operands), calls=calls))
        branches.rewrite()
    return (GraphModule(gm, graph), tuple(notes)) if notes else (gm, ())


def _split_concat(branches: IsomorphicBranches, width: int) -> list[Node]:
    """Split the concat into a concat of concats, of at most `width` branches each."""
    concat, count = branches.concat, -(-len(branches.operands) // width)
    value = concat.meta["example_value"]
    dim = _concat_dim(concat) % value.dim()
    bounds = [k * len(branches.operands) // count for k in range(count + 1)]
    with concat.graph.inserting_before(concat), value.fake_mode, torch.no_grad():
        groups = [branches.operands[a:b] for a, b in pairwise(bounds)]
        concats = [branches.add_call(concat.target, group, dim) for group in groups]
    concat.target, concat.args, concat.kwargs = torch.cat, (concats, dim), {}
    return concats


def _is_concat(node: Node) -> bool:
    return node.op == "call_function" and node.target in CONCATS


def _changes_state(node: Node) -> bool:
    """Return whether a call changes how later calls run."""
    if node.op != "call_function":
        return False
    return any(part in target_name(node.target) for part in STATE_CHANGES)


def _concat_operands(concat: Node) -> Bundle | None:
    """Return the operands of a concat if they are distinct contiguous tensors of one type."""
    operands = concat.args[0] if concat.args else concat.kwargs.get("tensors")
    if not isinstance(operands, (list, tuple)) or len(operands) < 2 or "out" in concat.kwargs:
        return None
    nodes = [n for n in operands if isinstance(n, Node)]
    values = [t for n in (*nodes, concat) if (t := example_tensor(n)) is not None]
    if len(set(nodes)) < len(operands) or len(values) <= len(nodes):
        return None
    if type(_concat_dim(concat)) is not int:
        return None
    types = {(str(tuple(t.shape)), t.dtype, t.device, t.requires_grad) for t in values[:-1]}
    contiguous = all(t.is_contiguous() for t in values)
    return tuple(nodes) if len(types) == 1 and contiguous else None


def _concat_dim(concat: Node) -> int:
    keyword = concat.kwargs.get("dim", concat.kwargs.get("axis", 0))
    return concat.args[1] if len(concat.args) > 1 else keyword  # type: ignore[return-value]  # checked


def _call_template(node: Node) -> tuple[str, list[Node]]:
    """Return a call as text with placeholders for the nodes it reads, and these nodes."""
    read: list[Node] = []

    def placeholder(n: Node) -> str:
        read.append(n)
        return "%"

    text = repr((map_arg(node.args, placeholder), map_arg(node.kwargs, placeholder)))
    target = node.target if isinstance(node.target, str) else id(node.target)
    return f"{node.op} {target} {text}", read


def _is_pure(node: Node) -> bool:
    """Return whether a call is the same under vmap and writes only what no other call reads."""
    name = target_name(node.target)
    if node.op == "call_method":
        known = name in PURE
    elif node.target is getattr:
        known = node.args[1] in ("T", "mT")
    elif node.op == "call_function":
        in_module = any(getattr(module, name, None) is node.target for module in MODULES)
        known = node.target in POOLS or (name in PURE and in_module)
    else:
        return False
    if not known or "out" in node.kwargs or (name in IN_PLACE and True in node.args):
        return False
    return not written_tensors(node) or _writes_private_tensor(node)


def _writes_private_tensor(node: Node) -> bool:
    """Return whether `inplace=True` writes a tensor without other readers or aliases."""
    (operand,) = node.all_input_nodes[:1]
    written = example_tensor(operand)
    if node.kwargs.get("inplace") is not True or written is None or set(operand.users) != {node}:
        return False
    for other in node.graph.nodes:
        if other is node:
            return True
        value = example_tensor(other)
        if other is not operand and value is not None and storage_id(value) == storage_id(written):
            return False
    raise AssertionError(node)


def _inputs_are_written(branches: IsomorphicBranches) -> bool:
    """Return whether the program writes into inputs of the branches, whose reads would move."""
    inputs = [*(s.source for s in branches.slices.values()), *branches.shared]
    storages = {storage_id(t) for n in inputs if (t := example_tensor(n)) is not None}
    nodes = branches.concat.graph.nodes
    return any(storage_id(t) in storages for n in nodes for t in written_tensors(n))


def _batched_slice(graph: Graph, slice_node: Node, stacked: Node) -> Node:
    """Return the node that stands for each of the stacked slices under vmap."""
    each = graph.call_function(add_batch_dim, (stacked, 0, 1))
    each.meta = dict(slice_node.meta)
    return each


def _evaluate(node: Node, env: dict[Node, object]) -> object:
    args = map_arg(node.args, lambda n: env[n])  # type: ignore[arg-type,return-value]  # values
    kwargs = map_arg(node.kwargs, lambda n: env[n])  # type: ignore[arg-type,return-value]
    kwargs = {k: False if k == "inplace" else v for k, v in kwargs.items()}
    if node.op == "call_method":
        return getattr(args[0], str(node.target))(*args[1:], **kwargs)
    return node.target(*args, **kwargs)  # type: ignore[operator]  # a function


def _batch_of(one: object, count: int) -> torch.Tensor:
    assert isinstance(one, torch.Tensor)
    return torch.empty((count, *one.shape), dtype=one.dtype, device=one.device)
