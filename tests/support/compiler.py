"""Compilation as in a new process, with its own cache folder."""

from collections.abc import Callable
from pathlib import Path

import torch

import tofuse
from tofuse.capture.aot.aot_graphs import AtenGraph
from tofuse.config import Option
from tofuse.driver.compiled_graph import CompiledGraph


class Compiler:
    """Compiles with its own cache folder and records the phases of the graphs it compiles."""

    def __init__(self, folder: Path, compile_graph: Callable[..., CompiledGraph]) -> None:
        self.folder, self.compile_graph = folder, compile_graph
        self.compiled: list[str] = []

    def compile_and_record(
        self, graph: AtenGraph, *rest: object, **options: object
    ) -> CompiledGraph:
        self.compiled.append(graph.phase)
        return self.compile_graph(graph, *rest, **options)

    def __call__(self, target: Callable, **options: Option) -> Callable:
        """Return `target` compiled as in a new process."""
        torch._dynamo.reset()
        self.compiled.clear()
        return tofuse.compile(target, cache_dir=self.folder, **options)

    def files(self) -> list[Path]:
        return sorted((self.folder / "program-1").glob("*.json"))
