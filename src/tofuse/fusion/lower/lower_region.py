"""Region -> Kernel: index every value by atomic axes, so that views become index arithmetic."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tofuse.analysis.alias import MemRef
from tofuse.cost.thresholds import MAX_STATEMENTS, MAX_SUBSTITUTIONS
from tofuse.fusion.concat.guards import ConcatGuards, is_in_range, operand_start
from tofuse.fusion.lower.align import Alignment, align
from tofuse.fusion.lower.axes import Atom, LoweringError, row_major_strides
from tofuse.fusion.lower.flatten import flatten
from tofuse.fusion.lower.register_types import (
    emit_convert,
    emit_round,
    operand_dtype,
)
from tofuse.ir.dims import Dim, SymDim, symbols_of
from tofuse.ir.elements import round_scalar
from tofuse.ir.graph import Op, Scalar, Value
from tofuse.ir.kernel import (
    AffineExpr,
    Arg,
    Axis,
    Buffer,
    Compute,
    Definition,
    Gather,
    InRange,
    Iota,
    Kernel,
    Load,
    Reduce,
    Stmt,
    Store,
    Uniform,
    buffers_of,
    iteration_axes,
    live_statements,
    make_affine,
)
from tofuse.ir.region import Region, Rule
from tofuse.ir.types import DType
from tofuse.ops.table import ELEMENTARY, OPS, Pattern

Substitution = tuple[tuple[Atom, AffineExpr], ...]  # atoms with an index other than their loop


@dataclass(frozen=True, eq=False)
class LoweredRegion:
    """A kernel, and for each of its buffers the value that owns the memory."""

    kernel: Kernel
    arguments: tuple[Value, ...]


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
    return _Lowering(region, storage, alignment, rounded).run()


@dataclass(eq=False)
class _Lowering:
    region: Region
    storage: Mapping[Value, MemRef]
    alignment: Alignment
    rounded: frozenset[str]
    body: list[Stmt] = field(default_factory=list)
    types: dict[str, DType] = field(default_factory=dict)
    memo: dict[tuple[object, ...], Arg] = field(default_factory=dict)
    buffers: dict[tuple[Value, str], Buffer] = field(default_factory=dict)
    axes: dict[Atom, Axis] = field(default_factory=dict)
    producers: dict[Value, Op] = field(default_factory=dict)

    def run(self) -> LoweredRegion:
        self.producers = {op.result: op for op in self.region.ops}
        self._name_axes()
        for op in self.region.ops:
            atoms = self.alignment.leaves(self.alignment.value_dims[op.result])
            if all(a in self.axes for a in atoms):
                self.value(op.result, (), None)
        for v in self.region.outputs:
            memref = self.storage[v]
            index = self.address(memref, self.alignment.value_dims[v], ())
            out = self.buffer(memref.root, "out")
            self.body.append(Store(out, index, self.value(v, (), None), v.dtype))
        body = live_statements(self.body)
        used_names = {b for s in body for b in buffers_of(s)}
        used_buffers = {k: b for k, b in self.buffers.items() if b.name in used_names}
        axes, buffers = tuple(self.axes.values()), tuple(used_buffers.values())
        kernel = Kernel(self.region.name, axes, buffers, (), tuple(body))
        return LoweredRegion(_add_symbols(kernel), tuple(v for v, _ in used_buffers))

    @functools.cached_property
    def extents(self) -> dict[str, Dim]:
        return {axis.name: axis.extent for axis in self.axes.values()}

    @functools.cached_property
    def guards(self) -> ConcatGuards:
        return ConcatGuards(self.producers)

    def _name_axes(self) -> None:
        """Make a loop for each axis of the outputs and of the operands of reductions."""
        iterated = [self.alignment.value_dims[v] for v in self.region.outputs]
        for op in self.region.ops:
            if OPS[op.kind].pattern is Pattern.REDUCE:
                iterated.append(self.alignment.operand_dims(op, 0))
        for dims in iterated:
            for atom in self.alignment.leaves(dims):
                if atom not in self.axes:
                    name = f"i{len(self.axes)}"
                    self.axes[atom] = Axis(name, self.alignment.atoms.extent(atom))

    # -- indices ---------------------------------------------------------------------------------

    def dim_index(self, axes: list[Atom], sub: Substitution) -> AffineExpr:
        """Return the index along a dimension made of `axes`."""
        total, moved = AffineExpr(), dict(sub)
        atoms = self.alignment.atoms
        for atom, stride in row_major_strides(atoms, atoms.leaves(axes)):
            if atom in moved:
                total += moved[atom] * stride
            elif atom in self.axes:
                total += make_affine([(self.axes[atom].name, stride)])
            else:
                raise LoweringError(Rule.NO_LOOP())
        return total

    def address(self, memref: MemRef, dims: list[list[Atom]], sub: Substitution) -> AffineExpr:
        total = AffineExpr((), memref.offset)
        for axes, stride in zip(dims, memref.strides, strict=True):
            total += self.dim_index(axes, sub) * stride
        return total

    def flat_index(self, dims: list[list[Atom]], sub: Substitution) -> AffineExpr:
        return self.dim_index([a for d in dims for a in d], sub)

    def buffer(self, root: Value, role: str) -> str:
        key = (root, role)
        if key not in self.buffers:
            name = f"{'x' if role == 'in' else 'y'}{len(self.buffers)}"
            self.buffers[key] = Buffer(name, root.dtype, role)
        return self.buffers[key].name

    # -- values ----------------------------------------------------------------------------------

    def add(self, stmt: Definition) -> str:
        if len(self.body) >= max(MAX_STATEMENTS, 3 * len(self.region.ops)):
            raise LoweringError(Rule.NESTED_CONCAT_SLICES())
        self.body.append(stmt)
        self.types[stmt.name] = stmt.dtype
        return stmt.name

    def fresh(self) -> str:
        return f"v{len(self.types)}"

    def compute(
        self,
        op: str,
        args: tuple[Arg, ...],
        dtype: DType,
        source_dtype: DType,
        rounds_to: DType | None = None,
    ) -> str:
        return self.add(Compute(self.fresh(), op, args, dtype, source_dtype, rounds_to))

    def in_register(self, arg: Arg, dtype: DType) -> str:
        """Return the name of a value; a constant becomes one."""
        select = (Scalar(True), arg, arg)
        return arg if isinstance(arg, str) else self.compute("where", select, dtype, dtype)

    def operand(self, op: Op, k: int, sub: Substitution, guard: str | None) -> Arg:
        x = op.operands[k]
        if isinstance(x, Scalar):
            return x
        if x in self.alignment.value_dims:
            return self.value(x, sub, guard)
        return self.load(x, self.alignment.input_dims[op, k], sub, guard)

    def load(self, x: Value, dims: list[list[Atom]], sub: Substitution, guard: str | None) -> Arg:
        if x not in self.storage:
            raise LoweringError(Rule.VIEW_WITHOUT_STRIDES())
        memref = self.storage[x]
        index = self.address(memref, dims, sub)
        if guard is not None:
            strided = [d for d, stride in zip(dims, memref.strides, strict=True) if stride != 0]
            guard = self.guards.required(guard, x, self.loops(strided, sub))
        key = ("load", memref.root, index, guard)
        if key not in self.memo:
            buffer = self.buffer(memref.root, "in")
            load = Load(self.fresh(), buffer, index, x.dtype.opmath, guard)
            self.memo[key] = self.add(load)
        return self.memo[key]

    def loops(self, dims: Iterable[Sequence[Atom]], sub: Substitution) -> set[str]:
        """Return the loops that indices along these dimensions depend on after substitution."""
        moved = dict(sub)
        found: set[str] = set()
        for atom in self.alignment.leaves(dims):
            if atom in moved:
                found.update(moved[atom].axes)
            elif atom in self.axes:
                found.add(self.axes[atom].name)
        return found

    def value(self, v: Value, sub: Substitution, guard: str | None) -> Arg:
        """Return a value at its own axes or at substituted indices; compute each only once."""
        dims = self.alignment.value_dims[v]
        if sub:
            relevant = set(self.alignment.leaves(dims))
            sub = tuple(s for s in sub if s[0] in relevant)
        if guard is not None:
            guard = self.guards.required(guard, v, self.loops(dims, sub))
        key = (v, sub, guard)
        if key not in self.memo:
            if len(sub) > MAX_SUBSTITUTIONS:
                raise LoweringError(Rule.SLICE_CHAIN())
            op = self.producers[v]
            made = _EMIT[OPS[op.kind].pattern](self, op, sub, guard)
            if v.name in self.rounded and isinstance(made, str):
                made = emit_round(self.compute, made, v.dtype)
            self.memo[key] = made
        return self.memo[key]


def _elementwise(self: _Lowering, op: Op, sub: Substitution, guard: str | None) -> Arg:
    args = tuple(self.operand(op, k, sub, guard) for k in range(len(op.operands)))
    source_dtype = operand_dtype(op)
    if op.kind == "convert":
        return emit_convert(self.compute, args[0], source_dtype, op.result.dtype)
    dtype = op.result.dtype
    half = dtype if op.kind in ELEMENTARY and dtype.is_reduced_float else None
    return self.compute(op.kind, args, dtype.opmath, source_dtype.opmath, half)


def _view(self: _Lowering, op: Op, sub: Substitution, guard: str | None) -> Arg:
    if op.kind != "slice":
        return self.operand(op, 0, sub, guard)
    moved = dict(sub)
    source, out = self.alignment.operand_dims(op, 0), self.alignment.value_dims[op.result]
    for k, (start, step) in enumerate(zip(op.dims("start"), op.ints("step"), strict=True)):
        if source[k] == out[k] or not source[k]:
            continue
        (atom,) = self.alignment.atoms.leaves(source[k])
        moved[atom] = self.dim_index(out[k], sub) * step + AffineExpr((), start)
    return self.operand(op, 0, tuple(sorted(moved.items(), key=lambda s: s[0])), guard)


def _concat(self: _Lowering, op: Op, sub: Substitution, guard: str | None) -> Arg:
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
    self: _Lowering, op: Op, k: int, sub: Substitution, guard: str | None
) -> tuple[Substitution, str | None] | None:
    """Return where in its k-th operand a concat's element is, and the guard; None if nowhere."""
    x, dims = op.operands[k], self.alignment.operand_dims(op, k)
    out = self.alignment.value_dims[op.result]
    assert isinstance(x, Value)
    moved, mask = dict(sub), guard
    for d, extent in enumerate(x.shape):
        if extent == op.result.shape[d]:
            continue
        start, index = operand_start(op, k, d), self.dim_index(out[d], sub)
        atoms, outer = self.alignment.atoms.leaves(dims[d]), mask
        inside = is_in_range(index, start, start + extent, self.extents)
        if inside is False:
            return None
        if not inside:
            mask = self.add(InRange(self.fresh(), index, start, start + extent, outer))
            self.guards.add(mask, op, index, outer, single_element=not atoms)
        for atom in atoms:
            if atom in self.axes and x in self.alignment.value_dims:
                raise LoweringError(Rule.OPERAND_LOOPS(op.kind))
            moved[atom] = index + AffineExpr((), -1 * start)
    return tuple(sorted(moved.items(), key=lambda s: s[0])), mask


