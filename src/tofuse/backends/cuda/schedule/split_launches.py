"""Split a kernel into launches where several program instances share a reduction."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from tofuse.ir.affine import AffineExpr, make_affine
from tofuse.ir.dims import Dim, product
from tofuse.ir.kernel import (
    WRITES,
    Axis,
    Buffer,
    Definition,
    Gather,
    Kernel,
    Load,
    Reduce,
    Stmt,
    Store,
    Write,
    buffers_of,
    iteration_axes,
)
from tofuse.ir.tile import Partial, Tile, Workspace
from tofuse.ir.types import DType
from tofuse.schedule.backward_slice import backward_slice


@dataclass(frozen=True)
class SplitKernel:
    """A launch that stores partial reductions, and the kernels that combine and use them."""

    first: Kernel
    partials: dict[str, Partial]
    rest: list[Kernel]
    workspaces: list[Workspace]


def split_launches(kernel: Kernel, tile: Tile, splits: int, workspace_count: int) -> SplitKernel:
    """Split a kernel at the reductions over a tile that `splits` program instances share.

    New workspaces are numbered from `workspace_count`.
    """
    axes = frozenset(tile.axes)
    roots = independent_statements(kernel, axes)
    reductions = [s for s in roots if isinstance(s, Reduce)]
    builder = WorkspaceBuilder(kernel, splits, workspace_count)
    partials = {r.name: builder.partial(r) for r in reductions}
    first = extract_kernel(kernel, roots, kernel.body, f"{kernel.name}_part")
    first = replace(
        first, buffers=(*first.buffers, *workspace_buffers("out", builder.partial_spaces))
    )
    combined = {r.name: builder.combine(r, partials[r.name]) for r in reductions}
    rest = combine_and_use(kernel, axes, roots, reductions, combined, builder)
    return SplitKernel(first, partials, rest, builder.spaces)


def independent_statements(kernel: Kernel, axes: frozenset[str]) -> list[Stmt]:
    """Return stores and reductions that run over any of the axes.

    They depend on no reduction over any of the axes.
    """
    _, stmt_axes = iteration_axes(kernel)
    by_name = kernel.definitions
    waiting = _depend_on(kernel, lambda s: reduces_over(s, axes))
    return [
        s
        for s in kernel.body
        if runs_once(s, axes)
        and stmt_axes[s] & axes
        and not any(by_name[u] in waiting for u in s.uses)
    ]


def combine_and_use(
    kernel: Kernel,
    axes: frozenset[str],
    done: Collection[Stmt],
    reductions: Sequence[Reduce],
    combined: Mapping[str, Sequence[Stmt]],
    builder: WorkspaceBuilder,
) -> list[Kernel]:
    """Return the launches after the one that stores partial results of reductions over axes.

    The first computes each of these reductions by the statements `combined`, and the stores that
    have no element along the axes. The second computes the stores that are left. The launch before
    them already did the stores in `done`.
    """
    _, stmt_axes = iteration_axes(kernel)
    late_stores = [s for s in kernel.body if isinstance(s, WRITES) and s not in done]
    further = _depend_on(kernel, lambda s: reduces_over(s, axes) and s not in reductions)
    combine_stores = [s for s in late_stores if not stmt_axes[s] & axes and s not in further]
    after_stores = [s for s in late_stores if s not in combine_stores]
    saved = _saved_values(kernel, reductions, after_stores)
    result_stores, result_loads = builder.results(saved)
    launches: list[Kernel] = []
    if combine_stores or result_stores:
        combine = replace(
            kernel,
            axes=(*kernel.axes, Axis(builder.split_axis, builder.splits)),
            buffers=(
                *kernel.buffers,
                *workspace_buffers("in", builder.partial_spaces),
                *workspace_buffers("out", builder.result_spaces),
            ),
        )
        body: list[Stmt] = []
        for s in kernel.body:
            body += [s] if isinstance(s, WRITES) else combined.get(s.name, [s])
        ends = [*combine_stores, *result_stores]
        body += result_stores
        launches.append(extract_kernel(combine, ends, body, f"{kernel.name}_combine"))
    if after_stores:
        buffers = (*kernel.buffers, *workspace_buffers("in", builder.result_spaces))
        after = replace(kernel, buffers=buffers)
        body = [*result_loads, *(s for s in kernel.body if s not in saved)]
        launches.append(extract_kernel(after, after_stores, body, f"{kernel.name}_after"))
    return launches


def separate_reductions(kernel: Kernel, workspace_count: int) -> SplitKernel | None:
    """Split a kernel before its last reductions, or return None if all are over the same axes.

    The second launch computes them from the loads again, and reads the results of other reductions.
    """
    reductions = [s for s in kernel.body if isinstance(s, Reduce)]
    axes = frozenset(reductions[-1].over)
    late = _depend_on(kernel, lambda s: reduces_over(s, axes))
    early = {r.name for r in reductions if r not in late}
    if not early:
        return None
    stores = [s for s in kernel.body if isinstance(s, WRITES)]
    late_stores = [s for s in stores if s in late]
    used = _used_values(late_stores, kernel, early)
    builder = WorkspaceBuilder(kernel, 1, workspace_count)
    result_stores, result_loads = builder.results([r for r in reductions if r.name in used])
    ends = [*(s for s in stores if s not in late_stores), *result_stores]
    buffers = (*kernel.buffers, *workspace_buffers("out", builder.result_spaces))
    first = replace(kernel, buffers=buffers)
    first = extract_kernel(first, ends, (*kernel.body, *result_stores), f"{kernel.name}_early")
    buffers = (*kernel.buffers, *workspace_buffers("in", builder.result_spaces))
    others = [s for s in kernel.body if isinstance(s, WRITES) or s.name not in used]
    second = replace(kernel, buffers=buffers)
    second = extract_kernel(second, late_stores, (*result_loads, *others), f"{kernel.name}_late")
    return SplitKernel(first, {}, [second], builder.spaces)


Updates = Collection[tuple[str, str]]  # buffers: an argument, and its new value


def separate_scalar_updates(kernel: Kernel, updates: Updates) -> list[Kernel]:
    """Return the kernel; or two, of which the second computes the new values of scalar arguments.

    The first launch has read the old values then. So the second may write the new ones in their
    place, as those of an optimiser's step counter.
    """
    _, stmt_axes = iteration_axes(kernel)
    stores = [s for s in kernel.body if isinstance(s, WRITES)]
    needed = {s: backward_slice([s], kernel.definitions) for s in stores}
    read = {d for s in stores if stmt_axes[s] for d in needed[s]}

    def is_update(store: Write) -> bool:
        if any(stmt_axes[s] or isinstance(s, Reduce) for s in needed[store]):
            return False
        loads = [s for s in needed[store] & read if isinstance(s, Load) and s.index == store.index]
        return any((s.buffer, store.buffer) in updates for s in loads)

    late = [s for s in stores if is_update(s)]
    if not late:
        return [kernel]
    first = extract_kernel(kernel, [s for s in stores if s not in late], kernel.body, kernel.name)
    return [first, extract_kernel(kernel, late, kernel.body, f"{kernel.name}_scalars")]


def reduces_over(stmt: Stmt, axes: frozenset[str]) -> bool:
    """Whether a statement is a reduction over any of the axes."""
    return isinstance(stmt, Reduce) and not axes.isdisjoint(stmt.over)


def runs_once(stmt: Stmt, axes: frozenset[str]) -> bool:
    """Whether a statement must run exactly once for each point."""
    return isinstance(stmt, WRITES) or reduces_over(stmt, axes)


def _depend_on(kernel: Kernel, is_source: Callable[[Stmt], bool]) -> set[Stmt]:
    """Return the statements that are a source, or depend on one."""
    found = set[Stmt]()
    for s in kernel.body:
        if is_source(s) or any(kernel.definitions[u] in found for u in s.uses):
            found.add(s)
    return found


def _saved_values(
    kernel: Kernel, reductions: Sequence[Reduce], stores: Sequence[Stmt]
) -> list[Definition]:
    """Return the values that the combining launch saves for the launch that computes `stores`.

    These are reductions, or values computed from them along the same axes or fewer.
    """
    value_axes, _ = iteration_axes(kernel)
    by_name = kernel.definitions
    depend = _depend_on(kernel, lambda s: s in reductions)
    small: list[Definition] = [*reductions]
    for s in kernel.body:
        if isinstance(s, (*WRITES, Reduce)) or s not in depend:
            continue
        is_small = any(value_axes[s.name] <= value_axes[r.name] for r in reductions)
        if is_small and all(by_name[u] in small or by_name[u] not in depend for u in s.uses):
            small.append(s)
    used = _used_values(stores, kernel, {s.name for s in small})
    return [s for s in small if s.name in used]


def _used_values(stores: Sequence[Stmt], kernel: Kernel, names: set[str]) -> set[str]:
    """Return which of the named values the stores depend on first."""
    others = {name: s for name, s in kernel.definitions.items() if name not in names}
    return {u for s in backward_slice(stores, others) for u in s.uses if u in names}


def extract_kernel(kernel: Kernel, ends: Iterable[Stmt], body: Sequence[Stmt], name: str) -> Kernel:
    """Return the kernel of the statements that `ends` need, with their axes and buffers."""
    by_name: dict[str, Stmt] = {s.name: s for s in body if not isinstance(s, WRITES)}
    needed = backward_slice(ends, by_name)
    live = tuple(s for s in body if s in needed)
    axes = {a for s in live for i in s.indices for a in i.axes}
    axes |= {a for s in live if isinstance(s, Reduce) for a in s.over}
    buffers = {name for s in live for name in buffers_of(s)}
    return Kernel(
        name,
        tuple(a for a in kernel.axes if a.name in axes),
        tuple(b for b in kernel.buffers if b.name in buffers),
        kernel.symbols,
        live,
    )


def row_major(axes: Sequence[Axis]) -> AffineExpr:
    """Return the number of an element along axes, outermost first."""
    extents = [a.extent for a in axes]
    return make_affine((a.name, product(extents[k + 1 :])) for k, a in enumerate(axes))


def workspace_buffers(role: str, workspaces: Sequence[Workspace]) -> list[Buffer]:
    """Return workspaces as buffers of a kernel."""
    return [Buffer(w.name, w.dtype, role) for w in workspaces]


class WorkspaceBuilder:
    """Allocate workspaces for partial and combined reductions, and build their statements."""

    def __init__(self, kernel: Kernel, splits: int, count: int) -> None:
        self.kernel, self.splits, self.count = kernel, splits, count
        self.value_axes, _ = iteration_axes(kernel)
        self.split_axis = f"p{count}"
        self.dtypes = {name: s.dtype for name, s in kernel.definitions.items()}
        self.partial_spaces: list[Workspace] = []
        self.result_spaces: list[Workspace] = []

    @property
    def spaces(self) -> list[Workspace]:
        return self.partial_spaces + self.result_spaces

    def partial(self, r: Reduce) -> Partial:
        """Allocate the workspace of the partial results of a reduction."""
        index, size = self._index(r)
        total = product((size, self.splits))
        buffer = self._allocate(r.dtype, total, self.partial_spaces)
        best = None
        if r.position is not None:
            best = self._allocate(self.dtypes[r.arg], total, self.partial_spaces)
        return Partial(buffer, index, size, best)

    def combine(self, r: Reduce, p: Partial) -> list[Stmt]:
        """Return the same reduction over the partial results."""
        index = p.index + make_affine([(self.split_axis, p.step)])
        over, part = (self.split_axis,), f"{r.name}_{p.buffer}"
        if p.best is None:
            return [Load(part, p.buffer, index, r.dtype), replace(r, arg=part, over=over)]
        split, best_split = make_affine([(self.split_axis, 1)]), f"{part}_at"
        return [
            Load(part, p.best, index, self.dtypes[r.arg]),
            replace(r, name=best_split, arg=part, over=over, position=split),
            Gather(r.name, p.buffer, p.index, best_split, p.step, self.splits, False, r.dtype),
        ]

    def results(self, values: Sequence[Definition]) -> tuple[list[Stmt], list[Stmt]]:
        """Return stores of values to workspaces, and the loads of a later launch."""
        stores: list[Stmt] = []
        loads: list[Stmt] = []
        for r in values:
            index, size = self._index(r)
            name = self._allocate(r.dtype, size, self.result_spaces)
            stores.append(Store(name, index, r.name, r.dtype))
            loads.append(Load(r.name, name, index, r.dtype))
        return stores, loads

    def _index(self, r: Definition) -> tuple[AffineExpr, Dim]:
        """Return the row-major index of the elements of a value, and their number."""
        axes = [a for a in self.kernel.axes if a.name in self.value_axes[r.name]]
        axes.sort(key=lambda a: a.name)
        return row_major(axes), product(a.extent for a in axes)

    def _allocate(self, dtype: DType, elements: Dim, spaces: list[Workspace]) -> str:
        number = self.count + len(self.partial_spaces) + len(self.result_spaces)
        spaces.append(Workspace(f"w{number}", dtype, elements))
        return spaces[-1].name
