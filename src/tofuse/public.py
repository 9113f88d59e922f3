"""The public names of the compiler, which `import tofuse` imports when one is first used."""

from tofuse.api import (
    background_stats,
    compile,
    empty_cache,
    explain,
    export,
    memory_efficient_fusion,
    memory_stats,
    wait,
)
from tofuse.driver.bisect import Culprit, bisect
from tofuse.driver.calibration import calibrate
from tofuse.driver.recompiles import explain_recompiles
from tofuse.errors import (
    CaptureError,
    CompileError,
    DefinitionError,
    InputError,
    OptionError,
    ParseError,
    ProgramFileError,
    TofuseError,
    TofuseWarning,
    UnsupportedError,
    VerifyError,
)
from tofuse.executors import register_executor, unregister_executor
from tofuse.frontends.datatypes import DataType
from tofuse.frontends.fusion_definition import Fusion, FusionDefinition
from tofuse.hints import fuse, no_fuse
from tofuse.runtime.exported_module import load

__all__ = [
    "CaptureError", "CompileError", "Culprit", "DataType", "DefinitionError", "Fusion",
    "FusionDefinition", "InputError", "OptionError", "ParseError", "ProgramFileError",
    "TofuseError", "TofuseWarning", "UnsupportedError", "VerifyError", "background_stats",
    "bisect", "calibrate", "compile", "empty_cache", "explain", "explain_recompiles", "export",
    "fuse", "load", "memory_efficient_fusion", "memory_stats", "no_fuse", "register_executor",
    "unregister_executor", "wait",
]  # fmt: skip
