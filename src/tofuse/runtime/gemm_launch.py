"""Call the code of a matrix product: share the work out, hand out workspace, fill in words."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from tofuse.ir.dims import Dim, evaluate, symbols_of
from tofuse.runtime.launch import Entry, workspace

FLOPS_PER_THREAD = 2_000_000  # about 10 us: less does not pay for a thread


@dataclass(frozen=True)
class Blocking:
    """The kernel's rows and columns, and the bytes of a slab and of a thread's workspace."""

    rows: int
    columns: int
    slab: int
    space: int


@dataclass(frozen=True)
class Layout:
    """What is the same from call to call: the context's words, where tensors begin in bytes, and
    the bytes of workspace."""

    words: tuple[int, ...]
    starts: tuple[int, ...]
    space: int


@dataclass(frozen=True)
class ProductCode:
    """What there is to know of a product to call it.

    `texts` are the digests of the functions that it consists of, `driver` that of what calls them.
    `sizes` gives some of the context's words, `fixed` others; `names` is the order of all.
    Tensors are a, b and c, and the bias if there is one: where each begins, in elements, is in
    `offsets`.
    """

    driver: str
    texts: Mapping[str, tuple[str, str]]  # of a word, the digest and the function's name
    names: tuple[str, ...]
    sizes: Mapping[str, Dim]
    fixed: Mapping[str, int]
    offsets: tuple[Dim, ...]
    blocking: Blocking

    @property
    def symbols(self) -> tuple[str, ...]:
        """The sizes that a call gives."""
        dims = (*self.sizes.values(), *self.offsets)
        return tuple(sorted({s for d in dims for s in symbols_of(d)}))


class ProductLauncher:
    """A product ready to be called with the addresses of its tensors, then its size symbols."""

    def __init__(self, code: ProductCode, entry: Entry, functions: Mapping[str, int]) -> None:
        self.code, self.entry, self.names, self.sizes = code, entry, code.names, code.sizes
        self.fixed = {**code.fixed, **functions}
        self.offsets, self.blocking = code.offsets, code.blocking
        self.symbols = code.symbols
        self.context = ctypes.c_int64 * len(self.names)
        self.space_at = self.names.index("space")
        self.layouts: dict[tuple[int, ...], Layout] = {}

    def __call__(self, *words: int) -> None:
        """Compute c."""
        tensors = len(self.offsets)
        key = (torch.get_num_threads(), *words[tensors:])
        layout = self.layouts.get(key)
        if layout is None:
            if len(self.layouts) >= LAYOUTS:
                self.layouts.clear()
            layout = self.layouts[key] = self._layout(*key)
        context = self.context(*layout.words)
        for k, start in enumerate(layout.starts):
            context[k] = words[k] + start
        if tensors == 3:
            context[3] = context[2]  # read under a mask that is empty: it has to be memory
        context[self.space_at] = workspace(layout.space)
        self.entry(context)

    def _layout(self, most: int, *symbols: int) -> Layout:
        env = dict(zip(self.symbols, symbols, strict=True))
        found = {name: evaluate(d, env) for name, d in self.sizes.items()} | dict(self.fixed)
        m, n, batch = found["m"], found["n"], found.pop("batch")
        flops = 2 * batch * m * n * found["k"] * found["depths"]
        threads = max(1, min(most, flops // FLOPS_PER_THREAD))
        down, across = _grid(m, n, batch, threads, self.blocking)
        m_step = _step(m, down, self.blocking.rows)
        n_step = _step(n, across, self.blocking.columns)
        down, across = -(-m // m_step), -(-n // n_step)
        found |= {
            "tasks": batch * down * across,
            "across": max(1, across),
            "tasks_each": max(1, down * across),
            "m_step": m_step,
            "n_step": n_step,
            "space_each": self.blocking.space,
            "threads": max(1, min(threads, batch * down * across)),
        }
        words = tuple(found.get(name, 0) for name in self.names)
        starts = tuple(4 * evaluate(d, env) for d in self.offsets)
        return Layout(words, starts, self.blocking.space * threads)


def _grid(m: int, n: int, batch: int, threads: int, blocking: Blocking) -> tuple[int, int]:
    """Into how many parts rows and columns are cut: the least work of a thread, packing counted."""

    def cost(down: int) -> float:
        across = -(-threads // (batch * down))
        rows, columns = _step(m, down, blocking.rows), _step(n, across, blocking.columns)
        parts = batch * -(-max(1, m) // rows) * -(-max(1, n) // columns)
        return -(-parts // threads) * (rows * columns + PACKING * (rows + columns))

    wanted = -(-threads // max(1, batch))
    down = min(range(1, wanted + 1), key=cost) if batch else 1
    return down, -(-wanted // down)


def _step(size: int, parts: int, unit: int) -> int:
    """Whole units of a part."""
    return max(unit, -(-size // (parts * unit)) * unit)


LAYOUTS = 64  # kept for sizes met before
PACKING = 8  # what packing an element costs, in turns of the kernel
