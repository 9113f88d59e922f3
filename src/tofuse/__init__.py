"""tofuse: a fusing just-in-time compiler for PyTorch that says why it fused or not."""

import importlib
import typing

from tofuse.gc_pause import pause_gc as _pause_gc

__version__ = "0.1.0"

if typing.TYPE_CHECKING:
    from tofuse.public import *
    from tofuse.public import __all__ as __all__
else:
    importlib.import_module("tofuse.cache.bundles")  # torch.compiler.load_cache_artifacts knows it
    importlib.import_module("tofuse.torch_internals.backend_registry").announce_backend(__version__)

    def __getattr__(name):
        """Import the compiler when a name of it is first used; `load` does without it."""
        with _pause_gc():
            if name == "load":
                globals()[name] = importlib.import_module("tofuse.runtime.exported_module").load
            elif name == "__all__" or not name.startswith("__"):
                public = importlib.import_module("tofuse.public")
                names = public.__all__
                globals().update({n: getattr(public, n) for n in names}, __all__=names)
        if name not in globals():
            raise AttributeError(f"module 'tofuse' has no attribute {name!r}")
        return globals()[name]
