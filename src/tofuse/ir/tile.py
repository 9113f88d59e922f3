"""TileProgram: a kernel as Triton program instances, each of which computes a block per tile."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

from tofuse.ir.affine import AffineExpr
from tofuse.ir.dims import Dim, evaluate, product, symbols_of
from tofuse.ir.kernel import Buffer, Kernel, Reduce, Stmt, Uniform, show_stmt
from tofuse.ir.types import DType

LOOPED = ("loop", "split")  # roles of the tile that a program instance loops over


@dataclass(frozen=True)
class Tile:
    """Axes collapsed into one, outermost first, and divided into blocks of `block` elements.

    `role` says which blocks a program instance computes: "grid", one; "whole", the only one;
    "loop", all of them in a loop; "split", its share of them in a loop.
    """

    axes: tuple[str, ...]
    block: int
    role: str

    def __repr__(self) -> str:
        return f"{self.role} {','.join(self.axes)}/{self.block}"


@dataclass(frozen=True)
class Tiling:
    """The tiles (the contiguous one last), warps per program instance, and splits of the loop.

    `stages` is how many iterations of the loop load their operands ahead. Consecutive program
    instances compute `swizzle` blocks of the first tile before the next block of the second:
    they share what they read in the L2 cache.
    """

    tiles: tuple[Tile, ...]
    warps: int
    splits: int = 1
    stages: int = 1
    swizzle: int = 1

    @property
    def loop_tile(self) -> Tile | None:
        """The tile that a program instance loops over."""
        return next((t for t in self.tiles if t.role in LOOPED), None)

    def __repr__(self) -> str:
        parts = [*map(repr, self.tiles), f"warps {self.warps}"]
        parts += [f"splits {self.splits}"] if self.splits > 1 else []
        parts += [f"stages {self.stages}"] if self.stages > 1 else []
        return "; ".join(parts + ([f"swizzle {self.swizzle}"] if self.swizzle > 1 else []))


@dataclass(frozen=True)
class TilingChoice:
    """The tilings of a kernel's first launches; the heuristics choose those of later launches.

    With `separate`, reductions over different axes are separate launches.
    """

    tilings: tuple[Tiling, ...] = ()
    separate: bool = False

    def __repr__(self) -> str:
        return " | ".join([*(["separate"] if self.separate else []), *map(repr, self.tilings)])


@dataclass(frozen=True)
class GpuTarget:
    """The GPU to generate code for. `capability` is the compute capability, such as 90."""

    multiprocessors: int = 132
    capability: int = 90

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a multiprocessor (CUDA programming guide, "Compute Capabilities")."""
        return 1024 * SHARED_KILOBYTES.get(self.capability, 100)

    @property
    def l2_bytes(self) -> int:
        """Return the bytes of the L2 cache of a common card."""
        return L2_MEGABYTES.get(self.capability, 40) << 20


L2_MEGABYTES = {80: 40, 89: 72, 90: 50, 100: 126, 103: 126}  # data sheets
SHARED_KILOBYTES = {80: 164, 87: 164, 90: 228, 100: 228, 103: 228}


def draws_halves(element_bytes: int) -> bool:
    """Return whether a thread draws all eight booleans of a counter: those of 16 bytes."""
    return element_bytes <= 2


@dataclass(frozen=True)
class GpuBinary:
    """Machine code of a GPU kernel.

    `name` is its symbol, `threads` and `shared` (bytes of shared memory) are per program instance.
    """

    code: bytes
    name: str
    threads: int
    shared: int
    text: str  # the assembly that `code` was assembled from


@dataclass(frozen=True)
class Partial:
    """Where the program instances of a split store their partial results of a reduction.

    argmax and argmin store the position in `buffer` and the extreme value in `best`.
    """

    buffer: str
    index: AffineExpr
    step: Dim  # elements between the partial results of consecutive splits
    best: str | None = None


@dataclass(frozen=True)
class Contraction:
    """A matrix product: the sum `total` of the value `product`, of two factors.

    The left factor has the rows, the right one the columns. Both are rounded to `dtype`.
    """

    total: Reduce
    product: str
    left: str
    right: str
    dtype: DType

    def transposed(self) -> Contraction:
        return replace(self, left=self.right, right=self.left)


