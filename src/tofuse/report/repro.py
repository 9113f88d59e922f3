"""Files that show a failure again: a graph, and the lines that compile and run it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from platformdirs import user_cache_dir

from tofuse.ir.dims import evaluate, symbols_of
from tofuse.ir.graph import Graph, Op, Operand, Value, substitute
from tofuse.ir.graph.parse import parse_graph
from tofuse.ir.graph.print import show_graph
from tofuse.ir.region import Region, Strided
from tofuse.ops.reference import TO_TORCH

SIZE = 64  # of every symbol; a repro is about code, not about speed


def write_repro(
    region: Region, storage: Mapping[Value, Strided], error: str, folder: Path | None
) -> Path | None:
    """A file for a region that does not compile; None where it cannot be written."""
    return _write(region.name, repro_text(region_graph(region, storage), error), folder)


def write_fusion_repro(graph: str, fuel: int, verdict: str, folder: Path | None) -> Path | None:
    """A file that runs a graph, given as text, with and without its fusion number `fuel`."""
    text = fusion_text(parse_graph(graph), fuel, verdict)
    return _write(f"fusion_{fuel}", text, folder)


def write_mismatch(
    graph: Graph, inputs: str, sizes: Mapping[str, int], error: str, folder: Path | None
) -> Path | None:
    """A file for a kernel whose results are wrong on the inputs, given as Python text."""
    return _write(graph.name, mismatch_text(graph, inputs, sizes, error), folder)


def repro_folder(folder: Path | None) -> Path:
    """Where repros go: to the user's cache without a folder."""
    return folder or Path(user_cache_dir("tofuse")) / "repro"


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
    return _program(
        graph,
        "tofuse could not compile this region; run this file to see why.",
        error,
        [
            "run = compile_text(GRAPH, Config(strict=True))",
            *_examples(graph),
            "for result in run([*inputs, *SIZES.values()]):",
            "    print(result)",
        ],
    )


def fusion_text(graph: Graph, fuel: int, verdict: str) -> str:
    """A program that says how far the results with one fusion more are from those without."""
    return _program(
        graph,
        "This fusion breaks a check; run this file to see what it changes.",
        verdict,
        [
            *_examples(graph),
            f"without = compile_text(GRAPH, Config(fuel={fuel - 1}))",
            f"fused = compile_text(GRAPH, Config(fuel={fuel}))",
            "arguments = [*inputs, *SIZES.values()]",
            "for a, b in zip(without([*arguments]), fused([*arguments]), strict=True):",
            "    if a is not None:",
            '        print("largest difference:", (a.double() - b.double()).abs().max())',
        ],
    )


def mismatch_text(graph: Graph, inputs: str, sizes: Mapping[str, int], error: str) -> str:
    """A program that holds the results of one kernel against the reference."""
    return _program(
        graph,
        "The results of this kernel are wrong; run this file to see it.",
        error,
        [
            f"inputs = {inputs}",
            "run = compile_text(GRAPH, Config(strict=True, verify=True))",
            "run([*inputs, *SIZES.values()])",
        ],
        {name: sizes[name] for name in _sizes(graph)},
    )


def _program(
    graph: Graph,
    title: str,
    reason: str,
    lines: Sequence[str],
    sizes: Mapping[str, int] | None = None,
) -> str:
    return "\n".join(
        [
            f'"""{title}',
            "",
            *reason.replace("\\", "\\\\").replace('"""', "'''").splitlines(),
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
            f"SIZES = {dict(sizes or _sizes(graph))!r}",
            "",
            *lines,
            "",
        ]
    )


def _sizes(graph: Graph) -> dict[str, int]:
    """A number for every symbol."""
    values = (*graph.inputs, *(r for op in graph.ops for r in op.results))
    names = {s for v in values for d in (*v.shape, *v.layout) for s in symbols_of(d)}
    return dict.fromkeys(sorted(names), SIZE)


def _examples(graph: Graph) -> list[str]:
    sizes = _sizes(graph)
    return ["inputs = [", *(f"    {_example(v, sizes)}," for v in graph.inputs), "]"]


def _example(v: Value, sizes: Mapping[str, int]) -> str:
    """Normal floats, and zeros for everything else: an index of zero is always in range."""
    shape = tuple(evaluate(d, sizes) for d in v.shape)
    strides = tuple(evaluate(d, sizes) for d in v.layout)
    span = 1 + sum(max(0, n - 1) * s for n, s in zip(shape, strides, strict=True))
    made = f"torch.randn({span})" if v.dtype.is_float else f"torch.zeros({span})"
    at = "" if v.type.device == "cpu" else f"{v.type.device!r}, "
    return f"{made}.to({at}{TO_TORCH[v.dtype]}).as_strided({shape}, {strides})"


def _write(name: str, text: str, folder: Path | None) -> Path | None:
    """Write the file; None where that is impossible."""
    folder = repro_folder(folder)
    path = folder / f"{name}_{hashlib.sha256(text.encode()).hexdigest()[:8]}.py"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError:
        return None
    return path
