"""Compile as a new process would, in a folder of one's own."""

from collections.abc import Callable
from pathlib import Path

import torch

import tofuse
from tofuse.config import Option


class Compiler:
    """Compiles with a folder of its own, and notes the phases of the graphs that it compiles."""

    def __init__(self, folder: Path, compile_graph: Callable[..., Callable]) -> None:
        self.folder, self.compile_graph = folder, compile_graph
        self.compiled: list[str] = []

    def counting(self, gm: torch.fx.GraphModule, phase: str, *rest: object) -> Callable:
        self.compiled.append(phase)
        return self.compile_graph(gm, phase, *rest)

    def __call__(self, target: Callable, **options: Option) -> Callable:
        """As a new process would compile it."""
        torch._dynamo.reset()
        self.compiled.clear()
        return tofuse.compile(target, cache_dir=self.folder, **options)

    def files(self) -> list[Path]:
        return sorted((self.folder / "program-1").glob("*.json"))
