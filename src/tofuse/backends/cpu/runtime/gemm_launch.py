"""Launch a matrix product: divide the work among threads, provide workspace, pack arguments."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from tofuse.backends.cpu.runtime.launch import workspace
from tofuse.cost.thresholds import PACKED_ELEMENT_COST, PRODUCT_FLOPS_PER_THREAD
from tofuse.ir.dims import Dim, evaluate, symbols_of
from tofuse.ir.machine_function import Entry, function_address

BIAS_IN_PLACE = 2  # as the word `has_bias`, see `backends/cpu/llvm/matmul/gemm_context.py`


@dataclass(frozen=True)
class _CallTemplate:
    """The parts of a call that depend on sizes and threads alone.

    The words of the context, the bytes from each tensor's address to its start, and the bytes of
    workspace.
    """

    words: tuple[int, ...]
    starts: tuple[int, ...]
    workspace: int


@dataclass(frozen=True)
class GemmCode:
    """The data needed to load and call a matrix product; code is found by the digest of its text.

    `driver` is the digest of the entry, `functions` those of the functions it calls. `word_names`
    orders the context's words; `sizes` gives some of them by name, and the columns of the
    microkernel. `offsets` are the starts, in elements, of the tensors a, b and c, and of the bias
    if there is one.
    """

    driver: str
    functions: Mapping[str, tuple[str, str]]  # a word's name -> (digest, function name)
    word_names: tuple[str, ...]
    sizes: Mapping[str, Dim]
    offsets: tuple[Dim, ...]

    @property
    def symbols(self) -> tuple[str, ...]:
        """The size symbols that are arguments of a call."""
        dims = (*self.sizes.values(), *self.offsets)
        return tuple(sorted({s for d in dims for s in symbols_of(d)}))


class GemmLauncher:
    """A product that can be called with the addresses of its tensors, then its size symbols."""

    host_seeds: tuple[int, ...] = ()

    def __init__(self, code: GemmCode, entry: Entry, functions: Mapping[str, Entry]) -> None:
        self.code, self.entry, self.names, self.functions = code, entry, code.word_names, functions
        self.addresses = {word: function_address(f) for word, f in functions.items()}
        self.sizes, self.offsets, self.symbols = code.sizes, code.offsets, code.symbols
        self.make_context = ctypes.c_int64 * len(self.names)
        self.workspace_word = self.names.index("workspace")
        self.bias_word = self.names.index("has_bias")
        self.template = functools.lru_cache(MAX_TEMPLATES)(self._make_template)

    def __call__(self, *words: int) -> None:
        """Compute c."""
        tensors = len(self.offsets)
        template = self.template(torch.get_num_threads(), *words[tensors:])
        context = self.make_context(*template.words)
        for k, start in enumerate(template.starts):
            context[k] = words[k] + start
        if tensors == 3:
            context[3] = context[2]  # no bias: the masked load needs a valid address
        elif context[3] == context[2]:
            context[self.bias_word] = BIAS_IN_PLACE
        context[self.workspace_word] = workspace(template.workspace)
        self.entry(context)

    def _make_template(self, max_threads: int, *symbols: int) -> _CallTemplate:
        env = dict(zip(self.symbols, symbols, strict=True))
        values = {name: evaluate(d, env) for name, d in self.sizes.items()}
        m, n, batch = values["m"], values["n"], values["batch"]
        unit = (values["rows"], values["columns"])
        flops = 2 * batch * m * n * values["k"] * values["depths"]
        threads = max(1, min(max_threads, flops // PRODUCT_FLOPS_PER_THREAD))
        down, across = _grid(m, n, batch, threads, unit)
        m_step, n_step = _step(m, down, unit[0]), _step(n, across, unit[1])
        down, across = -(-m // m_step), -(-n // n_step)
        values |= {
            **self.addresses,
            "tasks": batch * down * across,
            "across": max(1, across),
            "tasks_per_product": max(1, down * across),
            "m_step": m_step,
            "n_step": n_step,
            "threads": max(1, min(threads, batch * down * across)),
        }
        words = tuple(values.get(name, 0) for name in self.names)
        starts = tuple(4 * evaluate(d, env) for d in self.offsets)
        return _CallTemplate(words, starts, values["workspace_per_thread"] * threads)


def _grid(m: int, n: int, batch: int, threads: int, unit: tuple[int, int]) -> tuple[int, int]:
    """Return into how many tiles rows and columns are divided, for the least work of a thread.

    The work includes packing. `unit` has the rows and columns of the microkernel.
    """

    def cost(down: int) -> float:
        across = -(-threads // (batch * down))
        rows, columns = _step(m, down, unit[0]), _step(n, across, unit[1])
        tiles = batch * -(-max(1, m) // rows) * -(-max(1, n) // columns)
        return -(-tiles // threads) * (rows * columns + PACKED_ELEMENT_COST * (rows + columns))

    wanted = -(-threads // max(1, batch))
    down = min(range(1, wanted + 1), key=cost) if batch else 1
    return down, -(-wanted // down)


def _step(size: int, tiles: int, unit: int) -> int:
    """Return the extent of a tile, a multiple of `unit`."""
    return max(unit, -(-size // (tiles * unit)) * unit)


MAX_TEMPLATES = 64  # for different sizes
