"""Run a region op by op through PyTorch, where no kernel was generated."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch

from tofuse.analysis.alias import is_aten_view
from tofuse.errors import TofuseError
from tofuse.ir.dims import Dim, SymDim, evaluate, symbol, symbols_of
from tofuse.ir.graph import Graph, Op, Value
from tofuse.ir.region import Region
from tofuse.ir.types import DType
from tofuse.ops.reference import TO_TORCH, run_graph
from tofuse.torch_internals.memory import tensor_version
from tofuse.torch_internals.trees import tree_leaves


def eager_region_callable(region: Region) -> Callable[..., tuple[torch.Tensor, ...]]:
    """Return a callable from a region's inputs and its size symbols to its outputs."""
    graph = Graph(region.inputs, region.ops, region.outputs, region.name)
    device = region.ops[0].results[0].type.device

    def run(inputs: Sequence[torch.Tensor], **sizes: int) -> tuple[torch.Tensor, ...]:
        with torch.device(device):  # for constants and ranges
            values = run_graph(graph, dict(zip(region.inputs, inputs, strict=True)), sizes)
        return tuple(values[v] for v in region.outputs)

    return run


def checked_executor_callable(
    name: str, op: Op, run: Callable[..., object]
) -> Callable[..., object]:
    """Return a user's executor function, with its results checked against the operator's types.

    Kernels access the results by address, so the callable raises TofuseError if a shape, dtype or
    device differs, if an argument was mutated, or if a result aliases one.
    """
    picks = op.ints("picks") if any(k == "picks" for k, _ in op.attrs) else None
    symbolic = any(isinstance(d, SymDim) for v in op.results for d in v.shape)
    may_alias, target = is_aten_view(op), op.attr("target")
    tensor_operands = [op.inputs[k] for k in op.arguments.operand_indices]

    def call(*args: object, **kwargs: object) -> object:
        leaves = tree_leaves((args, kwargs))
        sizes = _symbol_values(tensor_operands, leaves) if symbolic else {}
        versions_before = _memory_versions(leaves)
        try:
            results = run(*args, **kwargs)
        except Exception as error:
            if sys.version_info >= (3, 11):
                error.add_note(f"raised by executor {name!r}, which runs {target}")
            raise
        if versions_before != _memory_versions(leaves):
            raise TofuseError(
                f"executor {name!r} writes into an argument of {target}; its `run` must not modify "
                "its arguments"
            )
        picked = [results] if picks is None else [results[k] for k in picks]  # type: ignore[index]
        for value, result in zip(op.results, picked, strict=True):
            shape = tuple(_evaluate_if_known(d, sizes) for d in value.shape)
            if not _has_type(result, value, shape):
                expected = replace(value.type, shape=shape)
                raise TofuseError(
                    f"executor {name!r} returned {_describe(result)} for {target}, which returns "
                    f"{expected!r}; its `run` must return what the operator returns"
                )
            start = None if may_alias else _memory_start(result)
            if start is not None and start in {address for address, _ in versions_before}:
                raise TofuseError(
                    f"executor {name!r} returned an argument's memory for {target}; its `run` must "
                    "return new tensors"
                )
        return results

    return call


def _symbol_values(tensor_operands: Sequence[Value], leaves: Sequence[object]) -> dict[str, int]:
    """Return the values of size symbols that the operands of a call determine."""
    values: dict[str, int] = {}
    tensors = [x for x in leaves if isinstance(x, torch.Tensor)]
    for value, tensor in zip(tensor_operands, tensors, strict=True):
        for dim, size in zip(value.shape, tensor.shape, strict=True):
            if symbols_of(dim) and dim == symbol(symbols_of(dim)[0]):
                values[symbols_of(dim)[0]] = size
    return values


def _memory_versions(leaves: Sequence[object]) -> list[tuple[int | None, int]]:
    """Return, for each tensor, the start of its memory and its version counter."""
    tensors = [x for x in leaves if isinstance(x, torch.Tensor)]
    return [(_memory_start(t), 0 if t.is_inference() else tensor_version(t)) for t in tensors]


def _memory_start(tensor: object) -> int | None:
    """Return the address of a tensor's memory; None if it has none."""
    if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.strided:
        return None
    return tensor.untyped_storage().data_ptr() or None


def _evaluate_if_known(dim: Dim, sizes: Mapping[str, int]) -> Dim:
    """Return the value of a size if all of its symbols are known, else the size."""
    return evaluate(dim, sizes) if all(s in sizes for s in symbols_of(dim)) else dim


def _describe(x: object) -> str:
    """Return the dtype and shape of a tensor, or the repr of anything else."""
    return f"{x.dtype} {tuple(x.shape)}" if isinstance(x, torch.Tensor) else repr(x)


def _has_type(result: object, value: Value, shape: Sequence[Dim]) -> bool:
    """Return whether a result has a value's dtype and device, and its shape where that is known."""
    if not isinstance(result, torch.Tensor) or len(result.shape) != len(shape):
        return False
    sizes = zip(shape, result.shape, strict=True)
    sizes_match = all(not isinstance(d, int) or d == n for d, n in sizes)
    dtype_matches = value.dtype is DType.OTHER or result.dtype is TO_TORCH[value.dtype]
    return sizes_match and dtype_matches and result.device.type == value.type.device.split(":")[0]
