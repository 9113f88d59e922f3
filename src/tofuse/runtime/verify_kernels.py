"""Hold every result of a kernel against the reference, in its own precision and in float64."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from tofuse.errors import VerifyError
from tofuse.ir.dims import Dim, evaluate
from tofuse.ir.graph import Graph, Op, Value
from tofuse.ir.region import Region, Strided
from tofuse.ir.types import DType
from tofuse.ops.f64_reference import widen
from tofuse.ops.reference import TO_TORCH, run_graph
from tofuse.ops.table import Pattern, opdef
from tofuse.plan.donation import KernelCall
from tofuse.runtime.launch import Launcher

Sizes = Mapping[str, int]
Inputs = Sequence[Tensor]


@dataclass(frozen=True, eq=False)
class Checked:
    """A region's kernel, which compares its results each time it runs.

    Where one is wrong it raises VerifyError, which names the first wrong operation: `alone` gives
    the kernel of a part of the region, None where it has none; `write` keeps a repro.
    """

    region: Region
    storage: Mapping[Value, Strided]
    launcher: Launcher
    call: KernelCall
    alone: Callable[[Region], Checked | None]
    write: Callable[[Inputs, Sizes, str], Path | None]

    def __call__(self, inputs: Inputs, **sizes: int) -> tuple[Tensor, ...]:
        made = self.launch(inputs, sizes)
        fault = self.fault(inputs, sizes, made)
        if fault is not None:
            raise VerifyError(self.explain(inputs, sizes, fault))
        return made

    def explain(self, inputs: Inputs, sizes: Sizes, fault: str) -> str:
        """The fault, the operation it begins at, and where a repro is."""
        text = f"kernel {self.region.name} gives a wrong result: {fault}"
        op = self.first_wrong(inputs, sizes)
        if op is None:
            text += "; its operations are right one by one: tofuse.bisect finds the fusion"
        else:
            at = f", {op.loc}: {op.loc.code}" if op.loc is not None else ""
            text += f"; the first wrong operation is {op.result.name} = {op.kind}{at}"
        path = self.write(inputs, sizes, text)
        return text if path is None else f"{text}; {path} shows it again"

    def first_wrong(self, inputs: Inputs, sizes: Sizes) -> Op | None:
        """The first operation whose value, computed with what it needs and no more, is wrong."""
        given = dict(zip(self.region.inputs, inputs, strict=True))
        for k, op in enumerate(self.region.ops):
            if opdef(op.kind).pattern in (Pattern.VIEW, Pattern.BROADCAST):
                continue
            part = self.alone(_up_to(self.region, op, f"{self.region.name}_{k}"))
            if part is None:
                continue
            needed = [given[v] for v in part.region.inputs]
            if part.fault(needed, sizes, part.launch(needed, sizes)) is not None:
                return op
        return None

    def launch(self, inputs: Inputs, sizes: Sizes) -> tuple[Tensor, ...]:
        """Run the kernel; nothing is compared."""
        made = {v: _empty(v, self.storage[v].strides, sizes) for v in self.region.outputs}
        places = {v: t.data_ptr() for v, t in made.items()}
        for v, t in zip(self.region.inputs, inputs, strict=True):
            place = self.storage.get(v)
            if place is not None and place.root not in places:
                offset = evaluate(place.offset, sizes) * t.element_size()
                places[place.root] = t.data_ptr() - offset
        words = [places[v] for v in self.call.arguments]
        self.launcher(*words, *[evaluate(s, sizes) for s in self.call.sizes])
        return tuple(made.values())

    def fault(self, inputs: Inputs, sizes: Sizes, made: Sequence[Tensor]) -> str | None:
        """What is wrong with the first result that is; None where all are right."""
        graph = Graph(self.region.inputs, self.region.ops, self.region.outputs)
        given = dict(zip(self.region.inputs, inputs, strict=True))
        own = run_graph(graph, given, sizes)
        wide, name = widen(graph)
        exact = run_graph(wide, {name[v]: _widened(t) for v, t in given.items()}, sizes)
        values = (*graph.inputs, *(r for op in graph.ops for r in op.results))
        rounding = max(_ROUNDING.get(v.dtype, 0.0) for v in values)
        for v, t in zip(self.region.outputs, made, strict=True):
            reason = difference(t, own[v], exact[name[v]], rounding)
            if reason is not None:
                return f"{v.name} {reason}"
        return None


def _up_to(region: Region, last: Op, name: str) -> Region:
    """What an op of a region needs, and itself, as a region."""
    needed = {*last.results}
    ops: list[Op] = []
    for op in reversed(region.ops):
        if not needed.isdisjoint(op.results):
            needed.update(op.inputs)
            ops.append(op)
    return Region(name, tuple(reversed(ops)), last.results)


def difference(got: Tensor, own: Tensor, exact: Tensor, rounding: float) -> str | None:
    """How a result differs from the reference by more than rounding; None where it does not.

    `own` is the reference in the program's precision. Eight times its largest error is allowed,
    and `rounding` of the value and of the values' usual size.
    """
    if got.numel() == 0:
        return None
    if not got.dtype.is_floating_point:
        wrong = (got != own) & (got != exact.to(got.dtype))
        # a value next to a border may fall to either side
        count = int(wrong.sum())
        few = count <= (0.01 * got.numel() if rounding else 0)
        return None if few else f"differs in {count} of {got.numel()} elements"
    a, b, e = got.double(), own.double(), exact.double()
    spread = (b - e).abs().nan_to_num(0.0, 0.0, 0.0).max()
    usual = e.abs().nan_to_num(0.0, 0.0, 0.0).mean()
    limit = 8 * spread + rounding * (e.abs() + usual)
    right = ((a - e).abs() <= limit) | (a == e) | (a == b)
    right |= (a.isnan() & (b.isnan() | e.isnan())) | ~(b.isfinite() & e.isfinite())
    if bool(right.all()):
        return None
    at = tuple((~right).nonzero()[0].tolist())
    count = int((~right).sum())
    where = f"at {list(at)} it is {a[at]:.6g}, and {e[at]:.6g} in float64" if at else f"is {a:.6g}"
    return f"is wrong in {count} of {got.numel()} elements: {where}"


def save_inputs(inputs: Inputs, folder: Path, name: str) -> str:
    """Python text that loads the inputs again from a file; of ones where it cannot be written."""
    path = folder / f"{name}.pt"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        torch.save([t.detach() for t in inputs], path)
    except OSError:
        ones = (f"torch.ones({list(t.shape)}, dtype={t.dtype})" for t in inputs)
        return f"[{', '.join(ones)}]"
    return f"torch.load({str(path)!r}, weights_only=True)"


def _empty(v: Value, strides: Sequence[Dim], sizes: Sizes) -> Tensor:
    shape = [evaluate(d, sizes) for d in v.shape]
    return torch.empty_strided(
        shape, [evaluate(s, sizes) for s in strides], dtype=TO_TORCH[v.dtype]
    )


def _widened(t: Tensor) -> Tensor:
    return t.double() if t.dtype.is_floating_point else t


_ROUNDING = {
    DType.F64: 1e-9,
    DType.F32: 1e-4,
    DType.F16: 4e-3,
    DType.BF16: 3e-2,
    DType.F8E4M3: 0.13,
    DType.F8E5M2: 0.26,
}
