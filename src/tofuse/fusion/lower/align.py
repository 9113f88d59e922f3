"""Align the dimensions of a region's values: express them by common atomic axes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from tofuse.analysis.alias import MemRef
from tofuse.fusion.concat.guards import operand_start
from tofuse.fusion.lower.axes import Atom, Atoms, LoweringError
from tofuse.ir.dims import Dim, contiguous_strides, equal_strides
from tofuse.ir.graph import Op, Value
from tofuse.ir.rules import Rule
from tofuse.ops.table import OPS, Pattern

Dims = list[list[Atom]]  # per dimension, the axes it consists of, outermost first


@dataclass(frozen=True, eq=False)
class Alignment:
    """The axes of each value computed in a region, and of each use of a value from outside."""

    atoms: Atoms
    value_dims: dict[Value, Dims]
    input_dims: dict[tuple[Op, int], Dims]

    def operand_dims(self, op: Op, k: int) -> Dims:
        value = op.operands[k]
        assert isinstance(value, Value)
        return self.value_dims[value] if value in self.value_dims else self.input_dims[op, k]

    def leaves(self, dims: Iterable[Sequence[Atom]]) -> list[Atom]:
        return [a for d in dims for a in self.atoms.leaves(d)]


def align(ops: Sequence[Op], storage: Mapping[Value, MemRef]) -> Alignment:
    """Return axes for every value of a region; raise LoweringError if it has no common axes."""
    state, scattered = Alignment(Atoms(), {}, {}), list[Value]()
    for op in ops:
        if any(v in scattered for v in op.inputs):
            raise LoweringError(Rule.SCATTER_FROM_KERNEL())
        for k, x in enumerate(op.operands):
            if isinstance(x, Value) and x not in state.value_dims:
                state.input_dims[op, k] = fresh_dims(state.atoms, x.shape)
        state.value_dims[op.result] = _RULES[OPS[op.kind].pattern](state, op)
        if OPS[op.kind].pattern is Pattern.SCATTER:  # one loop starts all of one shape
            same = next((v for v in scattered if v.shape == op.result.shape), op.result)
            state.value_dims[op.result] = state.value_dims[same]
            scattered.append(op.result)
    _share_reads(state, storage)
    if _is_diagonal(state):
        raise LoweringError(Rule.DIAGONAL())
    return state


def aligns(op: Op, storage: Mapping[Value, MemRef], producers: Mapping[Value, Op]) -> bool:
    """Whether an op and the views without strides that it reads have common axes."""
    views = (view for v in op.inputs for view in views_without_strides(v, storage, producers))
    try:
        align([*dict.fromkeys(views), op], storage)
    except LoweringError:
        return False
    return True


def views_without_strides(
    v: Value, storage: Mapping[Value, MemRef], producers: Mapping[Value, Op]
) -> tuple[Op, ...]:
    """Return the views that lead from a value with strides to `v`, in this order."""
    chain: list[Op] = []
    while v not in storage:
        chain.append(producers[v])
        v = chain[-1].inputs[0]
    return tuple(reversed(chain))


def _share_reads(state: Alignment, storage: Mapping[Value, MemRef]) -> None:
    """Unify the axes of all uses of one outside tensor, and of its reshapes: it is read once.

    Uses stay separate if two dimensions of a value would become one axis, as in `x + x.T`.
    """
    first: dict[Value | tuple[Value, Dim, Dim], Dims] = {}
    for (op, k), dims in state.input_dims.items():
        value = op.operands[k]
        assert isinstance(value, Value)
        if not value.shape:
            continue
        row_major = _row_major_extent(value, storage)
        other, same_value = first.setdefault(value, dims), True
        if other is dims and row_major is not None:
            other, same_value = first.setdefault(row_major, dims), False
        if state.leaves(other) == state.leaves(dims):
            continue
        before = state.atoms.snapshot()
        try:
            if same_value:
                for a, b in zip(other, dims, strict=True):
                    state.atoms.unify(a, b)
            else:
                state.atoms.unify([a for d in other for a in d], [a for d in dims for a in d])
        except LoweringError:
            state.atoms.restore(before)
            continue
        if _is_diagonal(state):
            state.atoms.restore(before)


def _row_major_extent(
    value: Value, storage: Mapping[Value, MemRef]
) -> tuple[Value, Dim, Dim] | None:
    """Return tensor, offset and extent of the memory that a value covers in row-major order.

    None if it has gaps or another order.
    """
    memref, dense = storage.get(value), contiguous_strides(value.shape)
    if memref is None or not equal_strides(memref.strides, dense, value.shape):
        return None
    return memref.root, memref.offset, value.type.numel


def _is_diagonal(state: Alignment) -> bool:
    """Whether two dimensions of a value, in the region or at a use, have become one axis."""
    all_dims = (*state.value_dims.values(), *state.input_dims.values())
    return any(len(set(axes)) != len(axes) for axes in map(state.leaves, all_dims))


def fresh_dims(atoms: Atoms, shape: Sequence[Dim]) -> Dims:
    return [atoms.fresh(e) for e in shape]


def _elementwise(state: Alignment, op: Op) -> Dims:
    tensors = [k for k, x in enumerate(op.operands) if isinstance(x, Value)]
    first = state.operand_dims(op, tensors[0])
    for k in tensors[1:]:
        for a, b in zip(first, state.operand_dims(op, k), strict=True):
            state.atoms.unify(a, b)
    return first


def _broadcast(state: Alignment, op: Op) -> Dims:
    out: Dims = [[] for _ in op.result.shape]
    kept = op.ints("dims")
    for d, source in zip(kept, state.operand_dims(op, 0), strict=True):
        out[d] = source
    for d, extent in enumerate(op.result.shape):
        if d not in kept:
            out[d] = state.atoms.fresh(extent)
    return out


def _view(state: Alignment, op: Op) -> Dims:
    source = state.operand_dims(op, 0)
    if op.kind == "permute":
        return [source[d] for d in op.ints("dims")]
    if op.kind == "reshape":
        out = fresh_dims(state.atoms, op.result.shape)
        state.atoms.unify([a for d in source for a in d], [a for d in out for a in d])
        return out
    return [
        source[k] if whole else _sliced_dim(state, op, k, source[k])
        for k, whole in enumerate(_whole_dims(op))
    ]


def _sliced_dim(state: Alignment, op: Op, k: int, source: list[Atom]) -> list[Atom]:
    """Return the axes of a dimension that a slice takes a part of."""
    part = state.atoms.fresh(op.result.shape[k])
    if op.ints("step")[k] == 1:
        state.atoms.shift(part, source, op.dims("start")[k])
    else:
        state.atoms.pin(source)
        state.atoms.pin(part)
    return part


def _whole_dims(op: Op) -> list[bool]:
    """Return for each dimension whether a slice takes all of it."""
    return [
        start == 0 and step == 1 and a == b
        for start, step, a, b in zip(
            op.dims("start"), op.ints("step"), op.inputs[0].shape, op.result.shape, strict=True
        )
    ]


def _concat(state: Alignment, op: Op) -> Dims:
    out = fresh_dims(state.atoms, op.result.shape)
    for k, x in enumerate(op.operands):
        if not isinstance(x, Value):
            continue
        for d, axes in enumerate(state.operand_dims(op, k)):
            if x.shape[d] == op.result.shape[d]:
                state.atoms.unify(axes, out[d])
            else:
                state.atoms.shift(axes, out[d], operand_start(op, k, d))
    return out


def _gather(state: Alignment, op: Op) -> Dims:
    if (op, 0) not in state.input_dims:
        raise LoweringError(Rule.GATHER_FROM_KERNEL())
    return state.operand_dims(op, 1)


def _reduce(state: Alignment, op: Op) -> Dims:
    reduced = op.ints("dims")
    return [axes for k, axes in enumerate(state.operand_dims(op, 0)) if k not in reduced]


def _scan(state: Alignment, op: Op) -> Dims:
    return state.operand_dims(op, 0)


def _scatter(state: Alignment, op: Op) -> Dims:
    for a, b in zip(state.operand_dims(op, 0), state.operand_dims(op, 1), strict=True):
        state.atoms.unify(a, b)
    return fresh_dims(state.atoms, op.result.shape)


def _recurrence(state: Alignment, op: Op) -> Dims:
    states = op.int("states")
    inputs = [state.operand_dims(op, k) for k in range(states, len(op.operands))]
    out = inputs[0] if inputs else fresh_dims(state.atoms, op.result.shape)
    starts = [state.operand_dims(op, k) for k in range(states)]
    for dims, whole in (*((x, out) for x in inputs), *((x, out[1:]) for x in starts)):
        for a, b in zip(dims, whole, strict=True):
            state.atoms.unify(a, b)
    return out


def _contract(state: Alignment, op: Op) -> Dims:
    (*batch, m, k), (*other_batch, depth, n) = (state.operand_dims(op, side) for side in (0, 1))
    for a, b in zip([*batch, k], [*other_batch, depth], strict=True):
        state.atoms.unify(a, b)
    return [*batch, m, n]


def _random(state: Alignment, op: Op) -> Dims:
    if (op, 0) not in state.input_dims:
        raise LoweringError(Rule.SEED_FROM_KERNEL())
    return fresh_dims(state.atoms, op.result.shape)


def _source(state: Alignment, op: Op) -> Dims:
    return fresh_dims(state.atoms, op.result.shape)


def _opaque(state: Alignment, op: Op) -> Dims:
    raise LoweringError(Rule.ONLY_PYTORCH())


_RULES: dict[Pattern, Callable[[Alignment, Op], Dims]] = {
    Pattern.ELEMENTWISE: _elementwise,
    Pattern.BROADCAST: _broadcast,
    Pattern.VIEW: _view,
    Pattern.CONCAT: _concat,
    Pattern.GATHER: _gather,
    Pattern.REDUCE: _reduce,
    Pattern.SCAN: _scan,
    Pattern.SCATTER: _scatter,
    Pattern.RECURRENCE: _recurrence,
    Pattern.CONTRACT: _contract,
    Pattern.RANDOM: _random,
    Pattern.SOURCE: _source,
    Pattern.OPAQUE: _opaque,
}
