"""tofuse: a fusing just-in-time compiler for PyTorch that says why it fused or not."""

from tofuse.api import compile, empty_cache, explain, memory_stats
from tofuse.errors import (
    CaptureError,
    CompileError,
    OptionError,
    ParseError,
    TofuseError,
    UnsupportedError,
    VerifyError,
)

__all__ = [
    "CaptureError",
    "CompileError",
    "OptionError",
    "ParseError",
    "TofuseError",
    "UnsupportedError",
    "VerifyError",
    "compile",
    "empty_cache",
    "explain",
    "memory_stats",
]
