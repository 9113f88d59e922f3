"""Triton text -> machine code, without a GPU, a C compiler or Triton's own driver."""

from __future__ import annotations

import importlib.util
import linecache
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tofuse.errors import CompileError
from tofuse.ir.tile import GpuBinary

Kernel = Callable[..., None]  # a function decorated by Triton


@dataclass(frozen=True)
class Launch:
    """What compiling one function of a text takes: its parameters, and warps a program."""

    function: str
    parameters: tuple[tuple[str, str], ...]
    warps: int


def available() -> bool:
    """Whether triton is installed."""
    return importlib.util.find_spec("triton") is not None


def load(text: str, launches: Sequence[Launch], capability: int) -> Loaded:
    """The functions of a text, compiled when first asked for."""
    return Loaded(functions(text), tuple(launches), capability)


class Loaded:
    """Machine code of a text's functions for any alignment of their arguments."""

    def __init__(
        self, made: dict[str, Kernel], launches: tuple[Launch, ...], capability: int
    ) -> None:
        self.functions, self.launches, self.capability = made, launches, capability

    def binary(self, number: int, divisible: Sequence[bool]) -> GpuBinary:
        """Launch `number`, where those of its arguments are multiples of 16; CompileError."""
        import triton
        from triton.backends.compiler import GPUTarget
        from triton.compiler import ASTSource

        launch = self.launches[number]
        attributes = {(k,): [["tt.divisibility", 16]] for k, d in enumerate(divisible) if d}
        source = ASTSource(
            fn=self.functions[launch.function],
            signature=dict(launch.parameters),
            constexprs={},
            attrs=attributes,
        )
        options = {
            "num_warps": launch.warps,
            # what a backward computes again must be the forward's, of which it has the maximum:
            # which products are rounded may not depend on what else is in a kernel
            "enable_fp_fusion": False,
            "enable_reflect_ftz": False,
        }
        try:
            made = triton.compile(source, GPUTarget("cuda", self.capability, 32), options)
        except Exception as e:  # Triton raises whatever it comes upon
            raise CompileError(f"Triton: {type(e).__name__}: {str(e).strip()[:500]}") from e
        meta = made.metadata
        return GpuBinary(
            made.asm["cubin"], meta.name, 32 * meta.num_warps, meta.shared, made.asm["ptx"]
        )


def functions(text: str) -> dict[str, Kernel]:
    """The functions of a text; Triton reads their source through `linecache`."""
    name = f"<tofuse {zlib.crc32(text.encode()):08x} {len(text)}>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    namespace: dict[str, Kernel] = {"__name__": name}  # type: ignore[dict-item]  # as Python wants
    try:
        exec(compile(text, name, "exec"), namespace)
    except Exception as e:  # whatever Triton raises on import or decoration
        raise CompileError(f"Triton: {type(e).__name__}: {e}") from e
    return namespace