def _gather(self: _Lowering, op: Op, sub: Substitution, guard: str | None) -> Arg:
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


def _reduce(self: _Lowering, op: Op, sub: Substitution, guard: str | None) -> Arg:
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


def _random(self: _Lowering, op: Op, sub: Substitution, guard: str | None) -> Arg:
    out = self.alignment.value_dims[op.result]
    seed = self.buffer(self.storage[op.inputs[0]].root, "in")
    row, col = self.flat_index(out[:-1], sub), self.flat_index(out[-1:], sub)
    extent = op.result.shape[-1] if op.result.shape else 1
    return self.add(Uniform(self.fresh(), seed, row, col, extent, op.int("stream")))


def _source(self: _Lowering, op: Op, sub: Substitution, guard: str | None) -> Arg:
    if op.kind == "full":
        value = op.attr("value")
        assert isinstance(value, (bool, int, float, SymDim))
        return round_scalar(Scalar(value), op.result.dtype)
    start, step = op.attr("start"), op.attr("step")
    assert isinstance(start, (int, SymDim)) and isinstance(step, (int, SymDim))
    flat = self.flat_index(self.alignment.value_dims[op.result], sub)
    index = flat * step + AffineExpr((), start)
    return self.add(Iota(self.fresh(), index, op.result.dtype.opmath))


def _add_symbols(kernel: Kernel) -> Kernel:
    """Add the size symbols that the kernel needs, and drop axes without statements."""
    _, runs = iteration_axes(kernel)
    used = set().union(*runs.values()) if runs else set()
    axes = tuple(a for a in kernel.axes if a.name in used)
    dims = {*(a.extent for a in axes), *(d for s in kernel.body for d in s.dims)}
    found = {symbol for dim in dims for symbol in symbols_of(dim)}
    return Kernel(kernel.name, axes, kernel.buffers, tuple(sorted(found)), kernel.body)


# None for OPAQUE: such an op does not align.
_EMIT: dict[Pattern, Callable[[_Lowering, Op, Substitution, str | None], Arg]] = {
    Pattern.ELEMENTWISE: _elementwise,
    Pattern.BROADCAST: _view,
    Pattern.VIEW: _view,
    Pattern.CONCAT: _concat,
    Pattern.GATHER: _gather,
    Pattern.REDUCE: _reduce,
    Pattern.RANDOM: _random,
    Pattern.SOURCE: _source,
}
