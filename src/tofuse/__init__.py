"""tofuse: a fusing just-in-time compiler for PyTorch that says why it fused or not."""

from tofuse.api import compile, explain
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
    "explain",
]
