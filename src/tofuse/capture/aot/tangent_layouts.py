"""Tangents of a backward program with the strides in which autograd passes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from tofuse.analysis.alias import AliasAnalysis
from tofuse.capture.lower.convert import CapturedGraph
from tofuse.ir.dims import Dim, contiguous_strides, size_hint
from tofuse.ir.graph import Value, substitute_values
from tofuse.torch_internals.autograd_compiler import (
    MemoryFormatMeta,
    PlainTensorMeta,
    ViewAndMutationMeta,
)

Strides = tuple[int, ...]


class _Anything:
    """A value that equals every size and every stride."""

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 0


def relax_tangents(meta: ViewAndMutationMeta) -> None:
    """Let AOTAutograd pass tangents of any strides, and saved tensors under `retain_graph`.

    It would copy tangents whose strides differ from those it expected; tangents with symbolic
    sizes are still copied. It assumes that a backward writes into saved tensors, as Inductor's
    does, and raises an error. Ours checks first that nothing else holds them.
    """
    meta.bw_donated_idxs = []
    if not all(isinstance(m, PlainTensorMeta) for m in meta.subclass_tangent_meta):
        return
    for plain, traced in zip(meta.subclass_tangent_meta, meta.traced_tangents, strict=True):
        static = isinstance(traced, Tensor) and all(isinstance(n, int) for n in traced.shape)
        if plain.memory_format is not None and static:
            new = MemoryFormatMeta(_Anything(), _Anything())  # type: ignore[arg-type]  # see class
            plain.memory_format = new


@dataclass(frozen=True)
class TangentLayouts:
    """A backward graph, and the strides of its tangents by position.

    Each of these tangents may have other strides.
    """

    captured: CapturedGraph
    strides: Mapping[int, Strides]

    def of_call(self, args: Sequence[object]) -> TangentLayouts:
        """Return the backward for the strides in a call; the same without arguments."""
        strides = {k: significant_strides(args[k], s) for k, s in self.strides.items() if args}
        if strides in ({}, self.strides):
            return self
        return TangentLayouts(self.with_strides(strides), strides)

    @property
    def overlap(self) -> bool:
        """Whether a tangent may have two elements in one place of memory."""
        return any(_overlaps(self._shape(k), strides) for k, strides in self.strides.items())

    def row_major(self) -> CapturedGraph:
        """Return the backward for row-major tangents."""
        strides = {k: contiguous_strides(self._shape(k)) for k in self.strides}
        return self.with_strides({k: tuple(map(size_hint, s)) for k, s in strides.items()})

    def _shape(self, position: int) -> tuple[int, ...]:
        tangent = self.captured.arguments[position]
        assert isinstance(tangent, Value)
        return tuple(map(size_hint, tangent.shape))

    def with_strides(self, strides: Mapping[int, Strides]) -> CapturedGraph:
        """Return the backward for tangents with other strides, given by position."""
        old, replaced = self.captured, dict[Value, Value]()
        for k, tangent_strides in strides.items():
            v = old.arguments[k]
            assert isinstance(v, Value)
            contiguous = tangent_strides == contiguous_strides(v.shape)
            replaced[v] = Value(v.type, v.name, None if contiguous else tangent_strides)

        def new(v: Value | Dim | None) -> Value | Dim | None:
            return replaced.get(v, v) if isinstance(v, Value) else v

        graph = substitute_values(old.graph, replaced)
        arguments, results = map(new, old.arguments), map(new, old.results)
        return replace(old, graph=graph, arguments=tuple(arguments), results=tuple(results))


def _overlaps(shape: Sequence[int], strides: Strides) -> bool:
    """Whether two elements may be in one place: a stride does not pass what smaller ones reach."""
    reach = 0
    for stride, extent in sorted(zip(strides, shape, strict=True)):
        if extent > 1 and stride <= reach:
            return True
        reach += stride * (extent - 1)
    return False


def significant_strides(tensor: object, expected: Strides) -> Strides:
    """Return the strides, with the expected stride for extents of 1: it does not matter there."""
    assert isinstance(tensor, Tensor)
    if not tensor.numel():
        return expected  # a stride of 0 would read an element that is not there
    triples = zip(tensor.shape, tensor.stride(), expected, strict=True)
    return tuple(e if n == 1 else s for n, s, e in triples)


def find_tangent_layouts(captured: CapturedGraph) -> TangentLayouts:
    """Return the layouts of the tangents that may have other strides.

    Excluded are tangents that a PyTorch operator reads, and those with symbolic sizes.
    """
    aliases = AliasAnalysis(captured.graph)
    read_by_library = {u for v in aliases.read_by_library for u in aliases.view_chain(v)}
    strides_by_position: dict[int, Strides] = {}
    for k, v in enumerate(captured.arguments):
        if not isinstance(v, Value) or not v.name.startswith("tangents_") or v in read_by_library:
            continue
        strides = tuple(s for s in v.layout if isinstance(s, int))
        if len(strides) == len(v.shape) and all(isinstance(n, int) for n in v.shape) and strides:
            strides_by_position[k] = strides
    return TangentLayouts(captured, strides_by_position)
