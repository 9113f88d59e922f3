"""Compile Triton text to machine code, without a GPU, a C compiler or Triton's own driver."""

from __future__ import annotations

import linecache
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tofuse.backends.cuda.triton.cubin import RegisterUsage, read_register_usage
from tofuse.errors import CompileError
from tofuse.ir.tile import GpuBinary

JitFunction = Callable[..., None]  # the result of `triton.jit`


@dataclass(frozen=True)
class LaunchSpec:
    """What compiling one function requires: its parameters, and warps per instance."""

    parameters: tuple[tuple[str, str], ...]
    warps: int


class TritonModule:
    """Compiles the functions of a text for each alignment of their arguments."""

    def __init__(self, text: str, specs: Sequence[LaunchSpec], capability: int) -> None:
        self.functions, self.specs, self.capability = jit_functions(text), specs, capability
        self.binaries: dict[tuple[int, tuple[bool, ...]], GpuBinary] = {}

    def binary(self, index: int, divisible: tuple[bool, ...]) -> GpuBinary:
        """Return the code of a launch, given which arguments are multiples of 16.

        It is compiled once. Raises CompileError.
        """
        key = index, divisible
        if key not in self.binaries:
            self.binaries[key] = self._compile(index, divisible)
        return self.binaries[key]

    def register_usage(self, index: int, divisible: tuple[bool, ...]) -> RegisterUsage:
        """Return the registers and the stack of the code of a launch. Raises CompileError."""
        return read_register_usage(self.binary(index, divisible).code)

    def _compile(self, index: int, divisible: Sequence[bool]) -> GpuBinary:
        import triton
        from triton.backends.compiler import GPUTarget
        from triton.compiler import ASTSource

        spec = self.specs[index]
        attributes = {(k,): [["tt.divisibility", 16]] for k, d in enumerate(divisible) if d}
        source = ASTSource(
            fn=self.functions[f"k{index}"],
            signature=dict(spec.parameters),
            constexprs={},
            attrs=attributes,
        )
        options = {
            "num_warps": spec.warps,
            # A backward kernel that recomputes a value must get the same bits as the forward, so
            # whether a product is rounded must not depend on the rest of the kernel.
            "enable_fp_fusion": False,
            "enable_reflect_ftz": False,
        }
        try:
            compiled = triton.compile(source, GPUTarget("cuda", self.capability, 32), options)
        except Exception as e:  # Triton raises errors of many types
            raise CompileError(f"Triton: {type(e).__name__}: {str(e).strip()[:500]}") from e
        metadata = compiled.metadata
        return GpuBinary(
            compiled.asm["cubin"],
            metadata.name,
            32 * metadata.num_warps,
            metadata.shared,
            compiled.asm["ptx"],
        )


def triton_version() -> str:
    """Return the release of Triton; nothing if it is not installed."""
    try:
        import triton
    except ImportError:
        return ""
    return str(triton.__version__)


def jit_functions(text: str) -> dict[str, JitFunction]:
    """Return the functions of a text; Triton reads their source through `linecache`."""
    name = f"<tofuse {zlib.crc32(text.encode()):08x} {len(text)}>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    namespace: dict[str, JitFunction] = {"__name__": name}  # type: ignore[dict-item]  # for `exec`
    try:
        exec(compile(text, name, "exec"), namespace)
    except Exception as e:  # errors of import and decoration have many types
        raise CompileError(f"Triton: {type(e).__name__}: {e}") from e
    return namespace
