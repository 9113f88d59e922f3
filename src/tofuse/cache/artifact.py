"""Artifact: a compiled program as data, a plan and the digests of its kernels' machine code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tofuse.backends.code_library import CodeLibrary
from tofuse.backends.cpu.llvm.load import CODE
from tofuse.backends.cpu.llvm.parallel_driver import PARALLEL_DRIVER
from tofuse.backends.cpu.runtime.gemm_launch import GemmCode, GemmLauncher
from tofuse.backends.cpu.runtime.group_launch import DRIVER_FUNCTIONS, DriverFunctions
from tofuse.backends.cpu.runtime.launch import (
    KernelCode,
    Launcher,
    find_openmp,
    find_vector_library,
)
from tofuse.backends.cpu.runtime.pool import POOL
from tofuse.config import Config
from tofuse.cost.call_overhead import COMPILED_IS_FASTER, Prediction
from tofuse.disk_store import Store, store_of
from tofuse.ir.plan import Plan
from tofuse.runtime.execute import CompiledPlan, PlanCode, Tensor, load_plan


@dataclass(frozen=True)
class Artifact:
    """A compiled CPU program that contains no Python objects of this process.

    For a backward, `tangent_strides` are the assumed strides of its tangents, by argument
    position. For other strides it is recompiled from the pickled `tangent_layouts`. `prediction`:
    whether it is faster than eager. `has_fixed_bits`: no schedule changes the bits of a result.
    """

    plan: Plan
    plan_code: PlanCode
    codes: tuple[KernelCode | GemmCode, ...]
    constants: tuple[Tensor, ...]
    tangent_strides: Mapping[int, tuple[int, ...]] | None = None
    tangent_layouts: bytes = b""
    prediction: Prediction = COMPILED_IS_FASTER
    has_fixed_bits: bool = True

    def load(self, config: Config) -> CompiledPlan:
        """Return the program. Raises CompileError if the machine code of a kernel is missing."""
        bind_runtime(config)
        store = store_of(config)
        kernels = [load_code(c, store, CODE) for c in self.codes]
        driver = DriverFunctions(*CODE.load(PARALLEL_DRIVER, DRIVER_FUNCTIONS, store))
        return load_plan(self.plan, kernels, driver, self.constants, {}, code=self.plan_code)


def load_code(
    code: KernelCode | GemmCode, store: Store, library: CodeLibrary
) -> Launcher | GemmLauncher:
    """Return the launcher of a kernel. Raises CompileError if its machine code is missing."""
    if isinstance(code, GemmCode):
        called = {
            word: library.load_by_digest(key, [name], store)[0]
            for word, (key, name) in code.functions.items()
        }
        (entry,) = library.load_by_digest(code.driver, ["kernel"], store)
        return GemmLauncher(code, entry, called)
    names = ["kernel", *(f"kernel.{name}" for name, _ in code.parts)]
    entry, *parts = library.load_by_digest(code.text_digest, names, store)
    return Launcher(code, entry, parts)


def bind_runtime(config: Config) -> None:
    """Bind the libraries that machine code calls, and set the limit of the memory pool."""
    CODE.bind_openmp(find_openmp())
    CODE.bind_vector_library(find_vector_library())
    if config.pool_bytes is not None:
        POOL.limit = config.pool_bytes
