"""The state of lowering one region: its axes, buffers, statements, and values at indices."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tofuse.analysis.alias import MemRef
from tofuse.analysis.live_statements import live_statements
from tofuse.cost.thresholds import MAX_KERNEL_STATEMENTS, MAX_SUBSTITUTED_AXES_PER_READ
from tofuse.fusion.concat.guards import ConcatGuards
from tofuse.fusion.lower.align import Alignment
from tofuse.fusion.lower.axes import Atom, LoweringError, row_major_strides
from tofuse.fusion.lower.register_types import (
    emit_round,
)
from tofuse.ir.affine import AffineExpr, make_affine
from tofuse.ir.dims import Dim, symbols_of
from tofuse.ir.graph import Op, Scalar, Value
from tofuse.ir.kernel import (
    Axis,
    Buffer,
    Compute,
    Definition,
    Kernel,
    Load,
    Stmt,
    Store,
    buffers_of,
    iteration_axes,
)
from tofuse.ir.region import Region
from tofuse.ir.rules import Rule
from tofuse.ir.statement import Arg
from tofuse.ir.types import DType
from tofuse.ops.table import OPS, Pattern

Substitution = tuple[tuple[Atom, AffineExpr], ...]  # atoms with an index other than their loop
# emits the writes of an op
WriteRule = Callable[["Lowering", Op], None]
# emits an op's result at substituted indices, under a guard
OpRule = Callable[["Lowering", Op, Substitution, "str | None"], Arg]


@dataclass(frozen=True, eq=False)
class LoweredRegion:
    """A kernel, and for each of its buffers the value that owns the memory."""

    kernel: Kernel
    arguments: tuple[Value, ...]


@dataclass(eq=False)
class Lowering:
    """The statements, axes and buffers of one region's kernel. `rules` emit ops, by pattern.

    For a scatter, `store_start` emits the stores of its start value. `scatter` emits the statement
    that combines values with it.
    """

    region: Region
    storage: Mapping[Value, MemRef]
    alignment: Alignment
    rounded: frozenset[str]
    rules: Mapping[Pattern, OpRule]
    store_start: WriteRule
    scatter: WriteRule
    body: list[Stmt] = field(default_factory=list)
    types: dict[str, DType] = field(default_factory=dict)
    memo: dict[tuple[object, ...], Arg] = field(default_factory=dict)
    buffers: dict[tuple[Value, str], Buffer] = field(default_factory=dict)
    axes: dict[Atom, Axis] = field(default_factory=dict)
    producers: dict[Value, Op] = field(default_factory=dict)
    recurrences: dict[tuple[object, ...], tuple[Arg, ...]] = field(default_factory=dict)
    step_values: dict[tuple[object, ...], Arg] = field(default_factory=dict)

    def run(self) -> LoweredRegion:
        self.producers = {op.result: op for op in self.region.ops}
        self._name_axes()
        is_scatter = {op: OPS[op.kind].pattern is Pattern.SCATTER for op in self.region.ops}
        scatters = [op for op in is_scatter if is_scatter[op] and op.result in self.region.outputs]
        scattered = [op.result for op in scatters]
        for op in scatters:
            self.store_start(self, op)
        for op in (op for op in self.region.ops if not is_scatter[op]):
            atoms = self.alignment.leaves(self.alignment.value_dims[op.result])
            if all(a in self.axes for a in atoms):
                self.value(op.result, (), None)
        for op in scatters:
            self.scatter(self, op)
        for v in (v for v in self.region.outputs if v not in scattered):
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
        """Make a loop for each axis of the outputs and of the operands of ops with other axes."""
        iterated = [self.alignment.value_dims[v] for v in self.region.outputs]
        for op in self.region.ops:
            pattern = OPS[op.kind].pattern
            if pattern is Pattern.RECURRENCE:
                iterated.append(self.alignment.value_dims[op.result])
            if pattern in (Pattern.REDUCE, Pattern.SCAN, Pattern.SCATTER, Pattern.CONTRACT):
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
        if len(self.body) >= max(MAX_KERNEL_STATEMENTS, 3 * len(self.region.ops)):
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
            if len(sub) > MAX_SUBSTITUTED_AXES_PER_READ:
                raise LoweringError(Rule.SLICE_CHAIN())
            op = self.producers[v]
            made = self.rules[OPS[op.kind].pattern](self, op, sub, guard)
            if v.name in self.rounded and isinstance(made, str):
                made = emit_round(self.compute, made, v.dtype)
            self.memo[key] = made
        return self.memo[key]


def _add_symbols(kernel: Kernel) -> Kernel:
    """Add the size symbols that the kernel needs, and drop axes without statements."""
    _, runs = iteration_axes(kernel)
    used = set().union(*runs.values()) if runs else set()
    axes = tuple(a for a in kernel.axes if a.name in used)
    dims = {*(a.extent for a in axes), *(d for s in kernel.body for d in s.dims)}
    found = {symbol for dim in dims for symbol in symbols_of(dim)}
    return Kernel(kernel.name, axes, kernel.buffers, tuple(sorted(found)), kernel.body)
