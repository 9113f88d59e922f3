"""tofuse: a fusing just-in-time compiler for PyTorch that says why it fused or not."""

from tofuse.api import compile, empty_cache, explain, memory_efficient_fusion, memory_stats
from tofuse.driver.bisect import Culprit, bisect
from tofuse.driver.calibration import calibrate
from tofuse.driver.recompiles import explain_recompiles
from tofuse.errors import (
    CaptureError,
    CompileError,
    DefinitionError,
    OptionError,
    ParseError,
    TofuseError,
    TofuseWarning,
    UnsupportedError,
    VerifyError,
)
from tofuse.executors import register_executor, unregister_executor
from tofuse.frontends.datatypes import DataType
from tofuse.frontends.fusion_definition import Fusion, FusionDefinition
from tofuse.hints import fuse, no_fuse

__version__ = "0.1.0"

__all__ = [
    "CaptureError", "CompileError", "Culprit", "DataType", "DefinitionError", "Fusion",
    "FusionDefinition", "OptionError", "ParseError", "TofuseError", "TofuseWarning",
    "UnsupportedError", "VerifyError", "bisect", "calibrate", "compile", "empty_cache",
    "explain", "explain_recompiles", "fuse", "memory_efficient_fusion", "memory_stats", "no_fuse",
    "register_executor", "unregister_executor",
]  # fmt: skip
