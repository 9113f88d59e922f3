"""Make `torch.compile(backend="tofuse")` known without an installed distribution, or Dynamo.

Dynamo looks for backends in the entry points of distributions, when one is first used. A finder
shows it that of a copy of the package on `sys.path`, so that nothing is imported until then.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Container, Iterator
from importlib.metadata import Distribution, DistributionFinder, EntryPoint
from pathlib import Path

from tofuse.torch_internals.private_names import always, private

NAME = "tofuse"
BACKEND = EntryPoint(NAME, "tofuse.api:dynamo_backend", "torch_dynamo_backends")
REGISTRY = "torch._dynamo.backends.registry"
LOST = 'backend="tofuse" needs `import tofuse` before the first torch.compile, or an installation'


def announce_backend(version: str) -> None:
    """Let Dynamo find the backend by its name; `version` is that of the package."""
    sys.meta_path.append(_Finder(version))  # an installed distribution comes first
    if REGISTRY in sys.modules:
        _register_late()


def _register_late() -> None:
    """Register the backend with a Dynamo that may have read the entry points before."""
    known: Container[str] = private(REGISTRY, "_BACKENDS", LOST, (NAME,))
    if NAME not in known:
        register: Callable[..., object] = private(REGISTRY, "register_backend", LOST, always(None))
        register(_compile_graph, name=NAME)


def _compile_graph(*args: object, **kwargs: object) -> object:
    """Compile a graph; the compiler is imported by the first call."""
    return BACKEND.load()(*args, **kwargs)


class _Finder(DistributionFinder):
    """Finds the distribution of the imported package, after the finders of installed ones."""

    def __init__(self, version: str) -> None:
        self.version = version

    def find_spec(self, *args: object) -> None:
        """Find no module."""

    def find_distributions(
        self,
        context: DistributionFinder.Context = DistributionFinder.Context(),  # noqa: B008
    ) -> Iterator[Distribution]:
        """Yield the distribution if `context` asks for it, or for all on `sys.path`."""
        if context.path is sys.path and (context.name or NAME).lower() == NAME:
            yield _Copy(self.version)


class _Copy(Distribution):
    """What would be in the metadata of an installation."""

    def __init__(self, package_version: str) -> None:
        self.texts = {
            "METADATA": f"Metadata-Version: 2.1\nName: {NAME}\nVersion: {package_version}\n",
            "entry_points.txt": f"[{BACKEND.group}]\n{BACKEND.name} = {BACKEND.value}\n",
        }

    def read_text(self, filename: str) -> str | None:
        """Return the content of a file of the metadata; None if there is none."""
        return self.texts.get(filename)

    def locate_file(self, path: object) -> Path:
        """Return the place of a file beside the package."""
        return Path(__file__).parents[2] / str(path)
