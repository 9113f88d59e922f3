"""Vectorization of isomorphic branches: `f` on many slices of a tensor becomes one `f` under vmap.

`torch.stack([f(x[:, k]) for k in range(16)])` makes 16 times the calls of `f`, and PyTorch traces
each of them, forward and backward. Kernels can fuse such branches, but matrix products and
convolutions remain 16 library calls. This pass runs before autograd, so the backward is vectorized
as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TypeVar

import torch
from torch.fx import GraphModule, Node
from torch.fx.node import Argument, Target, map_arg

from tofuse.analysis.isomorphism import Branches, BranchMatcher, Bundle, Equal, Shared, Sliced
from tofuse.capture.fx.aliases import storage_ids, written_storages
from tofuse.capture.fx.node_tensors import example_tensor, node_nbytes, target_name
from tofuse.capture.pre_autograd.branch_nodes import (
    LIBRARY_CALLS,
    describe,
    result_dim,
    stack_slices,
)
from tofuse.cost.thresholds import BYTES_PER_CALL, MIN_BRANCHES, TOLERATED_EXCESS
from tofuse.hints import set_call_count
from tofuse.torch_internals.fake_tensors import FakeTensor
from tofuse.torch_internals.symbolic_shapes import tracing_operators, trying_operators
from tofuse.torch_internals.transforms import (
    CAN_VMAP,
    add_batch_dim,
    enter_vmap,
    leave_vmap,
    load_vmap_decompositions,
    remove_batch_dim,
    without_vmap_fallback,
)

VECTORIZED = "{count} isomorphic branches of {calls} each, on slices of a tensor, are vectorized"
CONCATS = {torch.stack: 1, torch.cat: 0, torch.concat: 0, torch.concatenate: 0}  # dimensions added
STATE_CHANGES = ("set_grad", "inference", "autocast", "nesting", "dual_level", "_enter", "_exit")

T = TypeVar("T")


@dataclass(frozen=True)
class ConcatOfBranches:
    """Isomorphic branches that compute the operands of a concat."""

    concat: Node
    branches: Branches[Node]

    @property
    def count(self) -> int:
        return len(self.branches.root)

    @property
    def result(self) -> FakeTensor:
        """The value that the first branch returns."""
        value = self.branches.root[0].meta["example_value"]
        assert isinstance(value, FakeTensor)
        return value

    @cached_property
    def calls(self) -> dict[Bundle[Node], Equal[Node]]:
        """The calls, in program order."""
        calls = self.branches.bundles(Equal)
        order = {n: k for k, n in enumerate(self.concat.graph.nodes)}
        return dict(sorted(calls.items(), key=lambda item: order[item[0][0]]))

    @cached_property
    def slices(self) -> dict[Bundle[Node], Sliced[Node]]:
        return self.branches.bundles(Sliced)

    @cached_property
    def shared(self) -> list[Node]:
        return [s.node for s in self.branches.bundles(Shared).values()]

    def are_private(self) -> bool:
        """Return whether every call is read only in its own branch."""
        branch_of = {n: k for bundle in self.calls for k, n in enumerate(bundle)}
        roots = set(self.branches.root)
        return all(
            branch_of.get(reader) == k or (reader is self.concat and node in roots)
            for node, k in branch_of.items()
            for reader in node.users
        )

    def library_calls(self) -> list[Bundle[Node]]:
        return [b for b in self.calls if target_name(b[0].target) in LIBRARY_CALLS]

    def is_profitable(self) -> bool:
        """Return whether the saved calls outweigh the copies of slices."""
        library_calls = len(self.library_calls())
        if library_calls == 0:
            return self.count >= MIN_BRANCHES
        strided = [b[0] for b, s in self.slices.items() if result_dim(s) > 0]
        copied = self.count * sum(map(node_nbytes, strided))
        return copied <= (self.count - 1) * library_calls * BYTES_PER_CALL

    def max_width(self) -> int:
        """Return how many branches can be vectorized without exceeding eager's memory.

        `TOLERATED_EXCESS` more are allowed. With gradients, eager holds all branches: no limit.
        """
        library_calls = self.library_calls()
        if not library_calls or self.result.requires_grad:
            return self.count
        peak = max(
            sum(node_nbytes(b[0]) for b in (bundle, *self._branch_inputs(bundle)))
            for bundle in library_calls
        )
        # eager holds the results of all branches, and their concat
        each = peak - 2 * node_nbytes(self.branches.root[0])
        return min(self.count, (peak + TOLERATED_EXCESS) // each) if each > 0 else self.count

    def _branch_inputs(self, bundle: Bundle[Node]) -> set[Bundle[Node]]:
        return {x for x in self.calls[bundle].operands if x in self.calls or x in self.slices}

    def inputs_are_written(self) -> bool:
        """Return whether the program writes into inputs of the branches, whose reads would move."""
        inputs = [*(s.first.source for s in self.slices.values()), *self.shared]
        return not storage_ids(inputs).isdisjoint(written_storages(self.concat.graph))

    def evaluate(
        self, slices: Sequence[T], shared: Sequence[T], call: Callable[[Node, Iterator[T]], T]
    ) -> T:
        """Return the result of one branch; `call` makes a call of the first branch."""
        env = dict(zip(self.slices, slices, strict=True))
        env.update(zip(self.branches.bundles(Shared), shared, strict=True))
        for bundle, equal in self.calls.items():
            env[bundle] = call(bundle[0], (env[x] for x in equal.operands))
        return env[self.branches.root]

    def traces_under_vmap(self) -> bool:
        """Return whether vmap can trace the branches, by a trial on fake tensors."""
        slices = [bundle[0].meta.get("example_value") for bundle in self.slices]
        shared = [n.meta.get("example_value") for n in self.shared]
        if not all(isinstance(v, torch.Tensor) for v in (*slices, *shared)):
            return False

        def branch(*slices: object) -> object:
            return self.evaluate(slices, shared, _evaluate)

        result = self.result
        try:
            with trying_operators(result.fake_mode), without_vmap_fallback():
                made = torch.func.vmap(branch)(*(_batch_of(v, self.count) for v in slices))
        except Exception:  # any error: the branches stay
            return False
        return isinstance(made, torch.Tensor) and (made.shape[1:], made.dtype) == (
            result.shape,
            result.dtype,
        )

    def rewrite(self) -> None:
        """Replace the concat by one branch under vmap."""
        graph, count, result = self.concat.graph, self.count, self.result

        def copy(node: Node, operands: Iterator[Node]) -> Node:
            copied = graph.node_copy(node, lambda _: next(operands))
            set_call_count(copied, count)
            if "inplace" in node.kwargs:
                copied.update_kwarg("inplace", False)
            return copied

        with graph.inserting_before(self.concat), tracing_operators(result.fake_mode):
            stacked = [stack_slices(s, count, self.add_call) for s in self.slices.values()]
            graph.call_function(load_vmap_decompositions)
            graph.call_function(enter_vmap, (count, "error"))
            slices = [graph.call_function(add_batch_dim, (s, 0, 1)) for s in stacked]
            for node, bundle in zip(slices, self.slices, strict=True):
                node.meta = dict(bundle[0].meta)
            last = self.evaluate(slices, self.shared, copy)
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
        node.meta["example_value"] = _evaluate(node, map(example_tensor, node.all_input_nodes))
        set_call_count(node, 0)
        return node

    def _move_to_concat_dim(self, batch: Node) -> Node:
        """Move the first dimension of the vectorized results to the concat's."""
        dim, added = _concat_dim(self.concat), CONCATS[self.concat.target]  # type: ignore[index]
        dim %= self.concat.meta["example_value"].dim()
        if dim > 0:
            batch = self.add_call("movedim", batch, 0, dim)
        if not added:
            batch = self.add_call("flatten", batch, dim, dim + 1)
        return self.add_call(_row_major, batch)

    def _erase_dead(self) -> None:
        """Erase the concat, the branches, and splits without users."""
        slices = {n for bundle in self.slices for n in bundle}
        splits = {n for s in slices for n in s.all_input_nodes if example_tensor(n) is None}
        calls = {n for bundle in self.calls for n in bundle}
        graph, dead = self.concat.graph, {self.concat} | calls | slices | splits
        for node in reversed(graph.nodes):
            if node in dead and not node.users:
                graph.erase_node(node)


