"""Which output buffers of a nest may share memory with its inputs."""

from __future__ import annotations

from dataclasses import dataclass

from tofuse.ir.kernel import AffineExpr, Gather, Load, Stmt, Store, Uniform
from tofuse.ir.nest import For, Nest, Node, StmtNode


@dataclass(frozen=True)
class _Access:
    """An access to a buffer. Its index is None if it may be any element.

    `path` has the positions of the statement and of the loops around it, whose axes are
    `outer_axes`, from the outside in.
    """

    index: AffineExpr | None
    path: tuple[int, ...]
    outer_axes: tuple[str, ...]
    in_prologue: bool


def legal_aliases(nest: Nest) -> tuple[tuple[int, int], ...]:
    """Return the positions (read, written) of buffers of one type that may share memory."""
    positions = {b.name: k for k, b in enumerate(nest.kernel.buffers)}
    dtypes = {b.name: b.dtype for b in nest.kernel.buffers}
    pairs = [
        (positions[r], positions[w])
        for w, r in legal_aliases_by_name(nest)
        if dtypes[r] == dtypes[w]
    ]
    return tuple(sorted(pairs, key=lambda pair: pair[::-1]))


def legal_aliases_by_name(nest: Nest) -> frozenset[tuple[str, str]]:
    """Return the pairs (written, read) of buffers that may share memory.

    They may if each element is read for the last time before it is written: every read precedes
    the write in the loops around both, and each iteration of these accesses another element.
    """
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
        if all(_reads_precede_write(r, w) for r in reads.get(read, []) for w in stores)
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
            found = writes if isinstance(node.stmt, Store) else reads
            access = _Access(index, node_path, outer_axes, in_prologue)
            found.setdefault(buffer, []).append(access)


def _accessed(stmt: Stmt) -> tuple[str, AffineExpr | None] | None:
    """Return the buffer that a statement accesses, and the index or None for any element."""
    match stmt:
        case Load() | Store():
            return stmt.buffer, stmt.index
        case Gather():
            return stmt.buffer, None
        case Uniform():  # each thread reads the seed first, for its keys
            return stmt.seed, None
    return None


def _reads_precede_write(read: _Access, write: _Access) -> bool:
    """Whether no element is read after it is written."""
    if read.path[0] < write.path[0]:
        return True  # an earlier phase
    if read.index != write.index or read.path > write.path or read.in_prologue or write.in_prologue:
        return False
    assert read.index is not None
    common = 0  # loops around both; a path has the phase, prologue or body, then one number a loop
    for a, b in zip(read.path[2:-1], write.path[2:-1], strict=False):
        if a != b:
            break
        common += 1
    band = len(write.outer_axes) - (len(write.path) - 3)
    common_axes = write.outer_axes[: band + common]
    return set(common_axes) <= set(read.index.axes)
