"""Repro files: scripts that compile and run one graph to reproduce a failure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from platformdirs import user_cache_dir

from tofuse.analysis.alias import MemRef
from tofuse.ir.dims import evaluate, symbols_of
from tofuse.ir.graph import Graph, Op, Operand, Value, substitute_operands
from tofuse.ir.graph.parse import parse_graph
from tofuse.ir.graph.print import show_graph
from tofuse.ir.region import Region
from tofuse.ops.reference import TO_TORCH

EXAMPLE_SIZE = 64  # replaces every symbolic size


def write_repro(
    region: Region, storage: Mapping[Value, MemRef], error: str, folder: Path | None
) -> Path | None:
    """Write a repro for a region that does not compile; return its path, None if unwritable."""
    return _write(region.name, compile_error_script(region_graph(region, storage), error), folder)


def write_fusion_repro(graph: str, fuel: int, verdict: str, folder: Path | None) -> Path | None:
    """Write a repro that runs a graph, given as text, with and without its fusion number `fuel`."""
    text = fusion_script(parse_graph(graph), fuel, verdict)
    return _write(f"fusion_{fuel}", text, folder)


def write_mismatch_repro(
    graph: Graph, inputs: str, sizes: Mapping[str, int], error: str, folder: Path | None
) -> Path | None:
    """Write a repro for a kernel with wrong results; `inputs` is Python text."""
    return _write(graph.name, mismatch_script(graph, inputs, sizes, error), folder)


def repro_folder(folder: Path | None) -> Path:
    """Return the folder for repros: `folder`, or by default one in the user's cache."""
    return folder or Path(user_cache_dir("tofuse")) / "repro"


def region_graph(region: Region, storage: Mapping[Value, MemRef]) -> Graph:
    """Return a region as a graph; its inputs have the strides they have in the program."""
    strided: dict[Value, Operand] = {
        v: replace(v, strides=storage[v].strides) for v in region.inputs if v in storage
    }
    ops: list[Op] = []
    for op in region.ops:
        ops.append(replace(op, operands=substitute_operands(op.operands, strided)))
    inputs = [strided.get(v, v) for v in region.inputs]
    values = tuple(v for v in inputs if isinstance(v, Value))
    return Graph(values, tuple(ops), region.outputs, region.name)


def compile_error_script(graph: Graph, error: str) -> str:
    """Return a script that compiles a graph without a fallback and runs it on example inputs."""
    return _script(
        graph,
        "tofuse could not compile this region. Run this file to see the error.",
        error,
        [
            "run = compile_text(GRAPH, Config(strict=True))",
            *_example_inputs(graph),
            "for result in run([*inputs, *SIZES.values()]):",
            "    print(result)",
        ],
    )


def fusion_script(graph: Graph, fuel: int, verdict: str) -> str:
    """Return a script that prints the largest difference that one more fusion makes."""
    return _script(
        graph,
        "This fusion breaks a check. Run this file to see the difference that it makes.",
        verdict,
        [
            *_example_inputs(graph),
            f"without = compile_text(GRAPH, Config(fuel={fuel - 1}))",
            f"fused = compile_text(GRAPH, Config(fuel={fuel}))",
            "arguments = [*inputs, *SIZES.values()]",
            "for a, b in zip(without([*arguments]), fused([*arguments]), strict=True):",
            "    if a is not None:",
            '        print("largest difference:", (a.double() - b.double()).abs().max())',
        ],
    )


def mismatch_script(graph: Graph, inputs: str, sizes: Mapping[str, int], error: str) -> str:
    """Return a script that checks the results of one kernel against the reference."""
    return _script(
        graph,
        "The results of this kernel are wrong. Run this file to see the error.",
        error,
        [
            f"inputs = {inputs}",
            "run = compile_text(GRAPH, Config(strict=True, verify=True))",
            "run([*inputs, *SIZES.values()])",
        ],
        {name: sizes[name] for name in _example_sizes(graph)},
    )


def _script(
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
            "from tofuse.driver.compile_graph import compile_text",
            "",
            'GRAPH = r"""',
            show_graph(graph),
            '"""',
            f"SIZES = {dict(sizes or _example_sizes(graph))!r}",
            "",
            *lines,
            "",
        ]
    )


def _example_sizes(graph: Graph) -> dict[str, int]:
    """Return a static size for every symbol of a graph."""
    values = (*graph.inputs, *(r for op in graph.ops for r in op.results))
    names = {s for v in values for d in (*v.shape, *v.layout) for s in symbols_of(d)}
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
    device_argument = "" if v.type.device == "cpu" else f"{v.type.device!r}, "
    return f"{flat}.to({device_argument}{TO_TORCH[v.dtype]}).as_strided({shape}, {strides})"


def _write(name: str, text: str, folder: Path | None) -> Path | None:
    """Write the file; return its path, or None if the folder is not writable."""
    folder = repro_folder(folder)
    path = folder / f"{name}_{hashlib.sha256(text.encode()).hexdigest()[:8]}.py"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError:
        return None
    return path
