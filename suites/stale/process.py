"""One process of a batch: runs each program compiled and in eager, and prints what it found."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path
from types import ModuleType

import torch
from torch._dynamo.utils import counters
from torch.torch_version import TorchVersion

if "STALE_TORCH" in os.environ:  # a test says that this is another release
    torch.__version__ = TorchVersion(os.environ["STALE_TORCH"])

import tofuse
import tofuse.cache.programs as programs

if "STALE_PROCESSOR" in os.environ:  # a test says that this is another processor
    programs.host_features = lambda: os.environ["STALE_PROCESSOR"]


def run_programs(folder: Path, names: list[str], *, background: bool) -> list[dict[str, object]]:
    """Return for each program whether its results are eager's, and whether Dynamo captured it."""
    found: list[dict[str, object]] = []
    for name in names:
        try:
            found.append(run_program(folder, name, background=background))
        except Exception as error:
            reason = f"{type(error).__name__}: {str(error)[:300]}"
            found.append({"name": name, "agrees": False, "captured": True, "error": reason})
    return found


def run_program(folder: Path, name: str, *, background: bool) -> dict[str, object]:
    """Run a program of a folder, which may be in the folder `other`."""
    other = folder / "other" / f"{name}.py"
    is_moved = os.environ["PHASE"] != "1" and other.exists()
    module = _load(name, other if is_moved else folder / f"{name}.py")
    x = torch.linspace(-2, 2, 4096).reshape(64, 64)
    compiled = tofuse.compile(
        module.fn, cache_dir=os.environ["CACHE"], hand_back=False, background=background
    )
    captured = counters["frames"]["total"]
    try:
        expected = module.fn(x)
        found = compiled(x)
        if background:
            tofuse.wait()
            found = torch.stack([found, compiled(x)])
            expected = torch.stack([expected, expected])
    finally:
        module.undo()
    captured = counters["frames"]["total"] - captured
    agrees = torch.allclose(found, expected, rtol=1e-4, atol=1e-5, equal_nan=True)
    return {"name": name, "agrees": agrees, "captured": bool(captured)}


def _load(name: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    folder, mode, *names = sys.argv[1:]
    found = run_programs(Path(folder), names, background=mode == "background")
    print("found:", json.dumps(found))
