"""Region -> Kernel: index every value by atomic axes, so that views become index arithmetic."""

from __future__ import annotations

from collections.abc import Hashable, Mapping

from tofuse.analysis.alias import MemRef
from tofuse.fusion.concat.guards import is_in_range, operand_start
from tofuse.fusion.lower.align import align
from tofuse.fusion.lower.axes import Atom, LoweringError
from tofuse.fusion.lower.flatten import flatten
from tofuse.fusion.lower.lower_scatter import scatter, store_start
from tofuse.fusion.lower.lowering_state import LoweredRegion, Lowering, OpRule, Substitution
from tofuse.fusion.lower.register_types import (
    emit_convert,
    emit_round,
    operand_dtype,
)
from tofuse.ir.affine import AffineExpr
from tofuse.ir.call_arguments import exact_key
from tofuse.ir.dims import Dim, SymDim, product
from tofuse.ir.elements import round_scalar
from tofuse.ir.graph import Op, Scalar, Value
from tofuse.ir.kernel import Gather, InRange, Iota, Next, Previous, Reduce, Scan, Uniform
from tofuse.ir.recurrence import Recurrence, recurrence_of
from tofuse.ir.region import Region
from tofuse.ir.rules import Rule
from tofuse.ir.statement import Arg
from tofuse.ir.types import DType
from tofuse.ops.table import ELEMENTARY, Pattern, scan_dtype


def lower_region(
    region: Region,
    storage: Mapping[Value, MemRef],
    *,
    rounded: frozenset[str] = frozenset(),
) -> LoweredRegion:
    """Return the kernel of a region; raise LoweringError if it has none.

    Values named in `rounded` are rounded to half precision, as if they were stored and loaded.
    """
    try:
        alignment = align(region.ops, storage)
    except LoweringError:
        flat = flatten(region, storage)
        if flat is None:
            raise
        region, storage = flat
        alignment = align(region.ops, storage)
    return Lowering(region, storage, alignment, rounded, _EMIT, store_start, scatter).run()


def _elementwise(self: Lowering, op: Op, sub: Substitution, guard: str | None) -> Arg:
    if (position := _tested_position(self, op, sub)) is not None:
        return self.add(position)
    args = tuple(self.operand(op, k, sub, guard) for k in range(len(op.operands)))
    return _emit_op(self, op.kind, args, operand_dtype(op), op.result.dtype)


def _tested_position(self: Lowering, op: Op, sub: Substitution) -> InRange | None:
    """For `iota == constant`, return a test at which loops can be split; None for another op."""
    if op.kind != "eq" or not isinstance(op.operands[0], Value):
        return None
    numbers, tested = self.producers.get(op.operands[0]), op.operands[1]
    if numbers is None or numbers.kind != "iota" or not isinstance(tested, Scalar):
        return None
    start, step, value = numbers.attr("start"), numbers.attr("step"), tested.value
    if (start, step) != (0, 1) or type(value) is not int or value < 0:
        return None
    index = self.flat_index(self.alignment.value_dims[numbers.result], sub)
    return InRange(self.fresh(), index, value, value + 1)


def _emit_op(
    self: Lowering, kind: str, args: tuple[Arg, ...], source_dtype: DType, dtype: DType
) -> Arg:
    """Emit an elementwise op of data of one dtype, or return what a recurrence has emitted."""
    known = self.step_values.get(_op_key(kind, args, source_dtype, dtype))
    if known is not None:
        return known
    if kind == "convert":
        return emit_convert(self.compute, args[0], source_dtype, dtype)
    half = dtype if kind in ELEMENTARY and dtype.is_reduced_float else None
    return self.compute(kind, args, dtype.opmath, source_dtype.opmath, half)


def _op_key(kind: str, args: tuple[Arg, ...], source: DType, dtype: DType) -> tuple[Hashable, ...]:
    return kind, tuple(x.key if isinstance(x, Scalar) else x for x in args), source, dtype


