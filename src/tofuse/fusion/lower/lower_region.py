"""Region -> Kernel: index every value by atomic axes, so that views inside a region vanish."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from tofuse.fusion.concat.guards import Pieces, passes, start_of
from tofuse.fusion.lower.align import Alignment, align
from tofuse.fusion.lower.axes import Atom, Misaligned, radix
from tofuse.fusion.lower.flatten import flattened
from tofuse.fusion.lower.register_types import (
    converted,
    operand_type,
    register,
    rounded,
)
from tofuse.ir.dims import Dim, SymDim, symbols_of
from tofuse.ir.elements import ROUND
from tofuse.ir.graph import Op, Operand, Scalar, Value
from tofuse.ir.kernel import (
    Affine,
    Arg,
    Axis,
    Buffer,
    Compute,
    Definition,
    Inside,
    Iota,
    Kernel,
    Load,
    Reduce,
    Stmt,
    Store,
    Take,
    Uniform,
    affine,
    buffers_of,
    iteration_axes,
    live,
    stmt_dims,
)
from tofuse.ir.region import Region, Strided
from tofuse.ir.types import DType
from tofuse.ops.table import Pattern, opdef

MOST_STATEMENTS = 512  # or three for each op; slices of joins of slices would be computed too often
Substitution = tuple[tuple[Atom, Affine], ...]  # atoms read elsewhere than at their own loop


@dataclass(frozen=True, eq=False)
class Lowered:
    """A kernel and the values whose memory its buffers are, in the order of its buffers."""

    kernel: Kernel
    arguments: tuple[Value, ...]


def lower(
    region: Region,
    storage: dict[Value, Strided],
    *,
    halves: frozenset[str] = frozenset(),
) -> Lowered:
    """The kernel of a region; raises Misaligned where its values have no common axes.

    Values named in `halves` are rounded to half precision as memory would hold them.
    """
    try:
        alignment = align(region.ops, storage)
    except Misaligned:
        flat = flattened(region, storage)
        if flat is None:
            raise
        region, storage = flat
        alignment = align(region.ops, storage)
    return _Lowering(region, storage, alignment, halves).run()


@dataclass(eq=False)
class _Lowering:
    region: Region
    storage: dict[Value, Strided]
    alignment: Alignment
    halves: frozenset[str]
    body: list[Stmt] = field(default_factory=list)
    types: dict[str, DType] = field(default_factory=dict)
    memo: dict[tuple[object, ...], Arg] = field(default_factory=dict)
    buffers: dict[tuple[Value, str], Buffer] = field(default_factory=dict)
    axes: dict[Atom, Axis] = field(default_factory=dict)
    producers: dict[Value, Op] = field(default_factory=dict)

    def run(self) -> Lowered:
        self.producers = {op.result: op for op in self.region.ops}
        self._name_axes()
        for op in self.region.ops:
            if all(a in self.axes for a in self.alignment.leaves(self.alignment.inner[op.result])):
                self.value(op.result, (), None)
        for v in self.region.outputs:
            place = self.storage[v]
            index = self.address(place, self.alignment.inner[v], ())
            out = self.buffer(place.root, "out")
            self.body.append(Store(out, index, self.value(v, (), None), v.dtype))
        body = live(self.body)
        used = {b for s in body for b in buffers_of(s)}
        kept = {k: b for k, b in self.buffers.items() if b.name in used}
        kernel = Kernel(
            self.region.name, tuple(self.axes.values()), tuple(kept.values()), (), tuple(body)
        )
        return Lowered(_with_symbols(kernel), tuple(v for v, _ in kept))

    @functools.cached_property
    def extents(self) -> dict[str, Dim]:
        return {axis.name: axis.extent for axis in self.axes.values()}

    @functools.cached_property
    def pieces(self) -> Pieces:
        return Pieces(self.region.ops)

    def _name_axes(self) -> None:
        """Loops exist for the axes of what is stored and of what is reduced."""
        roots = [self.alignment.inner[v] for v in self.region.outputs]
        for op in self.region.ops:
            if opdef(op.kind).pattern is Pattern.REDUCE:
                roots.append(self.alignment.operand(op, 0))
        for dims in roots:
            for atom in self.alignment.leaves(dims):
                if atom not in self.axes:
                    name = f"i{len(self.axes)}"
                    self.axes[atom] = Axis(name, self.alignment.atoms.extent(atom))

    # -- indices ---------------------------------------------------------------------------------

    def dim_index(self, axes: list[Atom], sub: Substitution) -> Affine:
        """The position along a dimension made of `axes`."""
        total, moved = Affine(), dict(sub)
        atoms = self.alignment.atoms
        for atom, weight in radix(atoms, atoms.leaves(axes)):
            if atom in moved:
                total += moved[atom] * weight
            elif atom in self.axes:
                total += affine([(self.axes[atom].name, weight)])
            else:
                raise Misaligned("a dimension that no loop runs over")
        return total

    def address(self, place: Strided, dims: list[list[Atom]], sub: Substitution) -> Affine:
        total = Affine((), place.offset)
        for axes, stride in zip(dims, place.strides, strict=True):
            total += self.dim_index(axes, sub) * stride
        return total

    def flat_index(self, dims: list[list[Atom]], sub: Substitution) -> Affine:
        return self.dim_index([a for d in dims for a in d], sub)

    def buffer(self, root: Value, role: str) -> str:
        key = (root, role)
        if key not in self.buffers:
            name = f"{'x' if role == 'in' else 'y'}{len(self.buffers)}"
            self.buffers[key] = Buffer(name, root.dtype, role)
        return self.buffers[key].name

    # -- values ----------------------------------------------------------------------------------

    def add(self, stmt: Definition) -> str:
        if len(self.body) >= max(MOST_STATEMENTS, 3 * len(self.region.ops)):
            raise Misaligned("slices of joins of slices: the same would be computed too often")
        self.body.append(stmt)
        self.types[stmt.name] = stmt.dtype
        return stmt.name

    def fresh(self) -> str:
        return f"v{len(self.types)}"

    def compute(self, op: str, args: tuple[Arg, ...], dtype: DType, of: DType) -> Arg:
        return self.add(Compute(self.fresh(), op, args, dtype, of))

    def operand(self, op: Op, k: int, sub: Substitution, guard: str | None) -> Arg:
        x = op.operands[k]
        if isinstance(x, Scalar):
            return x
        if x in self.alignment.inner:
            return self.value(x, sub, guard)
        return self.load(x, self.alignment.outer[op, k], sub, guard)

    def load(self, x: Value, dims: list[list[Atom]], sub: Substitution, guard: str | None) -> Arg:
        if x not in self.storage:
            raise Misaligned("a view that no strides express")
        place = self.storage[x]
        index = self.address(place, dims, sub)
        if guard is not None:
            strided = [d for d, stride in zip(dims, place.strides, strict=True) if stride != 0]
            guard = self.pieces.needed(guard, x, self.loops(strided, sub))
        key = ("load", place.root, index, guard)
        if key not in self.memo:
            buffer = self.buffer(place.root, "in")
            load = Load(self.fresh(), buffer, index, register(x.dtype), guard)
            self.memo[key] = self.add(load)
        return self.memo[key]

    def loops(self, dims: Iterable[Sequence[Atom]], sub: Substitution) -> set[str]:
        """The loops that positions along these dimensions depend on, where `sub` moves them."""
        moved = dict(sub)
        found: set[str] = set()
        for atom in self.alignment.leaves(dims):
            if atom in moved:
                found.update(moved[atom].axes)
            elif atom in self.axes:
                found.add(self.axes[atom].name)
        return found

    def value(self, v: Value, sub: Substitution, guard: str | None) -> Arg:
        """The value at its own axes, or where `sub` moves them; nothing is computed twice."""
        dims = self.alignment.inner[v]
        if sub:
            relevant = set(self.alignment.leaves(dims))
            sub = tuple(s for s in sub if s[0] in relevant)
        if guard is not None:
            guard = self.pieces.needed(guard, v, self.loops(dims, sub))
        key = (v, sub, guard)
        if key not in self.memo:
            if len(sub) > 8:
                raise Misaligned("a deep chain of slices")
            op = self.producers[v]
            made = _EMIT[opdef(op.kind).pattern](self, op, sub, guard)
            if v.name in self.halves and isinstance(made, str):
                made = rounded(self.compute, made, v.dtype)
            self.memo[key] = made
        return self.memo[key]


def _elementwise(self: _Lowering, op: Op, sub: Substitution, guard: str | None) -> Arg:
    args = tuple(self.operand(op, k, sub, guard) for k in range(len(op.operands)))
    of = operand_type(op)
    if op.kind == "convert":
        return converted(self.compute, args[0], of, op.result.dtype)
    return self.compute(op.kind, args, register(op.result.dtype), register(of))


def _view(self: _Lowering, op: Op, sub: Substitution, guard: str | None) -> Arg:
    if op.kind != "slice":
        return self.operand(op, 0, sub, guard)
    moved = dict(sub)
    source, out = self.alignment.operand(op, 0), self.alignment.inner[op.result]
    for k, (start, step) in enumerate(zip(op.dims("start"), op.ints("step"), strict=True)):
        if source[k] == out[k] or not source[k]:
            continue
        (atom,) = self.alignment.atoms.leaves(source[k])
        moved[atom] = self.dim_index(out[k], sub) * step + Affine((), start)
    return self.operand(op, 0, tuple(sorted(moved.items(), key=lambda s: s[0])), guard)


def _join(self: _Lowering, op: Op, sub: Substitution, guard: str | None) -> Arg:
    result = _element(op.operands[1], op.result.dtype) if op.kind == "pad" else None
    for k, x in reversed(list(enumerate(op.operands))):
        if not isinstance(x, Value):
            continue
        found = _at_piece(self, op, k, sub, guard)
        if found is None:
            continue
        at_piece, mask = found
        if x in self.alignment.inner:
            piece = self.value(x, at_piece, mask)
        else:
            piece = self.load(x, self.alignment.operand(op, k), at_piece, mask)
        if mask == guard or result is None:
            result = piece
        else:
            dtype = register(op.result.dtype)
            assert mask is not None
            result = self.compute("where", (mask, piece, result), dtype, dtype)
    return Scalar(0) if result is None else result


def _at_piece(
    self: _Lowering, op: Op, k: int, sub: Substitution, guard: str | None
) -> tuple[Substitution, str | None] | None:
    """Where in its k-th piece an element of a join is, and under what guard; None if nowhere."""
    x, out, dims = op.operands[k], self.alignment.inner[op.result], self.alignment.operand(op, k)
    assert isinstance(x, Value)
    moved, mask = dict(sub), guard
    for d, extent in enumerate(x.shape):
        if extent == op.result.shape[d]:
            continue
        start, index = start_of(op, k, d), self.dim_index(out[d], sub)
        atoms, outer = self.alignment.atoms.leaves(dims[d]), mask
        passed = passes(index, start, start + extent, self.extents)
        if passed is False:
            return None
        if not passed:
            mask = self.add(Inside(self.fresh(), index, start, start + extent, outer))
            self.pieces.guard(mask, op, index, outer, single=not atoms)
        for atom in atoms:
            if atom in self.axes and x in self.alignment.inner:
                raise Misaligned(f"a piece of the {op.kind} has loops of its own")
            moved[atom] = index + Affine((), -1 * start)
    return tuple(sorted(moved.items(), key=lambda s: s[0])), mask


def _take(self: _Lowering, op: Op, sub: Substitution, guard: str | None) -> Arg:
    x, index = op.inputs
    by = self.operand(op, 1, sub, guard)
    place, out = self.storage[x], self.alignment.inner[op.result]
    total = Affine((), place.offset)
    stride: Dim = 0
    extent: Dim = 0
    for d, followed in enumerate(op.ints("dims")):
        if followed < 0:
            stride, extent = place.strides[d], x.shape[d]
        else:
            total += self.dim_index(out[followed], sub) * place.strides[d]
    by = converted(self.compute, by, index.dtype, DType.I64)
    if not isinstance(by, str):
        by = self.compute("where", (Scalar(True), by, by), DType.I64, DType.I64)
    assert isinstance(by, str)
    wrap = bool(op.attr("wrap"))
    buffer, dtype = self.buffer(place.root, "in"), register(x.dtype)
    name = self.fresh()
    return self.add(Take(name, buffer, total, by, stride, extent, wrap, dtype, guard))


def _reduce(self: _Lowering, op: Op, sub: Substitution, guard: str | None) -> Arg:
    source, reduced = self.alignment.operand(op, 0), op.ints("dims")
    if set(self.alignment.leaves(source)) & {a for a, _ in sub}:
        raise Misaligned("a slice of a reduction's result")
    (x,) = op.inputs
    arg, dtype = self.operand(op, 0, (), None), register(op.result.dtype)
    if op.kind in ("any", "all"):
        arg = converted(self.compute, arg, x.dtype, DType.BOOL)
    elif op.kind in ("sum", "prod"):
        arg = converted(self.compute, arg, x.dtype, dtype)
    atoms = [a for d in reduced for a in self.alignment.atoms.leaves(source[d])]
    position = self.dim_index(atoms, ()) if op.kind.startswith("arg") else None
    if not atoms:
        return Scalar(0) if position is not None else arg
    if not isinstance(arg, str):
        arg = self.compute("where", (Scalar(True), arg, arg), register(x.dtype), register(x.dtype))
        assert isinstance(arg, str)
    over = tuple(self.axes[a].name for a in atoms)
    return self.add(Reduce(self.fresh(), op.kind, arg, over, dtype, position))


def _random(self: _Lowering, op: Op, sub: Substitution, guard: str | None) -> Arg:
    out = self.alignment.inner[op.result]
    seed = self.buffer(self.storage[op.inputs[0]].root, "in")
    row, col = self.flat_index(out[:-1], sub), self.flat_index(out[-1:], sub)
    extent = op.result.shape[-1] if op.result.shape else 1
    return self.add(Uniform(self.fresh(), seed, row, col, extent, op.int("stream")))


def _source(self: _Lowering, op: Op, sub: Substitution, guard: str | None) -> Arg:
    if op.kind == "full":
        value = op.attr("value")
        assert isinstance(value, (bool, int, float, SymDim))
        return _element(Scalar(value), op.result.dtype)
    start, step = op.attr("start"), op.attr("step")
    assert isinstance(start, (int, SymDim)) and isinstance(step, (int, SymDim))
    index = self.flat_index(self.alignment.inner[op.result], sub) * step + Affine((), start)
    return self.add(Iota(self.fresh(), index, register(op.result.dtype)))


def _element(constant: Operand, dtype: DType) -> Arg:
    """What a tensor of halves holds of a constant: nothing rounds it later."""
    assert isinstance(constant, Scalar)
    if dtype in ROUND and dtype.is_narrow and isinstance(constant.value, float):
        return Scalar(ROUND[dtype](constant.value))
    return constant


def _opaque(self: _Lowering, op: Op, sub: Substitution, guard: str | None) -> Arg:
    raise Misaligned("an operator that only PyTorch runs")


def _with_symbols(kernel: Kernel) -> Kernel:
    """Say which size symbols the kernel needs, and drop axes that nothing runs over."""
    _, runs = iteration_axes(kernel)
    used = set().union(*runs.values()) if runs else set()
    axes = tuple(a for a in kernel.axes if a.name in used)
    found: dict[str, None] = {}
    for dim in [a.extent for a in axes] + [d for s in kernel.body for d in stmt_dims(s)]:
        found |= dict.fromkeys(symbols_of(dim))
    return Kernel(kernel.name, axes, kernel.buffers, tuple(sorted(found)), kernel.body)


_EMIT: dict[Pattern, Callable[[_Lowering, Op, Substitution, str | None], Arg]] = {
    Pattern.ELEMENTWISE: _elementwise,
    Pattern.BROADCAST: _view,
    Pattern.VIEW: _view,
    Pattern.JOIN: _join,
    Pattern.TAKE: _take,
    Pattern.REDUCE: _reduce,
    Pattern.RANDOM: _random,
    Pattern.SOURCE: _source,
    Pattern.OPAQUE: _opaque,
}
