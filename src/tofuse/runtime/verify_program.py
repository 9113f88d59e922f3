"""Verify that the parts of an exported program fit each other, before anything of it runs."""

from __future__ import annotations

from collections.abc import Iterable

from tofuse.backends.cpu.runtime.gemm_launch import GemmCode
from tofuse.backends.cpu.runtime.launch import KernelCode
from tofuse.errors import VerifyError
from tofuse.ir.code_image import CodeImage
from tofuse.ir.dims import symbols_of
from tofuse.ir.runtime_kind import InferenceRuntime, TrainingRuntime
from tofuse.ir.verify_plan import KernelSignature, verify_plan
from tofuse.runtime.program_file import (
    ConstantInput,
    ExportedCode,
    ExportedGraph,
    ProgramFile,
    ResultIndex,
    TensorInput,
)

SLOT_BYTES = 8


def verify_program(program: ProgramFile, code: ExportedCode) -> None:
    """Raise VerifyError unless all positions, counts and offsets are of something that exists.

    `code` is that of the program for this processor.
    """
    tensors = [x for x in program.inputs if isinstance(x, TensorInput)]
    symbols = {d for x in tensors for d in x.shape if isinstance(d, str)}
    _require(symbols <= program.sizes.keys(), "each symbol of an argument has limits")
    names = [x.name for x in program.state]
    _require(len(names) == len({*names}), "the state has each name once")
    arguments, kind = len(program.used) + len(tensors), program.kind
    if isinstance(kind, TrainingRuntime):
        results = len(kind.differentiable)
    else:
        results = len(kind.argument_views)
    indices = [r.index for r in program.results if isinstance(r, ResultIndex)]
    _require_positions(indices, results, "results")
    for other in program.of_size_one:
        _require(not other.of_size_one, "a program of size one has no others")
        _require(other.input_tree == program.input_tree, "all programs take the same arguments")
        pairs = zip(program.inputs, other.inputs, strict=True)
        _require(all(_rank(x) == _rank(y) for x, y in pairs), "all arguments have the same rank")
    _verify_image(code.image)
    for graph in code.graphs:
        verify_plan(graph.plan, [_signature(k) for k in graph.kernels])
    if isinstance(kind, TrainingRuntime):
        _verify_training(kind, code, arguments)
    else:
        _verify_inference(kind, code, arguments)


def _verify_inference(kind: InferenceRuntime, code: ExportedCode, arguments: int) -> None:
    _require(len(code.graphs) == 1, "a program without a backward has one graph")
    plan = code.graphs[0].plan
    _require(_arguments(code.graphs[0]) == arguments, "the plan has a parameter for each argument")
    counts = {len(kind.argument_views), len(kind.returned), len(plan.results)}
    _require(len(counts) == 1, "the plan has all results")
    _require_positions(kind.mutated, arguments, "arguments")
    _require_positions([k for k in kind.returned if k is not None], arguments, "arguments")


def _verify_training(kind: TrainingRuntime, code: ExportedCode, arguments: int) -> None:
    _require(len(code.graphs) == 2, "a program with a backward has two graphs")
    forward, backward = code.graphs
    _require(_arguments(forward) == arguments, "the forward has a parameter for each argument")
    results = len(forward.plan.results)
    _require(len(kind.mutated) + len(kind.differentiable) <= results, "the forward has all results")
    _require_positions(kind.mutated, arguments, "arguments")
    _require_positions(kind.non_parameters, arguments, "arguments")
    _require_positions((*kind.saved_sizes, *kind.saved_tensors), results, "results of the forward")
    _require_positions(kind.tangents, sum(kind.differentiable), "differentiable results")
    saved = len(kind.saved_sizes) + len(kind.saved_tensors)
    taken = saved + len(kind.tangents)
    _require(_arguments(backward) == taken, "the backward has a parameter for each saved tensor")
    _require_positions(kind.written, taken, "arguments of the backward")
    unchecked = [k - len(kind.saved_sizes) for k in kind.unchecked]
    _require_positions(unchecked, len(kind.saved_tensors), "saved tensors")
    counts = {len(kind.requires_grad), len(backward.plan.results), arguments}
    _require(len(counts) == 1, "each argument has a gradient or None")


def positions_of_one(program: ProgramFile, other: ProgramFile) -> list[tuple[int, int]]:
    """Return an argument and its dimension for each size that is 1 for the other program only."""
    found: dict[str, tuple[int, int]] = {}
    for k, (x, y) in enumerate(zip(program.inputs, other.inputs, strict=True)):
        if isinstance(x, TensorInput) and isinstance(y, TensorInput):
            for dim, (size, one) in enumerate(zip(x.shape, y.shape, strict=True)):
                if isinstance(size, str) and one == 1:
                    found.setdefault(size, (k, dim))
    return list(found.values())


def _rank(x: TensorInput | ConstantInput) -> int | None:
    return len(x.shape) if isinstance(x, TensorInput) else None


def _arguments(graph: ExportedGraph) -> int:
    """Return how many parameters of a graph are no constants."""
    return len(graph.plan.parameters) - len(graph.constants)


def _signature(kernel: KernelCode | GemmCode) -> KernelSignature:
    if isinstance(kernel, GemmCode):
        _require(len(kernel.offsets) in (3, 4), "a product has three or four tensors")
        _require(kernel.sizes.keys() >= GEMM_SIZES, "a product has all of its sizes")
        _require({*kernel.word_names} >= GEMM_WORDS, "a product has all of its words")
        return KernelSignature(len(kernel.offsets), len(kernel.symbols), groups=False)
    used = {*symbols_of(kernel.elements), *symbols_of(kernel.workspace_bytes)}
    _require(used <= {*kernel.symbols}, "a kernel's sizes are among its symbols")
    _require(bool(kernel.parts), "a kernel has machine code")
    return KernelSignature(kernel.buffers, len(kernel.symbols), groups=True)


def _verify_image(image: CodeImage) -> None:
    _require_positions(image.entries.values(), len(image.code), "bytes of machine code")
    ends = (slot + SLOT_BYTES - 1 for slot in image.slots.values())
    _require_positions((*image.slots.values(), *ends), len(image.code), "bytes of machine code")


def _require_positions(positions: Iterable[int], count: int, what: str) -> None:
    for k in positions:
        _require(0 <= k < count, f"position {k} is one of {count} {what}")


def _require(holds: bool, claim: str) -> None:
    if not holds:
        raise VerifyError(f"it does not hold that {claim}")


GEMM_SIZES: frozenset[str] = frozenset(
    ["m", "n", "k", "batch", "depths", "rows", "columns", "workspace_per_thread"]
)
GEMM_WORDS: frozenset[str] = frozenset({"workspace", "has_bias"})