def _view(self: Lowering, op: Op, sub: Substitution, guard: str | None) -> Arg:
    if op.kind != "slice":
        return self.operand(op, 0, sub, guard)
    moved = dict(sub)
    source, out = self.alignment.operand_dims(op, 0), self.alignment.value_dims[op.result]
    for k, (start, step) in enumerate(zip(op.dims("start"), op.ints("step"), strict=True)):
        if source[k] == out[k] or not source[k]:
            continue
        if step == 1:
            (atom,), part, start = self.alignment.atoms.shifted(source[k], out[k], start)
        else:
            (atom,), part = self.alignment.atoms.leaves(source[k]), out[k]
        moved[atom] = self.dim_index(part, sub) * step + AffineExpr((), start)
    return self.operand(op, 0, tuple(sorted(moved.items(), key=lambda s: s[0])), guard)


def _concat(self: Lowering, op: Op, sub: Substitution, guard: str | None) -> Arg:
    result: Arg | None = None
    if op.kind == "pad":
        result = round_scalar(op.operands[1], op.result.dtype)
    for k, x in reversed(list(enumerate(op.operands))):
        if not isinstance(x, Value):
            continue
        found = _operand_index(self, op, k, sub, guard)
        if found is None:
            continue
        operand_sub, mask = found
        element = self.operand(op, k, operand_sub, mask)
        if mask == guard or result is None:
            result = element
        else:
            dtype = op.result.dtype.opmath
            assert mask is not None
            result = self.compute("where", (mask, element, result), dtype, dtype)
    return Scalar(0) if result is None else result


def _operand_index(
    self: Lowering, op: Op, k: int, sub: Substitution, guard: str | None
) -> tuple[Substitution, str | None] | None:
    """Return where in its k-th operand a concat's element is, and the guard; None if nowhere."""
    x, dims = op.operands[k], self.alignment.operand_dims(op, k)
    out = self.alignment.value_dims[op.result]
    assert isinstance(x, Value)
    moved, mask = dict(sub), guard
    for d, extent in enumerate(x.shape):
        if extent == op.result.shape[d]:
            continue
        start = operand_start(op, k, d)
        atoms, whole, start = self.alignment.atoms.shifted(dims[d], out[d], start)
        count = product(self.alignment.atoms.extent(a) for a in atoms)
        index, outer = self.dim_index(whole, sub), mask
        inside = is_in_range(index, start, start + count, self.extents)
        if inside is False:
            return None
        if not inside:
            mask = self.add(InRange(self.fresh(), index, start, start + count, outer))
            self.guards.add(mask, op, index, outer, single_element=not atoms)
        for atom in atoms:
            if atom in self.axes and x in self.alignment.value_dims:
                raise LoweringError(Rule.OPERAND_LOOPS(op.kind))
            moved[atom] = index + AffineExpr((), -1 * start)
    return tuple(sorted(moved.items(), key=lambda s: s[0])), mask


def _gather(self: Lowering, op: Op, sub: Substitution, guard: str | None) -> Arg:
    x, index = op.inputs
    dynamic_index = self.operand(op, 1, sub, guard)
    memref, out = self.storage[x], self.alignment.value_dims[op.result]
    total = AffineExpr((), memref.offset)
    stride: Dim = 0
    extent: Dim = 0
    for d, result_dim in enumerate(op.ints("dims")):
        if result_dim < 0:
            stride, extent = memref.strides[d], x.shape[d]
        else:
            total += self.dim_index(out[result_dim], sub) * memref.strides[d]
    dynamic_index = emit_convert(self.compute, dynamic_index, index.dtype, DType.I64)
    dynamic_index = self.in_register(dynamic_index, DType.I64)
    wrap = bool(op.attr("wrap"))
    buffer, dtype = self.buffer(memref.root, "in"), x.dtype.opmath
    name = self.fresh()
    gather = Gather(name, buffer, total, dynamic_index, stride, extent, wrap, dtype, guard)
    return self.add(gather)


