"""Elementary functions over vectors: IR text that is inlined into kernels, or a library's."""

from tofuse.backends.llvm.vector_math.registry import (
    MATH,
    MathSpec,
    math_definitions,
    math_symbol,
)
from tofuse.backends.llvm.vector_math.vector_library import (
    LIBRARY,
    PREFIX,
    library_definition,
    library_symbols,
)

__all__ = [
    "LIBRARY",
    "MATH",
    "PREFIX",
    "MathSpec",
    "library_definition",
    "library_symbols",
    "math_definitions",
    "math_symbol",
]
