"""Elementary functions over vectors, as LLVM IR text that is inlined into kernels."""

from tofuse.backends.llvm.vector_math.registry import (
    MATH,
    MathSpec,
    math_definitions,
    math_symbol,
)

__all__ = ["MATH", "MathSpec", "math_definitions", "math_symbol"]
