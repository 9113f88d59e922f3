"""Launch a group of kernels tile by tile; each thread holds the rows of a tile in scratch."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import torch

from tofuse.analysis.tile_ranges import GroupRows, TileRanges, tile_chunks
from tofuse.backends.cpu.runtime.group_launch import HEADER_WORDS, TASK_WORDS
from tofuse.backends.cpu.runtime.launch import Launcher, workspace
from tofuse.cost.machine import CACHE_LINE
from tofuse.cost.thresholds import WORK_PER_THREAD
from tofuse.ir.dims import evaluate, size_hint
from tofuse.ir.machine_function import Entry, function_address
from tofuse.ir.plan import Launch, Tiles
from tofuse.ir.row_access import Interval

MAX_TEMPLATES = 4  # for different threads
MOVE_WORDS, COPY_WORDS, PART_WORDS = 3, 3, 5  # see `backends/cpu/llvm/tile_driver.py`


@dataclass(frozen=True, eq=False)
class _CallTemplate:
    """The driver's argument block without addresses, for some threads.

    `areas` are the positions of the threads' areas. `tables` keeps the tables' memory alive.
    """

    block: list[int]
    areas: list[int]
    tables: Sequence[object]


class TileLauncher:
    """Kernels that are called together, with the words of all kernels one after the other.

    The words of tensors that are in scratch only are passed, but not read.
    """

    def __init__(
        self,
        driver: Entry,
        tile_function: Entry,
        kernels: Sequence[Launcher],
        launches: Sequence[Launch],
        tiles: Tiles,
    ) -> None:
        self.driver, self.tile_function = driver, tile_function
        self.kernels, self.launches, self.tiles = list(kernels), list(launches), tiles
        self.names = [s.name for s in tiles.scratch]
        self.ranges = GroupRows(launches, tiles.rows, self.names)
        # an area has the address of the scratch, those of its tensors, then the kernels' contexts
        self.starts: list[int] = []
        words = 1 + len(self.names)
        for kernel in kernels:
            self.starts.append(words)
            words += kernel.context_words
        self.area_words = words
        self.scratch_offsets: dict[str, int] = {}
        self.scratch_bytes = 0
        for s in tiles.scratch:
            self.scratch_offsets[s.name] = self.scratch_bytes
            self.scratch_bytes += s.nbytes
        self.limits = {s.name: s.nbytes - 2 * CACHE_LINE for s in tiles.scratch}
        self.workspaces = [size_hint(k.workspace_bytes) for k in kernels]
        self.thread_bytes = self.scratch_bytes + sum(self.workspaces)
        self.template = functools.lru_cache(MAX_TEMPLATES)(self._make_template)

    def __call__(self, *words: int) -> None:
        """Run the kernels."""
        work = sum(evaluate(k.elements, {}) * k.work for k in self.kernels)
        threads = max(1, min(torch.get_num_threads(), int(work / WORK_PER_THREAD)))
        template = self.template(threads)
        filled = template.block.copy()
        base = workspace(self.thread_bytes * threads)
        contexts = self._contexts(words, base, threads)
        for thread, position in enumerate(template.areas):
            area = contexts.copy()
            area[0] = base + thread * self.scratch_bytes
            filled[position : position + self.area_words] = area
        block = (ctypes.c_int64 * len(filled))(*filled)
        address = ctypes.addressof(block)
        header = HEADER_WORDS + TASK_WORDS
        block[header - 1] = address + 8 * header
        block[header + 2] = address + 8 * template.areas[0]
        self.driver(block)

    def _contexts(self, words: Sequence[int], base: int, threads: int) -> list[int]:
        """Return the words of an area, without the address of the scratch."""
        area = [0] * self.area_words
        first, place = 0, base + threads * self.scratch_bytes
        addresses: dict[str, int] = {}
        for kernel, launch, start, space in zip(
            self.kernels, self.launches, self.starts, self.workspaces, strict=True
        ):
            count = kernel.buffers + len(kernel.symbols)
            own = words[first : first + count]
            addresses |= zip((t.tensor for t in launch.tensors), own, strict=False)
            area[start : start + count + 2] = *own, place, threads
            first, place = first + count, place + threads * space
        area[1 : 1 + len(self.names)] = (addresses[n] for n in self.names)
        return area

    def _make_template(self, threads: int) -> _CallTemplate:
        count, limits = self.tiles.count, self.limits
        chunks = tile_chunks(count, self.tiles.chunks)
        tiles = [t for numbers in chunks for t in self.ranges.tiles(numbers, count, limits)]
        before: list[TileRanges | None] = [None, *tiles]
        steps = (  # of each tile, with the words of one
            (MOVE_WORDS, [self._moves(t) for t in tiles]),
            (COPY_WORDS, [self._copies(t, b) for t, b in zip(tiles, before, strict=False)]),
            (PART_WORDS, [self._parts(t) for t in tiles]),
        )
        tables = [_table(of_tiles) for _, of_tiles in steps]
        places = [ctypes.addressof(table) for table in tables]
        rows: list[int] = []
        for k in range(count):
            for n, (size, of_tiles) in enumerate(steps):
                rows += places[n], len(of_tiles[k]) // size
                places[n] += 8 * len(of_tiles[k])
        bounds = _table([(x.start, x.stop) for x in chunks])
        function = function_address(self.tile_function)
        row_table = _table([rows])
        task_table = _table([(function, 0, k, len(chunks)) for k in range(len(chunks))])
        block = [1, threads, 0, len(chunks), ctypes.addressof(task_table), 0]
        block += ctypes.addressof(bounds), ctypes.addressof(row_table)
        block += 0, 8 * self.area_words, threads
        areas = [len(block) + k * self.area_words for k in range(threads)]
        block += [0] * (threads * self.area_words)
        return _CallTemplate(block, areas, (*tables, bounds, row_table, task_table))

    def _moves(self, tile: TileRanges) -> list[int]:
        """Return the words of a tile's moves: where its kernels find the tensors in scratch."""
        words: list[int] = []
        for n, (name, offset) in enumerate(self.scratch_offsets.items()):
            source, shift = 1 + n, 0  # the tensor's own memory
            assert tile.windows[name] is not None or self.tiles.scratch[n].is_allocated
            if (window := tile.windows[name]) is not None:
                source, shift = 0, offset - _first_line(window)
            for launch, start in zip(self.launches, self.starts, strict=True):
                for k, t in enumerate(launch.tensors):
                    if t.tensor == name:
                        words += 8 * (start + k), 8 * source, shift
        return words

    def _copies(self, tile: TileRanges, before: TileRanges | None) -> list[int]:
        """Return the words of copies of what the tile before has left, to the start of scratch."""
        words: list[int] = []
        for name, (first, end) in tile.kept.items():
            window, old = tile.windows[name], before.windows[name] if before else None
            assert window is not None and old is not None  # only rows in scratch are kept
            offset = self.scratch_offsets[name] + first
            target, source = offset - _first_line(window), offset - _first_line(old)
            if target != source:
                words += target, source, -(-(end - first) // CACHE_LINE)
        return words

    def _parts(self, tile: TileRanges) -> list[int]:
        """Return the words of a tile's parts of kernels."""
        words: list[int] = []
        for kernel, rows, start, iterations in zip(
            self.kernels, self.tiles.rows, self.starts, tile.iterations, strict=True
        ):
            ((function, _),) = kernel.parts
            for first, end in iterations:
                whole = rows.iterations * rows.inner
                words += function, 8 * start, first * rows.inner, end * rows.inner, whole
        return words


def _first_line(window: Interval) -> int:
    """Return the first byte of the cache line in which a window begins."""
    return window[0] - window[0] % CACHE_LINE


def _table(rows: Sequence[Sequence[int]]) -> ctypes.Array[ctypes.c_int64]:
    words = list(chain.from_iterable(rows))
    return (ctypes.c_int64 * max(1, len(words)))(*words)
