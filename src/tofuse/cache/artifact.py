"""A compiled program as data: its plan and its kernels' machine code by name, to load it again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tofuse.backends.llvm.load import (
    bind_openmp,
    bind_vector_library,
    function_address,
    load,
    load_by_digest,
)
from tofuse.backends.llvm.machine_code import CodeStore
from tofuse.backends.llvm.parallel_driver import PARALLEL_DRIVER
from tofuse.config import Config
from tofuse.cost.machine_source import store_of
from tofuse.ir.plan import Plan
from tofuse.runtime.execute import CompiledPlan, Tensor, load_plan
from tofuse.runtime.gemm_launch import GemmCode, GemmLauncher
from tofuse.runtime.launch import (
    KernelCode,
    KernelPart,
    Launcher,
    find_openmp,
    find_vector_library,
)
from tofuse.runtime.pool import POOL


@dataclass(frozen=True)
class Artifact:
    """What a program for the CPU is made of, where no Python of this process is part of it.

    Of a backward, `others` is how it is compiled for gradients that do not lie as `expected`, by
    their positions among the arguments: pickled, for it is rarely wanted.
    """

    plan: Plan
    codes: tuple[KernelCode | GemmCode, ...]
    constants: tuple[Tensor, ...]
    expected: Mapping[int, tuple[int, ...]] | None = None
    others: bytes = b""

    def load(self, config: Config) -> CompiledPlan:
        """The program; raises CompileError where the code of a kernel was not kept."""
        bind_runtime(config)
        kept = store_of(config)
        kernels = [
            load_kernel(c, kept) if isinstance(c, KernelCode) else load_product(c, kept)
            for c in self.codes
        ]
        (driver,) = load(PARALLEL_DRIVER, ["kernel"], kept)
        return load_plan(self.plan, kernels, driver, self.constants, {})


def load_kernel(code: KernelCode, kept: CodeStore) -> Launcher:
    """A kernel ready to be called; raises CompileError where its code was not kept."""
    names = ["kernel", *(f"kernel.{name}" for name, _ in code.parts)]
    entry, *functions = load_by_digest(code.text_digest, names, kept)
    shared = [shared for _, shared in code.parts]
    parts = [KernelPart(function_address(f), s) for f, s in zip(functions, shared, strict=True)]
    return Launcher(code, entry, parts)


def load_product(code: GemmCode, kept: CodeStore) -> GemmLauncher:
    """A product ready to be called; raises CompileError where its code was not kept."""
    functions = {
        word: function_address(load_by_digest(key, [name], kept)[0])
        for word, (key, name) in code.functions.items()
    }
    (entry,) = load_by_digest(code.driver, ["kernel"], kept)
    return GemmLauncher(code, entry, functions)


def bind_runtime(config: Config) -> None:
    """What machine code needs of this process, and the most that the pool of memory holds."""
    bind_openmp(find_openmp())
    bind_vector_library(find_vector_library())
    POOL.limit = config.pool_bytes if config.pool_bytes is not None else POOL.limit