def _reduce(self: Lowering, op: Op, sub: Substitution, guard: str | None) -> Arg:
    source, reduced = self.alignment.operand_dims(op, 0), op.ints("dims")
    if set(self.alignment.leaves(source)) & {a for a, _ in sub}:
        raise LoweringError(Rule.SLICE_OF_REDUCTION())
    (x,) = op.inputs
    arg, dtype = self.operand(op, 0, (), None), op.result.dtype.opmath
    if op.kind in ("any", "all"):
        arg = emit_convert(self.compute, arg, x.dtype, DType.BOOL)
    elif op.kind in ("sum", "prod"):
        arg = emit_convert(self.compute, arg, x.dtype, dtype)
    atoms = [a for d in reduced for a in self.alignment.atoms.leaves(source[d])]
    position = self.dim_index(atoms, ()) if op.kind.startswith("arg") else None
    if not atoms and position is not None:
        return Scalar(0)
    if not atoms:  # a sum of -0.0 is 0.0
        adds_zero = op.kind == "sum" and dtype.is_float
        return self.compute("add", (arg, Scalar(0.0)), dtype, dtype) if adds_zero else arg
    arg = self.in_register(arg, x.dtype.opmath)
    over = tuple(self.axes[a].name for a in atoms)
    return self.add(Reduce(self.fresh(), op.kind, arg, over, dtype, position))


def _scan(self: Lowering, op: Op, sub: Substitution, guard: str | None) -> Arg:
    dims = self.alignment.operand_dims(op, 0)
    axis = _axis_of_steps(self, dims[op.int("dim")], sub, guard)
    dtype, wide = op.result.dtype.opmath, scan_dtype(op.kind, op.result.dtype)
    arg = self.operand(op, 0, sub, None)
    if axis is None:
        return arg
    arg = self.in_register(emit_convert(self.compute, arg, dtype, wide), wide)
    scanned = Scan(self.fresh(), op.kind, arg, axis, bool(op.attr("reverse")), wide)
    return emit_convert(self.compute, self.add(scanned), wide, dtype)


def _axis_of_steps(
    self: Lowering, dim: list[Atom], sub: Substitution, guard: str | None
) -> str | None:
    """Return the axis of a dimension whose steps run in order; None if there is one step."""
    along = self.alignment.leaves([dim])
    names = {self.axes[a].name for a in along if a in self.axes}
    is_moved = any(a in along or not names.isdisjoint(index.axes) for a, index in sub)
    if is_moved or (sub and guard is not None):  # every step runs, also where the guard fails
        raise LoweringError(Rule.SLICE_OF_SCAN())
    if len(along) > 1:
        raise LoweringError(Rule.SPLIT_SCAN())
    return self.axes[along[0]].name if along else None


def _recurrence(self: Lowering, op: Op, sub: Substitution, guard: str | None) -> Arg:
    """Emit all states of a recurrence once, and return one of them before each step."""
    step = recurrence_of(op)
    body, steps = exact_key(op.attr("body")), op.int("steps")
    key = (op.operands, body, step.next, steps, sub)
    axis = _axis_of_steps(self, self.alignment.value_dims[op.result][0], sub, guard)
    if key not in self.recurrences:
        self.recurrences[key] = _emit_states(self, op, step, axis, sub)
    return self.recurrences[key][op.int("state")]


