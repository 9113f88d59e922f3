"""A file that shows a failure again: one region's graph, and the lines that compile and run it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from platformdirs import user_cache_dir

from tofuse.ir.dims import evaluate, symbols_of
from tofuse.ir.graph import Graph, Op, Operand, Value, substitute
from tofuse.ir.region import Region, Strided
from tofuse.ir.show import show_graph
from tofuse.ops.reference import TO_TORCH

SIZE = 64  # of every symbol; a repro is about code, not about speed


def write_repro(
    region: Region, storage: Mapping[Value, Strided], error: str, folder: Path | None
) -> Path | None:
    """Write the file, to the user's cache without a folder; None where that cannot be written."""
    text = repro_text(region_graph(region, storage), error)
    folder = folder or Path(user_cache_dir("tofuse")) / "repro"
    path = folder / f"{region.name}_{hashlib.sha256(text.encode()).hexdigest()[:8]}.py"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError:
        return None
    return path


def region_graph(region: Region, storage: Mapping[Value, Strided]) -> Graph:
    """A region as a graph of its own, its inputs lying where they lie in the program."""
    moved: dict[Value, Operand] = {
        v: replace(v, strides=storage[v].strides) for v in region.inputs if v in storage
    }
    ops: list[Op] = []
    for op in region.ops:
        ops.append(replace(op, operands=substitute(op.operands, moved)))
    inputs = [moved.get(v, v) for v in region.inputs]
    values = tuple(v for v in inputs if isinstance(v, Value))
    return Graph(values, tuple(ops), region.outputs, region.name)


def repro_text(graph: Graph, error: str) -> str:
    """A program that compiles a graph, without falling back, and runs it on ordinary numbers."""
    names = dict.fromkeys(
        s
        for v in (*graph.inputs, *(r for op in graph.ops for r in op.results))
        for d in (*v.shape, *v.layout)
        for s in symbols_of(d)
    )
    sizes = dict.fromkeys(sorted(names), SIZE)
    lines = [
        '"""tofuse could not compile this region; run this file to see why.',
        "",
        *error.replace("\\", "\\\\").replace('"""', "'''").splitlines(),
        '"""',
        "",
        "import torch",
        "",
        "from tofuse.config import Config",
        "from tofuse.pipeline import compile_text",
        "",
        'GRAPH = r"""',
        show_graph(graph),
        '"""',
        f"SIZES = {sizes!r}",
        "",
        "run = compile_text(GRAPH, Config(strict=True))",
        "inputs = [",
        *(f"    {_example(v, sizes)}," for v in graph.inputs),
        "]",
        "for result in run([*inputs, *SIZES.values()]):",
        "    print(result)",
    ]
    return "\n".join(lines) + "\n"


def _example(v: Value, sizes: Mapping[str, int]) -> str:
    """Normal floats, and zeros for everything else: an index of zero is always in range."""
    shape = tuple(evaluate(d, sizes) for d in v.shape)
    strides = tuple(evaluate(d, sizes) for d in v.layout)
    span = 1 + sum(max(0, n - 1) * s for n, s in zip(shape, strides, strict=True))
    made = f"torch.randn({span})" if v.dtype.is_float else f"torch.zeros({span})"
    return f"{made}.to({TO_TORCH[v.dtype]}).as_strided({shape}, {strides})"
