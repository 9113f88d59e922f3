"""Which output buffers of a nest, or of launches on a GPU, may share memory with its inputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tofuse.ir.affine import AffineExpr
from tofuse.ir.dims import Dim, product, size_hint
from tofuse.ir.kernel import WRITES, Gather, Kernel, Load, Scatter, Stmt, Store, Uniform
from tofuse.ir.nest import For, Nest, Node, StmtNode
from tofuse.ir.tile import TileNest, TileProgram
from tofuse.schedule.backward_slice import backward_slice


@dataclass(frozen=True)
class _Access:
    """An access to a buffer. Its index is None if it may be any element.

    `path` has the positions of the statement and of the loops around it, whose axes are
    `outer_axes`, from the outside in. A gather reads one of `span` elements from `first` on.
    """

    index: AffineExpr | None
    path: tuple[int, ...]
    outer_axes: tuple[str, ...]
    in_prologue: bool
    first: AffineExpr | None = None
    span: Dim = 0


def legal_aliases(nest: Nest) -> tuple[tuple[int, int], ...]:
    """Return the positions (read, written) of buffers of one type that may share memory."""
    return _positions(nest.kernel, legal_aliases_by_name(nest))


def legal_tile_aliases(program: TileProgram) -> tuple[tuple[int, int], ...]:
    """Return the positions (read, written) of buffers of one type that may share memory on a GPU.

    They may if every read is in an earlier launch than the write. In the same launch, three
    conditions must hold. Read and write have the same index. Each element belongs to one program
    instance, and to one iteration of it. The stored value depends on the value read: Triton gives
    an element to one warp in a load and to another in a store, and only such a dependence makes the
    second warp wait.
    """
    reads: dict[str, list[_TileAccess]] = {}
    writes: dict[str, list[_TileAccess]] = {}
    for number, nest in enumerate(program.nests):
        for access in _tile_accesses(number, nest):
            found = writes if access.is_write else reads
            found.setdefault(access.buffer, []).append(access)
    inputs = [b.name for b in program.kernel.buffers if b.role == "in"]
    outputs = {b.name for b in program.kernel.buffers} & writes.keys()
    legal = frozenset(
        (written, read)
        for written in outputs
        for read in inputs
        if all(_tile_precedes(r, w) for r in reads.get(read, []) for w in writes[written])
    )
    return _positions(program.kernel, legal)


def _positions(kernel: Kernel, pairs: frozenset[tuple[str, str]]) -> tuple[tuple[int, int], ...]:
    """Return (read, written) as positions, for each pair (written, read) of buffers of one type."""
    positions = {b.name: k for k, b in enumerate(kernel.buffers)}
    dtypes = {b.name: b.dtype for b in kernel.buffers}
    found = [(positions[r], positions[w]) for w, r in pairs if dtypes[r] == dtypes[w]]
    return tuple(sorted(found, key=lambda pair: pair[::-1]))


def legal_aliases_by_name(nest: Nest) -> frozenset[tuple[str, str]]:
    """Return the pairs (written, read) of buffers that may share memory.

    They may if each element is read for the last time before it is written: every read precedes
    the write in the loops around both, and each iteration of these accesses other elements.
    """
    extents = {a.name: a.extent for a in nest.kernel.axes}
    reads: dict[str, list[_Access]] = {}
    writes: dict[str, list[_Access]] = {}
    for number, phase in enumerate(nest.phases):
        band = tuple(lp.axis for lp in phase.band)
        _collect(phase.prologue, (number, 0), (), bool(band), reads, writes)
        _collect(phase.body, (number, 1), band, False, reads, writes)
    inputs = [b.name for b in nest.kernel.buffers if b.role == "in"]
    return frozenset(
        (written, read)
        for written, stores in writes.items()
        for read in inputs
        if all(_reads_precede_write(r, w, extents) for r in reads.get(read, []) for w in stores)
    )


def _collect(
    nodes: tuple[Node, ...],
    path: tuple[int, ...],
    outer_axes: tuple[str, ...],
    in_prologue: bool,
    reads: dict[str, list[_Access]],
    writes: dict[str, list[_Access]],
) -> None:
    """Add the accesses of nodes to `reads` and `writes`."""
    for k, node in enumerate(nodes):
        node_path = (*path, k)
        if isinstance(node, For):
            axes = (*outer_axes, node.loop.axis)
            _collect(node.body, node_path, axes, in_prologue, reads, writes)
        elif isinstance(node, StmtNode) and (accessed := _accessed(node.stmt)) is not None:
            buffer, index = accessed
            found = writes if isinstance(node.stmt, WRITES) else reads
            access = _Access(index, node_path, outer_axes, in_prologue)
            if isinstance(node.stmt, Gather):
                span = product((node.stmt.stride, node.stmt.extent))
                access = replace(access, first=node.stmt.index, span=span)
            found.setdefault(buffer, []).append(access)


def _accessed(stmt: Stmt) -> tuple[str, AffineExpr | None] | None:
    """Return the buffer that a statement accesses, and the index or None for any element."""
    match stmt:
        case Load() | Store():
            return stmt.buffer, stmt.index
        case Gather() | Scatter():
            return stmt.buffer, None
        case Uniform():  # each thread reads the seed first, for its keys
            return stmt.seed, None
    return None


def _reads_precede_write(read: _Access, write: _Access, extents: Mapping[str, Dim]) -> bool:
    """Whether no element is read after it is written."""
    if read.path[0] < write.path[0]:
        return True  # an earlier phase
    if read.path > write.path or read.in_prologue or write.in_prologue:
        return False
    common = 0  # loops around both; a path has the phase, prologue or body, then one number a loop
    for a, b in zip(read.path[2:-1], write.path[2:-1], strict=False):
        if a != b:
            break
        common += 1
    band = len(write.outer_axes) - (len(write.path) - 3)
    common_axes = write.outer_axes[: band + common]
    if read.index is None:
        return _reads_own_row(read, write, common_axes, extents)
    return read.index == write.index and set(common_axes) <= set(read.index.axes)


def _reads_own_row(
    read: _Access, write: _Access, common_axes: Sequence[str], extents: Mapping[str, Dim]
) -> bool:
    """Whether each iteration of the common loops gathers and writes in a row of its own."""
    if read.first is None or write.index is None or not common_axes:
        return False
    steps = {a: c for a, c in write.index.terms if a in common_axes}
    if dict(read.first.terms) != steps or read.first.const != write.index.const:
        return False
    inner = [(c, extents[a]) for a, c in write.index.terms if a not in common_axes]
    numbers = [read.span, *steps.values(), *(n for pair in inner for n in pair)]
    if len(steps) < len(common_axes) or not all(isinstance(n, int) and n >= 0 for n in numbers):
        return False
    written = 1 + sum(size_hint(c) * (size_hint(n) - 1) for c, n in inner)
    span = max(size_hint(read.span), written)
    for axis, step in sorted(steps.items(), key=lambda item: size_hint(item[1])):
        if size_hint(step) < span:
            return False
        span = size_hint(step) * size_hint(extents[axis])
    return True


@dataclass(frozen=True)
class _TileAccess:
    """An access to a buffer in a launch. Its index is None if it may be any element.

    `path` has the launch, the loop, whether the statement is in its body, and its position. `axes`
    are those of the launch. `needed` are the statements that a store depends on.
    """

    stmt: Stmt
    buffer: str
    index: AffineExpr | None
    path: tuple[int, int, bool, int]
    axes: frozenset[str]
    needed: frozenset[Stmt]

    @property
    def is_write(self) -> bool:
        return isinstance(self.stmt, WRITES)


def _tile_accesses(number: int, nest: TileNest) -> Iterator[_TileAccess]:
    axes = frozenset(a.name for a in nest.kernel.axes)
    definitions = nest.kernel.definitions
    for k, loop in enumerate(nest.loops):
        for in_body, statements in ((False, loop.prologue), (True, loop.body)):
            for n, s in enumerate(statements):
                accessed = _accessed(s)
                if accessed is None:
                    continue
                buffer, index = accessed
                if isinstance(s, Load) and s.guard is not None:
                    index = None  # it may run later, when its guard is known
                needed = backward_slice([s], definitions) if isinstance(s, WRITES) else ()
                path = number, k, in_body, n
                yield _TileAccess(s, buffer, index, path, axes, frozenset(needed))


def _tile_precedes(read: _TileAccess, write: _TileAccess) -> bool:
    """Whether no element is read after it is written."""
    if read.path[0] != write.path[0]:
        return read.path[0] < write.path[0]
    if read.index is None or read.index != write.index or read.path > write.path:
        return False
    return read.stmt in write.needed and read.axes <= set(read.index.axes)