def _emit_states(
    self: Lowering, op: Op, step: Recurrence, axis: str | None, sub: Substitution
) -> tuple[Arg, ...]:
    """Emit the steps of a recurrence over an axis; None: there is one step."""
    operands = [self.operand(op, k, sub, None) for k in range(len(op.operands))]
    starts, inputs = operands[: step.states], operands[step.states :]
    if axis is None:
        return tuple(starts)
    reads = tuple(dict.fromkeys(x for x in operands if isinstance(x, str)))
    dtypes = [x.dtype for x in op.inputs]
    states: list[str] = []
    for start, dtype in zip(starts, dtypes, strict=False):
        others = tuple(name for name in reads if name != start)
        states.append(self.add(Previous(self.fresh(), start, others, axis, dtype.opmath)))
    values: list[Arg] = [*states, *inputs]
    for s in step.body:
        args = tuple(values[x] if isinstance(x, int) else x for x in s.operands)
        data = s.operands[1:] if s.kind == "where" else s.operands
        source = next((dtypes[x] for x in data if isinstance(x, int)), s.dtype)
        value = _emit_op(self, s.kind, args, source, s.dtype)
        if op.result.name in self.rounded and s.dtype.is_reduced_float and isinstance(value, str):
            value = emit_round(self.compute, value, s.dtype)
        values.append(value)
        self.step_values[_op_key(s.kind, args, source, s.dtype)] = values[-1]
        dtypes.append(s.dtype)
    for state, k in zip(states, step.next, strict=True):
        dtype = dtypes[k].opmath
        self.add(Next(self.fresh(), state, self.in_register(values[k], dtype), dtype))
    return tuple(states)


def _contract(self: Lowering, op: Op, sub: Substitution, guard: str | None) -> Arg:
    """Emit the sum of products. Half-precision operands are rounded, as memory would hold them."""
    source, dtype = op.inputs[0].dtype, op.result.dtype.opmath
    depth = self.alignment.leaves(self.alignment.operand_dims(op, 0)[-1:])
    over = tuple(self.axes[a].name for a in depth)
    is_part_of_depth = any(a in depth or set(over) & set(index.axes) for a, index in sub)
    if is_part_of_depth or (sub and guard is not None):
        raise LoweringError(Rule.SLICE_OF_REDUCTION())
    factors: list[Arg] = []
    for k in (0, 1):
        factor = self.operand(op, k, sub, None)
        if source.is_reduced_float:
            factor = emit_round(self.compute, factor, source)
        factors.append(emit_convert(self.compute, factor, source.opmath, dtype))
    product = self.compute("mul", tuple(factors), dtype, dtype)
    if not depth:  # a sum of -0.0 is 0.0
        return self.compute("add", (product, Scalar(0.0)), dtype, dtype)
    return self.add(Reduce(self.fresh(), "sum", product, over, dtype))


def _random(self: Lowering, op: Op, sub: Substitution, guard: str | None) -> Arg:
    out = self.alignment.value_dims[op.result]
    seed = self.buffer(self.storage[op.inputs[0]].root, "in")
    row, col = self.flat_index(out[:-1], sub), self.flat_index(out[-1:], sub)
    extent = op.result.shape[-1] if op.result.shape else 1
    below = op.int("below") if op.kind == "bernoulli" else None
    return self.add(Uniform(self.fresh(), seed, row, col, extent, op.int("stream"), below))


def _source(self: Lowering, op: Op, sub: Substitution, guard: str | None) -> Arg:
    if op.kind == "full":
        value = op.attr("value")
        assert isinstance(value, (bool, int, float, SymDim))
        return round_scalar(Scalar(value), op.result.dtype)
    start, step = op.attr("start"), op.attr("step")
    assert isinstance(start, (int, SymDim)) and isinstance(step, (int, SymDim))
    flat = self.flat_index(self.alignment.value_dims[op.result], sub)
    index = flat * step + AffineExpr((), start)
    return self.add(Iota(self.fresh(), index, op.result.dtype.opmath))


# None for OPAQUE: such an op does not align. SCATTER has no value that another op could read.
_EMIT: dict[Pattern, OpRule] = {
    Pattern.ELEMENTWISE: _elementwise,
    Pattern.BROADCAST: _view,
    Pattern.VIEW: _view,
    Pattern.CONCAT: _concat,
    Pattern.GATHER: _gather,
    Pattern.REDUCE: _reduce,
    Pattern.SCAN: _scan,
    Pattern.RECURRENCE: _recurrence,
    Pattern.CONTRACT: _contract,
    Pattern.RANDOM: _random,
    Pattern.SOURCE: _source,
}
