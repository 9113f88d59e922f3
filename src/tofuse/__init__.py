"""tofuse: a fusing just-in-time compiler for PyTorch that says why it fused or not."""

import importlib
import typing

__version__ = "0.1.0"

if typing.TYPE_CHECKING:
    from tofuse.public import *
else:

    def __getattr__(name):
        """Import the compiler when a name of it is first used; `load` does without it."""
        if name == "load":
            globals()[name] = importlib.import_module("tofuse.runtime.exported_module").load
        elif name in __all__ or not name.startswith("__"):
            public = importlib.import_module("tofuse.public")
            globals().update({public_name: getattr(public, public_name) for public_name in __all__})
        if name not in globals():
            raise AttributeError(f"module 'tofuse' has no attribute {name!r}")
        return globals()[name]


__all__ = [
    "CaptureError", "CompileError", "Culprit", "DataType", "DefinitionError", "Fusion",
    "FusionDefinition", "InputError", "OptionError", "ParseError", "ProgramFileError",
    "TofuseError", "TofuseWarning", "UnsupportedError", "VerifyError", "bisect", "calibrate",
    "compile", "empty_cache", "explain", "explain_recompiles", "export", "fuse", "load",
    "memory_efficient_fusion", "memory_stats", "no_fuse", "register_executor",
    "unregister_executor",
]  # fmt: skip
