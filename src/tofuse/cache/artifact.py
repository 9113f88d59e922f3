"""A compiled program as data: its plan and its kernels' machine code by name, to load it again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tofuse.backends.llvm.load import address, bind_functions, bind_threads, load, load_digest
from tofuse.backends.llvm.machine_code import Kept
from tofuse.backends.llvm.parallel_driver import DRIVER
from tofuse.config import Config
from tofuse.cost.machine_source import store_of
from tofuse.ir.plan import Plan
from tofuse.runtime.execute import CompiledPlan, Tensor, load_plan
from tofuse.runtime.gemm_launch import ProductCode, ProductLauncher
from tofuse.runtime.launch import (
    KernelCode,
    Launcher,
    Part,
    find_openmp,
    find_vector_library,
)
from tofuse.runtime.pool import POOL


@dataclass(frozen=True)
class Recorded:
    """What a program for the CPU is made of, where no Python of this process is part of it.

    Of a backward, `others` is how it is compiled for gradients that do not lie as `expected`, by
    their positions among the arguments: pickled, for it is rarely wanted.
    """

    plan: Plan
    codes: tuple[KernelCode | ProductCode, ...]
    constants: tuple[Tensor, ...]
    expected: Mapping[int, tuple[int, ...]] | None = None
    others: bytes = b""

    def load(self, config: Config) -> CompiledPlan:
        """The program; raises CompileError where the code of a kernel was not kept."""
        prepare(config)
        kept = store_of(config)
        kernels = [
            load_kernel(c, kept) if isinstance(c, KernelCode) else load_product(c, kept)
            for c in self.codes
        ]
        (driver,) = load(DRIVER, ["kernel"], kept)
        return load_plan(self.plan, kernels, driver, self.constants, {})


def load_kernel(code: KernelCode, kept: Kept) -> Launcher:
    """A kernel ready to be called; raises CompileError where its code was not kept."""
    names = ["kernel", *(f"kernel.{name}" for name, _ in code.parts)]
    entry, *functions = load_digest(code.text, names, kept)
    shared = [shared for _, shared in code.parts]
    parts = [Part(address(f), s) for f, s in zip(functions, shared, strict=True)]
    return Launcher(code, entry, parts)


def load_product(code: ProductCode, kept: Kept) -> ProductLauncher:
    """A product ready to be called; raises CompileError where its code was not kept."""
    functions = {
        word: address(load_digest(key, [name], kept)[0]) for word, (key, name) in code.texts.items()
    }
    (entry,) = load_digest(code.driver, ["kernel"], kept)
    return ProductLauncher(code, entry, functions)


def prepare(config: Config) -> None:
    """What machine code needs of this process, and the most that the pool of memory holds."""
    bind_threads(find_openmp())
    bind_functions(find_vector_library())
    POOL.limit = config.pool_bytes if config.pool_bytes is not None else POOL.limit
