"""Partition -> Plan: what to allocate, launch, call, view and release, in order."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tofuse.ir.dims import Dim, show_dim
from tofuse.ir.graph import Op, Value
from tofuse.ir.plan import Allocate, Call, Launch, Parameter, Plan, Release, Step, View
from tofuse.ir.plan_verify import makes, reads
from tofuse.ir.region import Partition, Region
from tofuse.runtime.arena import with_arena
from tofuse.runtime.homes import KernelCall, find_homes, root_of
from tofuse.runtime.together import launch_together


@dataclass(frozen=True)
class Signature:
    """A call's flat arguments and results: tensors, sizes, or None; where sizes come from.

    `writes` are pairs of an argument and the value it is given when the program ends.
    """

    arguments: tuple[Value | Dim | None, ...]
    results: tuple[Value | Dim | None, ...]
    symbols: Mapping[str, tuple[str, int, int]]
    writes: tuple[tuple[Value, Value], ...] = ()


def build_plan(part: Partition, signature: Signature, calls: Mapping[Region, KernelCall]) -> Plan:
    """The plan of a partition; a region without a kernel runs op by op through PyTorch."""
    return _Builder(part, signature, calls).run()


@dataclass(eq=False)
class _Builder:
    part: Partition
    signature: Signature
    calls: Mapping[Region, KernelCall]
    steps: list[Step] = field(default_factory=list)
    views: dict[Value, str] = field(default_factory=dict)
    homes: dict[Value, Value] = field(default_factory=dict)  # results made in an argument's memory

    def run(self) -> Plan:
        returned = [r for r in self.signature.results if isinstance(r, Value)]
        self.homes = find_homes(self.part, self.signature.writes, returned, self.calls)
        for k, region in enumerate(self.part.regions):
            if region.library:
                self._library(region.ops[0])
            elif region in self.calls:
                self._launch(region, self.calls[region])
            else:
                self._fallback(region, k)
        self._copy_back()
        results = tuple(self._result(r) for r in self.signature.results)
        parameters = tuple(self._parameter(k, a) for k, a in enumerate(self.signature.arguments))
        symbols = tuple((s, self._source(*where)) for s, where in self.signature.symbols.items())
        steps = _with_releases(self.steps, results, [p.name for p in parameters])
        plan = Plan(self.part.graph.name, parameters, symbols, steps, results)
        written = {call.kernel: call.written for call in self.calls.values()}
        return with_arena(launch_together(plan, written))

    # -- the border ------------------------------------------------------------------------------

    def _parameter(self, k: int, argument: Value | Dim | None) -> Parameter:
        if isinstance(argument, Value):
            written = any(argument is target for target, _ in self.signature.writes)
            return Parameter(variable(argument), argument.layout, written)
        return Parameter(self._number(k), None)

    def _number(self, k: int) -> str:
        """A name for an argument that is no tensor, and that no size has."""
        name = f"n{k}"
        while name in self.signature.symbols:
            name += "_"
        return name

    def _source(self, kind: str, k: int, dim: int) -> str:
        if kind.startswith("expr:"):
            return kind[len("expr:") :]
        argument = self.signature.arguments[k]
        name = variable(argument) if isinstance(argument, Value) else self._number(k)
        return {"argument": name, "size": f"{name}.size({dim})", "stride": f"{name}.stride({dim})"}[
            kind
        ]

    def _result(self, result: Value | Dim | None) -> str:
        if isinstance(result, Value):
            return self._tensor(result)
        return "None" if result is None else show_dim(result)

    # -- steps -----------------------------------------------------------------------------------

    def _memory(self, v: Value) -> str:
        """The name of the tensor whose memory a value that owns memory has."""
        return variable(self.homes.get(v, v))

    def _tensor(self, v: Value) -> str:
        """The name of a tensor that is the value, made as a view where it shares memory."""
        place = self.part.storage[v]
        if place.root is v:
            return self._memory(v)
        if v not in self.views:
            name = self.views[v] = variable(v)
            source = self._memory(place.root)
            self.steps.append(View(name, source, v.shape, place.strides, place.offset))
        return self.views[v]

    def _allocate(self, v: Value) -> None:
        strides = self.part.storage[v].strides
        self.steps.append(Allocate(variable(v), v.shape, strides, v.dtype))

    def _launch(self, region: Region, call: KernelCall) -> None:
        for v in region.outputs:
            if v not in self.homes:
                self._allocate(v)
        names = tuple(self._memory(v) for v in call.arguments)
        sizes = tuple(map(show_dim, call.sizes))
        self.steps.append(Launch(call.kernel, region.name, names, sizes))

    def _copy_back(self) -> None:
        """Give arguments their new values where these were made elsewhere."""
        rest = [(t, v) for t, v in self.signature.writes if v is not t and v not in self.homes]
        rest += [(t, v) for t, v in self.signature.writes if self.homes.get(v, t) is not t]
        changed = {target for target, _ in self.signature.writes}
        copies: list[Step] = []
        for target, new in rest:
            source = self._tensor(new)
            if root_of(self.part, new) in changed:  # another copy may come before this one
                kept = f"t_old{len(copies)}_{variable(target)}"
                self.steps.append(Call("aten.clone.default", source, (kept,), (), (None,)))
                source = kept
            args = f"{variable(target)}, {source}"
            copies.append(Call("aten.copy_.default", args, (), (), ()))
        self.steps += copies

    def _library(self, op: Op) -> None:
        tensors = [self._tensor(v) for v in op.inputs]
        args = re.sub(r"\$(\d+)", lambda m: tensors[int(m[1])], str(op.attr("args")))
        picks = op.ints("picks") if any(k == "picks" for k, _ in op.attrs) else ()
        names = tuple(variable(r) for r in op.results)
        strides = tuple(r.layout for r in op.results)
        self.steps.append(Call(str(op.attr("target")), args, names, picks, strides))

    def _fallback(self, region: Region, number: int) -> None:
        tensors = ", ".join(self._tensor(v) for v in region.inputs)
        names = tuple(variable(v) for v in region.outputs)
        strides = tuple(self.part.storage[v].strides for v in region.outputs)
        picks = tuple(range(len(names)))
        symbols = "".join(f", {s}={s}" for s in self.signature.symbols)
        call = Call(f"region{number}", f"[{tensors}]{symbols}", names, picks, strides)
        self.steps.append(call)


def variable(v: Value) -> str:
    """A Python name for a value."""
    return "t_" + re.sub(r"\W", "_", v.name)


def _with_releases(
    steps: Sequence[Step], results: Sequence[str], parameters: Sequence[str]
) -> tuple[Step, ...]:
    """Drop every tensor after the step that reads it last."""
    last: dict[str, int] = dict.fromkeys(parameters, -1)
    for k, step in enumerate(steps):
        for name in (*reads(step), *makes(step)):
            last[name] = k
    kept = set(results)
    after: dict[int, list[str]] = {}
    for name, k in last.items():
        if name not in kept:
            after.setdefault(k, []).append(name)
    out: list[Step] = [Release(tuple(after[-1]))] if -1 in after else []
    for k, step in enumerate(steps):
        out.append(step)
        if k in after and k < len(steps) - 1:
            out.append(Release(tuple(after[k])))
    return tuple(out)
