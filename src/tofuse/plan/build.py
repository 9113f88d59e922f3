"""Partition -> Plan: what to allocate, launch, call, view and release, in order."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tofuse.cost.machine import SMALLEST_POOLED
from tofuse.ir.dims import Dim, contiguous_strides, hint, product, show_dim
from tofuse.ir.graph import Op, Value
from tofuse.ir.plan import Allocate, Call, Launch, Parameter, Plan, Release, Step, View
from tofuse.ir.plan.verify import makes, reads
from tofuse.ir.region import Partition, Region, Strided, is_placed
from tofuse.ir.types import DType
from tofuse.plan.arena import with_arena
from tofuse.plan.buffer_reuse import in_place
from tofuse.plan.donation import KernelCall, find_homes, root_of
from tofuse.plan.fold_views import allocate_as_seen
from tofuse.plan.launch_groups import launch_together
from tofuse.plan.library_results import FRESH_RESULTS, OutVariant
from tofuse.plan.peak import Timeline, peak, timeline


@dataclass(frozen=True)
class Signature:
    """A call's flat arguments and results: tensors, sizes, or None; where sizes come from.

    `writes` are pairs of an argument and the value it is given when the program ends. `again` are
    places of results that are an earlier one's value in a tensor of their own. `held` names the
    arguments that live for these calls alone, as what a forward saved does for the backward.
    """

    arguments: tuple[Value | Dim | None, ...]
    results: tuple[Value | Dim | None, ...]
    symbols: Mapping[str, tuple[str, int, int]]
    writes: tuple[tuple[Value, Value], ...] = ()
    again: tuple[int, ...] = ()
    held: frozenset[str] = frozenset()


def build_plan(
    part: Partition,
    signature: Signature,
    calls: Mapping[Region, KernelCall],
    others: Mapping[Region, str],
    out_variant: Callable[[str], OutVariant | None],
) -> Plan:
    """The plan of a partition; a region without a kernel runs op by op through PyTorch.

    `others` names who runs a library region where that is not the operator it is a call of.

    Launches that do not depend on each other are made as one. One block of memory stands for all
    results that only kernels see, or for the small ones among them. Either is so only where it
    does not raise the peak, or by less than anybody notices.
    """
    held = [v for v in part.graph.inputs if v.name in signature.held]
    plain = _Builder(part, signature, calls, others, out_variant).run()
    most = peak(plan_timeline(plain, part, held)) + UNNOTICED
    together = launch_together(plain, {c.kernel: c.written for c in calls.values()})
    for plan in (together, plain):
        for made in (with_arena(plan), with_arena(plan, SMALLEST_POOLED), plan):
            if peak(plan_timeline(made, part, held)) <= most:
                return made
    return plain


UNNOTICED = 64 * 1024  # bytes


def plan_timeline(plan: Plan, part: Partition, held: Iterable[Value] = ()) -> Timeline:
    """The bytes live at each step of a partition's plan; `held` are arguments that count."""
    values = (*part.graph.inputs, *(r for op in part.graph.ops for r in op.results))
    sizes = {variable(v): hint(v.type.nbytes) for v in values}
    return timeline(plan, sizes, [variable(v) for v in held])


def from_tensors(region: Region, part: Partition) -> Region:
    """A region of the same results, whose inputs are tensors that torch has.

    A view with negative strides is none: the ops that make it are part of this region.
    """
    work = [v for v in region.inputs if _turned(part.storage.get(v))]
    if not work:
        return region
    makers = {r: op for op in part.graph.ops for r in op.results}
    wanted = {r for op in region.ops for r in op.results}
    while work:
        op = makers[work.pop()]
        wanted.update(op.results)
        work += [v for v in op.inputs if _turned(part.storage.get(v))]
    ops = tuple(op for op in part.graph.ops if not wanted.isdisjoint(op.results))
    return replace(region, ops=ops)


def _turned(place: Strided | None) -> bool:
    return place is not None and any(hint(s) < 0 for s in place.strides)


