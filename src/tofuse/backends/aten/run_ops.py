"""Run a region or a graph op by op through PyTorch, where no kernel of ours can."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch.utils._pytree import tree_leaves

from tofuse.errors import TofuseError
from tofuse.ir.dims import Dim, SymDim, evaluate, symbol, symbols_of
from tofuse.ir.graph import Graph, Op, Operand, Value
from tofuse.ir.region import Region, is_aten_view
from tofuse.ir.types import DType
from tofuse.ops.reference import TO_TORCH, run_graph


def graph_runner(gm: torch.fx.GraphModule) -> Callable[[list[object]], list[object]]:
    """A callable that runs a whole ATen graph op by op; it takes its arguments in one list.

    Gradients are laid out as they were traced: views of them may not fit another layout.
    """
    nodes = [n for n in gm.graph.nodes if n.op == "placeholder"]
    traced = [n.meta.get("val") if str(n.target).startswith("tangents_") else None for n in nodes]

    def run(args: list[object]) -> list[object]:
        taken = [_laid(x, like) for x, like in zip(args, traced, strict=True)]
        args.clear()
        return list(torch.fx.Interpreter(gm).boxed_run(taken))

    return run


def _laid(x: object, like: object) -> object:
    """A tensor in the layout of another, where that is known."""
    if not isinstance(x, torch.Tensor) or not isinstance(like, torch.Tensor):
        return x
    known = all(isinstance(n, int) for n in (*like.shape, *like.stride()))
    if not known or x.layout is not torch.strided or x.stride() == like.stride():
        return x
    return torch.empty_strided(x.shape, like.stride(), dtype=x.dtype, device=x.device).copy_(x)


def region_runner(region: Region) -> Callable[..., tuple[torch.Tensor, ...]]:
    """A callable from the region's inputs (and its size symbols) to its outputs."""
    graph = Graph(region.inputs, region.ops, region.outputs, region.name)
    device = region.ops[0].results[0].type.device

    def run(inputs: Sequence[torch.Tensor], **sizes: int) -> tuple[torch.Tensor, ...]:
        with torch.device(device):  # where constants and ranges are made
            values = run_graph(graph, dict(zip(region.inputs, inputs, strict=True)), sizes)
        return tuple(values[v] for v in region.outputs)

    return run


def executor_runner(name: str, op: Op, run: Callable[..., object]) -> Callable[..., object]:
    """A user's function in the place of an operator; TofuseError where it gives something else.

    Kernels read its results by address, so their types must be right.
    """
    picks = op.ints("picks") if any(k == "picks" for k, _ in op.attrs) else None
    symbolic = any(isinstance(d, SymDim) for v in op.results for d in v.shape)
    lent = is_aten_view(op)
    named = [op.operands[int(k)] for k in re.findall(r"\$(\d+)", str(op.attr("args")))]

    def call(*args: object, **kwargs: object) -> object:
        leaves = tree_leaves((args, kwargs))
        sizes = _sizes(named, leaves) if symbolic else {}
        before = _states(leaves)
        try:
            results = run(*args, **kwargs)
        except Exception as error:
            if sys.version_info >= (3, 11):
                error.add_note(f"raised by executor {name!r}, which runs {op.attr('target')}")
            raise
        if before != _states(leaves):
            raise TofuseError(
                f"executor {name!r} writes into an argument of {op.attr('target')}; its run must "
                "leave them as they are"
            )
        given = [results] if picks is None else [results[k] for k in picks]  # type: ignore[index]
        for value, result in zip(op.results, given, strict=True):
            shape = tuple(_known(d, sizes) for d in value.shape)
            if not _is_of(result, value, shape):
                wanted = replace(value.type, shape=shape)
                raise TofuseError(
                    f"executor {name!r} gave {_shown(result)} for {op.attr('target')}, which "
                    f"gives {wanted!r}; its run must return what the operator would"
                )
            place = None if lent else _memory(result)
            if place is not None and place in {held for held, _ in before}:
                raise TofuseError(
                    f"executor {name!r} gave an argument's memory for {op.attr('target')}; its run "
                    "must return new tensors"
                )
        return results

    return call


def _sizes(named: Sequence[Operand], leaves: Sequence[object]) -> dict[str, int]:
    """What the operands of a call say of the sizes that were not known."""
    found: dict[str, int] = {}
    tensors = [x for x in leaves if isinstance(x, torch.Tensor)]
    for value, tensor in zip(named, tensors, strict=True):
        assert isinstance(value, Value)
        for dim, size in zip(value.shape, tensor.shape, strict=True):
            if symbols_of(dim) and dim == symbol(symbols_of(dim)[0]):
                found[symbols_of(dim)[0]] = size
    return found


def _states(leaves: Sequence[object]) -> list[tuple[int | None, int]]:
    """Of tensors, where their memory is and how often it was written."""
    tensors = [x for x in leaves if isinstance(x, torch.Tensor)]
    return [(_memory(t), 0 if t.is_inference() else t._version) for t in tensors]


def _memory(tensor: object) -> int | None:
    """Where a tensor's memory begins; None where it has none."""
    if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.strided:
        return None
    return tensor.untyped_storage().data_ptr() or None


def _known(dim: Dim, sizes: Mapping[str, int]) -> Dim:
    return evaluate(dim, sizes) if all(s in sizes for s in symbols_of(dim)) else dim


def _shown(x: object) -> str:
    return f"{x.dtype} {tuple(x.shape)}" if isinstance(x, torch.Tensor) else repr(x)


def _is_of(result: object, value: Value, shape: Sequence[Dim]) -> bool:
    """Whether a result has a value's dtype and shape, as far as its sizes are known."""
    if not isinstance(result, torch.Tensor) or len(result.shape) != len(shape):
        return False
    sizes = zip(shape, result.shape, strict=True)
    right = all(not isinstance(d, int) or d == n for d, n in sizes)
    known = value.dtype is DType.OTHER or result.dtype is TO_TORCH[value.dtype]
    return right and known and result.device.type == value.type.device.split(":")[0]
