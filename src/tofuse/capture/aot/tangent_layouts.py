"""Gradients in whatever layout autograd hands them to a backward program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from torch import Tensor
from torch._functorch._aot_autograd.schemas import MemoryFormatMeta, PlainTensorMeta
from torch._guards import TracingContext

from tofuse.capture.lower.convert import Captured
from tofuse.ir.dims import Dim, contiguous_strides
from tofuse.ir.graph import Value, substitute

VIEWS = frozenset(("reshape", "permute", "slice", "broadcast"))
Layout = tuple[int, ...]


class _Any:
    """Equal to every size and every stride."""

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 0


def accept_any_layout() -> None:
    """Let AOTAutograd hand over gradients as they lie; it would copy those that lie otherwise
    than it guessed. Called while a forward is compiled; sizes that are symbols are left alone."""
    context = TracingContext.try_get()
    meta = None if context is None else context.fw_metadata
    if meta is None or not all(isinstance(m, PlainTensorMeta) for m in meta.subclass_tangent_meta):
        return
    for plain, traced in zip(meta.subclass_tangent_meta, meta.traced_tangents, strict=True):
        known = isinstance(traced, Tensor) and all(isinstance(n, int) for n in traced.shape)
        if plain.memory_format is not None and known:
            plain.memory_format = MemoryFormatMeta(_Any(), _Any())  # type: ignore[arg-type]  # above


def allow_retained_graphs() -> None:
    """Let AOTAutograd run a backward whose graph is retained. It believes that ours, as Inductor's,
    writes over saved tensors, and would raise; ours asks first who else holds them."""
    context = TracingContext.try_get()
    if context is not None and context.fw_metadata is not None:
        context.fw_metadata.bw_donated_idxs = []


@dataclass(frozen=True)
class Gradients:
    """The arguments of a backward that may lie in any way: their positions, and how they lie."""

    captured: Captured
    expected: Mapping[int, Layout]

    def laid(self, layouts: Mapping[int, Layout]) -> Captured:
        """The backward for gradients that lie otherwise."""
        old, now = self.captured, dict[Value, Value]()
        for k, strides in layouts.items():
            v = old.arguments[k]
            assert isinstance(v, Value)
            usual = strides == contiguous_strides(v.shape)
            now[v] = Value(v.type, v.name, None if usual else strides)

        def new(v: Value | Dim | None) -> Value | Dim | None:
            return now.get(v, v) if isinstance(v, Value) else v

        graph = replace(
            old.graph,
            inputs=tuple(now.get(v, v) for v in old.graph.inputs),
            ops=tuple(replace(op, operands=substitute(op.operands, now)) for op in old.graph.ops),
            outputs=tuple(None if v is None else now.get(v, v) for v in old.graph.outputs),
        )
        arguments, results = map(new, old.arguments), map(new, old.results)
        return replace(old, graph=graph, arguments=tuple(arguments), results=tuple(results))


def gradients(captured: Captured) -> Gradients:
    """Those of a backward, but for what an operator of PyTorch reads or whose size is a symbol."""
    bound = {v for op in captured.graph.ops if op.kind == "opaque" for v in op.inputs}
    for op in reversed(captured.graph.ops):
        if op.kind in VIEWS and not bound.isdisjoint(op.results):
            bound.update(op.inputs)
    expected: dict[int, Layout] = {}
    for k, v in enumerate(captured.arguments):
        if not isinstance(v, Value) or not v.name.startswith("tangents_") or v in bound:
            continue
        layout = tuple(s for s in v.layout if isinstance(s, int))
        if len(layout) == len(v.shape) and all(isinstance(n, int) for n in v.shape) and layout:
            expected[k] = layout
    return Gradients(captured, expected)