@dataclass(frozen=True)
class RowAlignment:
    """How rows along `tile` are divided, where they begin at addresses that are not aligned.

    `start` is the index of a row's first element in some buffer; addresses of multiples of
    `elements` are aligned. From the first such index on, as many elements as fill whole vectors
    are in blocks of the tile. The elements before and after them are the *edge* of the row.
    """

    tile: Tile
    start: AffineExpr
    elements: int


@dataclass(frozen=True, eq=False)
class TileLoop:
    """Statements before a loop over the looped tile, its body, and the reductions it computes."""

    prologue: tuple[Stmt, ...]
    body: tuple[Stmt, ...] = ()
    reductions: tuple[Reduce, ...] = ()


@dataclass(frozen=True, eq=False)
class TileNest:
    """The kernel of one launch."""

    kernel: Kernel
    tiling: Tiling
    loops: tuple[TileLoop, ...]
    partials: dict[str, Partial] = field(default_factory=dict)
    bounds: Mapping[str, int] = field(default_factory=dict)  # on size symbols, where known
    contractions: tuple[Contraction, ...] = ()
    alignment: RowAlignment | None = None

    def extent(self, tile: Tile) -> Dim:
        return product(self.kernel.extent(a) for a in tile.axes)

    def instance_count(self, sizes: Mapping[str, int]) -> int:
        """Return the number of program instances to launch."""
        count = self.tiling.splits
        for t in self.tiling.tiles:
            if t.role == "grid":
                count *= -(-evaluate(self.extent(t), sizes) // t.block)
        return count


def stream_symbols(kernel: Kernel) -> frozenset[str]:
    """Return the size symbols that choose streams of random numbers."""
    streams = (s.stream for s in kernel.body if isinstance(s, Uniform))
    return frozenset(symbol for stream in streams for symbol in symbols_of(stream))


def _instance_count(nest: TileNest) -> int | InstanceCount:
    """Return the number of program instances, or how it follows from the sizes."""
    if any(symbols_of(a.extent) for a in nest.kernel.axes):
        return nest.instance_count
    return nest.instance_count({})


@dataclass(frozen=True)
class Workspace:
    """A temporary buffer that one launch writes and the next reads."""

    name: str
    dtype: DType
    elements: Dim


InstanceCount = Callable[[Mapping[str, int]], int]  # from the sizes


@dataclass(frozen=True, eq=False)
class GpuCall:
    """How GPU code is called: with `words`, which are addresses of `buffers`, and sizes.

    The last words are `symbols`. The sizes of workspaces follow from them, and so does the number
    of program instances; `instances` has an entry for each launch. The code may be compiled for
    `aligned_sizes` that are multiples of 16.
    """

    name: str
    words: tuple[str, ...]
    symbols: tuple[str, ...]
    buffers: tuple[Buffer, ...]
    seeds: frozenset[str]
    workspaces: tuple[Workspace, ...]
    aligned_sizes: frozenset[str]
    instances: tuple[int | InstanceCount, ...]

    def aligned(self, names: Sequence[str]) -> tuple[bool, ...]:
        """Return which parameters the code for aligned tensors takes as multiples of 16.

        These are addresses and sizes, but no scalars in CPU memory and no numbers of random
        streams. The last two parameters are the flag's address and the number to store there.
        """
        words = {*self.aligned_sizes, *(w.name for w in self.workspaces)}
        words |= {b.name for b in self.buffers}
        return (*(name in words for name in names[:-2]), True, False)


@dataclass(frozen=True, eq=False)
class TileProgram:
    """The GPU code of a region: one launch, or several with workspaces between them.

    `choice` has the tilings of all launches.
    """

    kernel: Kernel
    nests: tuple[TileNest, ...]
    workspaces: tuple[Workspace, ...]
    choice: TilingChoice = TilingChoice()

    @property
    def call(self) -> GpuCall:
        kernel = self.kernel
        return GpuCall(
            kernel.name,
            (*(b.name for b in kernel.buffers), *kernel.symbols),
            kernel.symbols,
            kernel.buffers,
            kernel.seeds,
            self.workspaces,
            frozenset(kernel.symbols) - stream_symbols(kernel),
            tuple(map(_instance_count, self.nests)),
        )

    @property
    def loops_text(self) -> str:
        """The text of the launches, with those kernels that are not the program's."""
        lines = [f"workspace {w.name}: {w.dtype.value}[{w.elements}]" for w in self.workspaces]
        if self.choice != TilingChoice(tuple(nest.tiling for nest in self.nests)):
            lines.append(f"choice {self.choice!r}".rstrip())
        for nest in self.nests:
            lines += [] if nest.kernel is self.kernel else [repr(nest.kernel)]
            lines += _show_nest(nest)
        return "\n".join(lines)

    def __repr__(self) -> str:
        """Return the text of the kernel and of its launches, which `parse_tile` accepts."""
        return f"{self.kernel!r}\n{self.loops_text}"


def _show_nest(nest: TileNest) -> list[str]:
    """Return the lines of a launch."""
    lines = [f"launch {nest.kernel.name}: {nest.tiling!r}"]
    if nest.bounds:
        lines.append(f"  bounds {' '.join(f'{s}={n}' for s, n in nest.bounds.items())}")
    if (rows := nest.alignment) is not None:
        lines.append(f"  rows of {rows.tile!r} from [{rows.start!r}] aligned to {rows.elements}")
    for c in nest.contractions:
        factors = f"{c.left} * {c.right} in {c.dtype.value}"
        lines.append(f"  contraction {c.total.name} of {c.product} = {factors}")
    for k, loop in enumerate(nest.loops, 1):
        lines += [f"  {show_stmt(s)}" for s in loop.prologue]
        is_last = k == len(nest.loops) and (k == 1 or loop.prologue)
        if loop.body or not is_last:  # the line separates this loop from the next one
            reduces = f" reduces {','.join(r.name for r in loop.reductions)}"
            lines.append(f"  for {nest.tiling.loop_tile!r}{reduces if loop.reductions else ''}:")
            lines += [f"    {show_stmt(s)}" for s in loop.body]
    for name, p in nest.partials.items():
        best = "" if p.best is None else f" best {p.best}"
        lines.append(f"  partial {name} in {p.buffer}[{p.index!r}] step {p.step}{best}")
    return lines


@dataclass(frozen=True, eq=False)
class TileGroup:
    """Calls of one tile program that share its launches, each with sizes of its own.

    Call number t names its buffers and workspaces `t<t>_<name>`.
    """

    program: TileProgram
    sizes: tuple[tuple[int, ...], ...]

    @property
    def call(self) -> GpuCall:
        one, calls = self.program.call, range(len(self.sizes))
        environments = self.environments
        return GpuCall(
            f"{one.name} and {len(calls) - 1} more",
            tuple(call_name(t, word) for t in calls for word in one.words),
            (),
            tuple(replace(b, name=call_name(t, b.name)) for t in calls for b in one.buffers),
            frozenset(call_name(t, name) for t in calls for name in one.seeds),
            tuple(
                Workspace(call_name(t, w.name), w.dtype, evaluate(w.elements, environments[t]))
                for t in calls
                for w in one.workspaces
            ),
            frozenset(),
            tuple(self.first_instances(k)[-1] for k in range(len(self.program.nests))),
        )

    @property
    def environments(self) -> list[dict[str, int]]:
        """The values of the size symbols in each call."""
        symbols = self.program.kernel.symbols
        return [dict(zip(symbols, sizes, strict=True)) for sizes in self.sizes]

    def first_instances(self, k: int) -> list[int]:
        """Return the first program instance of each call in launch `k`, and their number."""
        counts = map(self.program.nests[k].instance_count, self.environments)
        return list(accumulate(counts, initial=0))


def call_name(t: int, name: str) -> str:
    """Return the name of a buffer, workspace or parameter in call `t` of a group."""
    return f"t{t}_{name}"