@dataclass(eq=False)
class _Builder:
    part: Partition
    signature: Signature
    calls: Mapping[Region, KernelCall]
    others: Mapping[Region, str]
    out_variant: Callable[[str], OutVariant | None]
    steps: list[Step] = field(default_factory=list)
    views: dict[Value, str] = field(default_factory=dict)
    fresh: list[Allocate] = field(default_factory=list)  # results of library calls, ours alone
    homes: dict[Value, Value] = field(default_factory=dict)  # results made in an argument's memory
    begun: set[Value] = field(default_factory=set)  # cats of such parts
    loose: dict[Value, None] = field(default_factory=dict)  # parts that PyTorch made elsewhere

    def run(self) -> Plan:
        returned = [r for r in self.signature.results if isinstance(r, Value)]
        self.homes = find_homes(self.part, self.signature.writes, returned, self.calls)
        for k, region in enumerate(self.part.regions):
            if is_placed(region.ops[-1]):
                self._join(region.ops[-1])
            elif region in self.calls:
                self._launch(region, self.calls[region])
            elif region.library:
                op = region.ops[0]
                self._library(op, self.others.get(region, str(op.attr("target"))))
            else:
                self._fallback(region, k)
        self._copy_back()
        results = tuple(self._result(k, r) for k, r in enumerate(self.signature.results))
        parameters = tuple(self._parameter(k, a) for k, a in enumerate(self.signature.arguments))
        symbols = tuple((s, self._source(*where)) for s, where in self.signature.symbols.items())
        legal = {c.kernel: c.overwrites for c in self.calls.values()}
        spent = self._spent()
        steps, results, over = in_place(self.steps, results, legal, [*self.fresh, *spent])
        kept = {s.name for s in spent} & over
        parameters = tuple(replace(p, spent=p.name in kept) for p in parameters)
        steps, results = allocate_as_seen(steps, results)
        released = _with_releases(steps, results, [p.name for p in parameters])
        return Plan(self.part.graph.name, parameters, symbols, released, results)

    def _spent(self) -> list[Allocate]:
        """How those large arguments lie that live for this call alone."""
        held = [v for v in self.part.graph.inputs if v.name in self.signature.held]
        return [
            Allocate(variable(v), v.shape, v.layout, v.dtype)
            for v in held
            if v.layout is not None
            and v.type.device == "cpu"
            and hint(v.type.nbytes) >= SMALLEST_POOLED
        ]

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

    def _result(self, k: int, result: Value | Dim | None) -> str:
        if isinstance(result, Value):
            tensor = self._tensor(result)
            if k not in self.signature.again:
                return tensor
            strides = self.part.storage[result].strides
            self.steps.append(View(f"{tensor}_again{k}", tensor, result.shape, strides, 0))
            return f"{tensor}_again{k}"
        return "None" if result is None else show_dim(result)

    # -- steps -----------------------------------------------------------------------------------

    def _part(self, v: Value) -> Strided | None:
        """Where a value lies in a cat, if it was written there."""
        return None if v in self.loose else self.part.parts.get(v)

    def _memory(self, v: Value) -> str:
        """For a launch, where a value that owns memory, or is a part of a cat, begins."""
        part = self._part(v)
        if part is None:
            return variable(self.homes.get(v, v))
        nbytes = product((part.offset, v.dtype.itemsize))
        return f"{variable(part.root)}+{nbytes}" if isinstance(nbytes, int) else self._tensor(v)

    def _tensor(self, v: Value) -> str:
        """The name of a tensor that is the value, made as a view where it shares memory."""
        place = self.part.storage[v]
        if place.root is v and self._part(v) is None:
            return self._memory(v)
        if v not in self.views:
            name = self.views[v] = variable(v)
            part = self._part(place.root) or Strided(place.root, 0, place.strides)
            source, offset = self._memory(part.root), part.offset + place.offset
            self.steps.append(View(name, source, v.shape, place.strides, offset))
        return self.views[v]

    def _allocate(self, v: Value) -> None:
        self.steps.append(self._allocation(v))

    def _allocation(self, v: Value) -> Allocate:
        strides = self.part.storage[v].strides
        return Allocate(variable(v), v.shape, strides, v.dtype, v.type.device)

    def _launch(self, region: Region, call: KernelCall) -> None:
        for v in region.outputs:
            part = self._part(v)
            if part is not None:
                self._begin(part.root)
            elif v not in self.homes:
                self._allocate(v)
        names = tuple(self._memory(v) for v in call.arguments)
        sizes = tuple(map(show_dim, call.sizes))
        self.steps.append(Launch(call.kernel, region.name, names, sizes))

    def _begin(self, cat: Value) -> None:
        """Allocate a cat before the first of its parts is written."""
        if cat not in self.begun:
            self._allocate(cat)
            self.begun.add(cat)

    def _join(self, op: Op) -> None:
        """What PyTorch made of a cat's parts is copied there; the others are there."""
        (cat,) = op.results
        self._begin(cat)
        for v in (v for v in self.loose if self.part.parts[v].root is cat):
            part = self.part.parts[v]
            name = f"{variable(v)}_part"
            self.steps.append(View(name, variable(cat), v.shape, part.strides, part.offset))
            self.steps.append(Call("aten.copy_.default", f"{name}, {variable(v)}", (), (), ()))

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

    def _library(self, op: Op, target: str) -> None:
        tensors = [self._tensor(v) for v in op.inputs]
        args = re.sub(r"\$(\d+)", lambda m: tensors[int(m[1])], str(op.attr("args")))
        picks = op.ints("picks") if any(k == "picks" for k, _ in op.attrs) else ()
        names = tuple(variable(r) for r in op.results)
        variant = self._writable(op, picks)
        if variant is not None and all(hint(r.type.nbytes) >= SMALLEST_POOLED for r in op.results):
            for r in op.results:
                self._allocate(r)
            outs = zip(variant.names, names, strict=True)
            args = ", ".join([*([args] if args else []), *(f"{k}={n}" for k, n in outs)])
            self.steps.append(Call(variant.target, args, (), (), ()))
            return
        if (
            variant is not None or target in FRESH_RESULTS
        ):  # what can write elsewhere returns no operand
            self.fresh += map(self._allocation, op.results)
        sparse = ("strided", False) in op.attrs
        strides = tuple(None if sparse else r.layout for r in op.results)
        self.steps.append(Call(target, args, names, picks, strides))

    def _writable(self, op: Op, picks: Sequence[int]) -> OutVariant | None:
        """The form of a library call that writes its results where it is told."""
        if ("strided", False) in op.attrs or not all(_dense(r) for r in op.results):
            return None
        if any(len(v.shape) > 3 and not _by_rows(v) for v in op.inputs):
            return (
                None  # some lay their result as an image among their operands lies, a given one too
            )
        variant = self.out_variant(str(op.attr("target")))
        if variant is None or tuple(picks or (0,)) != tuple(range(len(variant.names))):
            return None
        return variant

    def _fallback(self, region: Region, number: int) -> None:
        region = from_tensors(region, self.part)
        self.loose |= dict.fromkeys(v for v in region.outputs if v in self.part.parts)
        tensors = ", ".join(self._tensor(v) for v in region.inputs)
        names = tuple(variable(v) for v in region.outputs)
        strides = tuple(self.part.storage[v].strides for v in region.outputs)
        picks = tuple(range(len(names)))
        symbols = "".join(f", {s}={s}" for s in self.signature.symbols)
        call = Call(f"region{number}", f"[{tensors}]{symbols}", names, picks, strides)
        self.steps.append(call)


def _dense(v: Value) -> bool:
    plain = v.type.device == "cpu" and v.dtype is not DType.OTHER
    return plain and _by_rows(v)


def _by_rows(v: Value) -> bool:
    return v.layout == contiguous_strides(v.shape)


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
