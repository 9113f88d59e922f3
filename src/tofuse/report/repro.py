"""Repro files: scripts that compile and run one graph to reproduce a failure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from tofuse.analysis.alias import MemRef
from tofuse.config import user_cache
from tofuse.ir.dims import evaluate, symbols_of
from tofuse.ir.graph import Graph, Operand, Value, show_graph, substitute_operands
from tofuse.ir.region import Region
from tofuse.ops.reference import TO_TORCH

EXAMPLE_SIZE = 64  # replaces every symbolic size


def write_repro(
    region: Region, storage: Mapping[Value, MemRef], error: str, folder: Path | None
) -> Path | None:
    """Write a script that compiles a region without a fallback and runs it on example inputs."""
    graph = region_graph(region, storage)
    title = "tofuse could not compile this region. Run this file to see the error."
    lines = [
        "run = compile_text(GRAPH, Config(strict=True)).run",
        *_example_inputs(graph),
        "for result in run([*inputs, *SIZES.values()]):",
        "    print(result)",
    ]
    return _write(graph, title, error, lines, _example_sizes(graph), folder)


def write_fusion_repro(graph: Graph, fuel: int, verdict: str, folder: Path | None) -> Path | None:
    """Write a script that prints the largest difference that fusion number `fuel` makes."""
    title = "This fusion breaks a check. Run this file to see the difference that it makes."
    lines = [
        *_example_inputs(graph),
        f"without = compile_text(GRAPH, Config(fuel={fuel - 1})).run",
        f"fused = compile_text(GRAPH, Config(fuel={fuel})).run",
        "arguments = [*inputs, *SIZES.values()]",
        "for a, b in zip(without([*arguments]), fused([*arguments]), strict=True):",
        "    if a is not None:",
        '        print("largest difference:", (a.double() - b.double()).abs().max())',
    ]
    sizes = _example_sizes(graph)
    return _write(graph, title, verdict, lines, sizes, folder, f"fusion_{fuel}")


def write_mismatch_repro(
    graph: Graph, inputs: str, sizes: Mapping[str, int], error: str, folder: Path | None
) -> Path | None:
    """Write a script that compares one kernel with the reference; `inputs` is Python text."""
    title = "The results of this kernel are wrong. Run this file to see the error."
    lines = [
        f"inputs = {inputs}",
        "run = compile_text(GRAPH, Config(strict=True, verify=True)).run",
        "run([*inputs, *SIZES.values()])",
    ]
    named_sizes = {name: sizes[name] for name in _example_sizes(graph)}
    return _write(graph, title, error, lines, named_sizes, folder)


def repro_folder(folder: Path | None) -> Path:
    """Return the folder for repros: `folder`, or by default one in the user's cache."""
    return folder or user_cache() / "repro"


def region_graph(region: Region, storage: Mapping[Value, MemRef]) -> Graph:
    """Return a region as a graph; its inputs have the strides they have in the program."""
    strided: dict[Value, Operand] = {
        v: replace(v, strides=storage[v].strides) for v in region.inputs if v in storage
    }
    ops = [replace(op, operands=substitute_operands(op.operands, strided)) for op in region.ops]
    inputs = substitute_operands(region.inputs, strided)
    values = tuple(v for v in inputs if isinstance(v, Value))
    return Graph(values, tuple(ops), region.outputs, region.name)


def _example_sizes(graph: Graph) -> dict[str, int]:
    """Return a static size for every symbol of a graph."""
    names = {s for v in graph.values() for d in (*v.shape, *v.layout) for s in symbols_of(d)}
    return dict.fromkeys(sorted(names), EXAMPLE_SIZE)


def _example_inputs(graph: Graph) -> list[str]:
    sizes = _example_sizes(graph)
    return ["inputs = [", *(f"    {_example_tensor(v, sizes)}," for v in graph.inputs), "]"]


def _example_tensor(v: Value, sizes: Mapping[str, int]) -> str:
    """Return text that makes an input: normal floats, else zeros, which are valid indices."""
    shape = tuple(evaluate(d, sizes) for d in v.shape)
    strides = tuple(evaluate(d, sizes) for d in v.layout)
    count = 1 + sum(max(0, n - 1) * s for n, s in zip(shape, strides, strict=True))
    flat = f"torch.randn({count})" if v.dtype.is_float else f"torch.zeros({count})"
    device_argument = "" if v.type.on_host else f"{v.type.device!r}, "
    return f"{flat}.to({device_argument}{TO_TORCH[v.dtype]}).as_strided({shape}, {strides})"


def _write(
    graph: Graph,
    title: str,
    reason: str,
    lines: Sequence[str],
    sizes: Mapping[str, int],
    folder: Path | None,
    name: str = "",
) -> Path | None:
    """Write a script named after the graph, or `name`; return its path, None if unwritable."""
    text = "\n".join(
        [
            f'"""{title}',
            "",
            *reason.replace("\\", "\\\\").replace('"""', "'''").splitlines(),
            '"""',
            "",
            "import torch",
            "",
            "from tofuse.config import Config",
            "from tofuse.driver.compile_graph import compile_text",
            "",
            'GRAPH = r"""',
            show_graph(graph),
            '"""',
            f"SIZES = {dict(sizes)!r}",
            "",
            *lines,
            "",
        ]
    )
    folder = repro_folder(folder)
    path = folder / f"{name or graph.name}_{hashlib.sha256(text.encode()).hexdigest()[:8]}.py"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError:
        return None
    return path