def vectorize(gm: GraphModule) -> tuple[GraphModule, tuple[str, ...]]:
    """Return a copy of the program with isomorphic branches under vmap, and a note for each.

    Return the program itself if it has none, or changes a state such as grad mode.
    """
    if not CAN_VMAP or not any(_is_concat(n) for n in gm.graph.nodes):
        return gm, ()
    if any(map(_changes_state, gm.graph.nodes)):
        return gm, ()
    graph, notes = deepcopy(gm.graph), list[str]()
    worklist = [n for n in graph.nodes if _is_concat(n)]
    while worklist:
        concat = worklist.pop()
        branches = _match(concat)
        if branches is None or not branches.is_profitable() or branches.inputs_are_written():
            continue
        if (width := branches.max_width()) < 2 or not branches.traces_under_vmap():
            continue
        if width < branches.count:
            worklist += _split_concat(branches, width)
            continue
        calls = "1 call" if len(branches.calls) == 1 else f"{len(branches.calls)} calls"
        notes.append(VECTORIZED.format(count=branches.count, calls=calls))
        branches.rewrite()
    return (GraphModule(gm, graph), tuple(notes)) if notes else (gm, ())


def _match(concat: Node) -> ConcatOfBranches | None:
    """Return the branches of a concat if they are isomorphic, read slices, and are private."""
    operands = _concat_operands(concat)
    branches = None if operands is None else BranchMatcher(describe).match(operands)
    if branches is None:
        return None
    found = ConcatOfBranches(concat, branches)
    return found if found.slices and found.calls and found.are_private() else None


def _split_concat(branches: ConcatOfBranches, width: int) -> list[Node]:
    """Split the concat into a concat of concats, of at most `width` branches each."""
    concat, operands = branches.concat, branches.branches.root
    count = -(-len(operands) // width)
    value = concat.meta["example_value"]
    dim = _concat_dim(concat) % value.dim()
    bounds = [k * len(operands) // count for k in range(count + 1)]
    with concat.graph.inserting_before(concat), tracing_operators(value.fake_mode):
        groups = [operands[a:b] for a, b in pairwise(bounds)]
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


def _concat_operands(concat: Node) -> Bundle[Node] | None:
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


def _row_major(x: torch.Tensor) -> torch.Tensor:
    """Return a copy in row-major order; `contiguous` keeps any stride of an extent of 1."""
    return x.clone(memory_format=torch.contiguous_format)


def _evaluate(node: Node, operands: Iterator[object]) -> object:
    """Return the result of a call on values instead of the nodes that it reads."""
    arguments = node.args, node.kwargs
    args, kwargs = map_arg(arguments, lambda _: next(operands))  # type: ignore[arg-type,return-value]
    kwargs = {k: False if k == "inplace" else v for k, v in kwargs.items()}
    if node.op == "call_method":
        return getattr(args[0], str(node.target))(*args[1:], **kwargs)
    return node.target(*args, **kwargs)  # type: ignore[operator]  # a function


def _batch_of(one: object, count: int) -> torch.Tensor:
    assert isinstance(one, torch.Tensor)
    return torch.empty((count, *one.shape), dtype=one.dtype, device=one.device)
