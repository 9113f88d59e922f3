"""Vector math: elementary functions as IR text that is inlined, or as calls of a vector library."""

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
