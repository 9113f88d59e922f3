"""Plan -> callable: write the plan as straight Python, so that a call costs little beside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from sys import getrefcount

import torch
from torch._C._dynamo.guards import (  # type: ignore[attr-defined]  # no stub
    _empty_strided_cpu,
    _reinterpret_tensor,
)
from torch.autograd import profiler

from tofuse.cost.machine import SMALLEST_POOLED
from tofuse.ir.dims import Dim, product, show_dim
from tofuse.ir.plan import Allocate, Arena, Call, Launch, Plan, Release, View
from tofuse.ir.plan.verify import ARENA
from tofuse.ir.types import DType
from tofuse.ops.reference import draw_seed
from tofuse.plan.launch_groups import groups_of
from tofuse.runtime.clock import Clock, now
from tofuse.runtime.cuda import CudaLauncher, empty_on
from tofuse.runtime.gemm_launch import ProductLauncher
from tofuse.runtime.group import Group
from tofuse.runtime.launch import Entry, Launcher
from tofuse.runtime.pool import LOCAL, POOL, shared

Tensor = torch.Tensor  # for those who handle tensors without looking into them
CompiledPlan = Callable[[list[object]], list[object]]


def load_plan(
    plan: Plan,
    kernels: Sequence[Launcher | CudaLauncher | ProductLauncher],
    driver: Entry,
    constants: Sequence[torch.Tensor],
    fallbacks: Mapping[str, Callable[..., object]],
    clock: Clock | None = None,
) -> CompiledPlan:
    """A callable that takes the flat arguments in one list, which it empties.

    With a clock, it tells the clock when each launch and call began and ended.
    """
    namespace = dict(
        fallbacks,
        torch=torch,
        empty=_empty_strided_cpu,
        pooled=POOL.empty,
        as_strided=torch.as_strided,
        reinterpret=_reinterpret_tensor,
        relay=_relay,
        references=getrefcount,
        shared=shared,
        traced=_traced,
        inf=float("inf"),
        nan=float("nan"),
        constants=tuple(constants),
    )
    for k, kernel in enumerate(kernels):
        namespace[f"k{k}"] = kernel
    for number, launches in groups_of(plan).items():
        found = [kernels[x.kernel] for x in launches]
        members = [m for m in found if isinstance(m, Launcher)]
        namespace[f"g{number}"] = Group(driver, members)
    for step in plan.steps:
        if isinstance(step, Call) and step.target not in fallbacks:
            namespace[_function(step.target)] = _operator(step.target)
        if isinstance(step, Allocate) and step.device != "cpu":
            namespace[_function(step.device)] = empty_on(step.device)
    namespace["is_profiling"] = profiler
    if clock is not None:
        namespace |= {"now": now, "lap": clock.lap}
    source = plan_source(plan, timed=clock is not None)
    exec(compile(source, f"<tofuse {plan.name}>", "exec"), namespace)
    run = namespace["run"]
    assert callable(run)
    return run


def plan_source(plan: Plan, timed: bool = False) -> str:
    """The plan as the Python text that is executed; `timed`: with calls of `lap(step, ...)`."""
    names = [p.name for p in plan.parameters]
    lines = ["def run(args):"]
    if names:
        lines.append(f"{', '.join(names)}, = *args, *constants")
    lines.append("args.clear()")
    lines += [f"{name} = {text}" for name, text in plan.symbols]
    changes = any(p.written and p.strides for p in plan.parameters)
    lines += ["moved = []"] if changes else []
    for p in plan.parameters:
        if p.strides:
            check, laid = f"if {p.name}.stride() != {_dims(p.strides)}: ", _dims(p.strides)
            old = f"moved.append(({p.name}, " if p.written else f"{p.name} = "
            new = f"{p.name} := relay({p.name}, {laid})))" if p.written else ""
            lines.append(check + old + (new or f"relay({p.name}, {laid})"))
    lines += [
        f"if references({p.name}) != {LOCAL} or shared({p.name}): {p.name} = {p.name}.clone()"
        for p in plan.parameters
        if p.spent
    ]
    groups = groups_of(plan)
    returned = frozenset(plan.results)
    for k, step in enumerate(plan.steps):
        if timed and isinstance(step, (Launch, Call)):  # one by one, also those of a group
            lines += ["begin = now()", *_step_source(step), f"lap({k}, begin, now())"]
        elif isinstance(step, Launch) and step.group is not None:
            launches = groups[step.group]
            lines += _group_source(launches) if step is launches[-1] else []
        elif isinstance(step, View):
            lines.append(_view_source(step, step.name in returned))
        else:
            lines += _step_source(step)
    lines += ["for old, new in moved: old.data_ptr() == new.data_ptr() or old.copy_(new)"] * changes
    lines.append(f"return [{', '.join(plan.results)}]")
    return "\n    ".join(lines)


def _step_source(step: Arena | Allocate | Launch | Call | Release) -> list[str]:
    match step:
        case Arena():
            return [
                f"arena = pooled({step.nbytes}, ({step.nbytes},), (1,), torch.uint8)",
                "base = arena.data_ptr()",
            ]
        case Allocate():
            shape, strides = _dims(step.shape), _dims(step.strides)
            dtype = _TORCH[step.dtype]
            if step.device != "cpu":
                return [f"{step.name} = {_function(step.device)}({shape}, {strides}, {dtype})"]
            nbytes = product((*step.shape, step.dtype.itemsize))
            if isinstance(nbytes, int) and nbytes < SMALLEST_POOLED:
                return [f"{step.name} = empty({shape}, {strides}, {dtype})"]
            return [f"{step.name} = pooled({show_dim(nbytes)}, {shape}, {strides}, {dtype})"]
        case Launch():
            words = [*map(_address, step.tensors), *step.symbols]
            call = f"k{step.kernel}"
            return [
                f"if is_profiling._is_profiler_enabled: traced({step.name!r}, {call}, "
                f"{', '.join(words)})",
                f"else: {call}({', '.join(words)})",
            ]
        case Call():
            return _call_source(step)
        case Release():
            return [f"del {', '.join(step.names)}"]


def _view_source(step: View, returned: bool) -> str:
    """A tensor on the memory of another, which autograd knows nothing of.

    One that is returned shares the count of writes with the other, by which autograd finds that
    what it has saved was written over. It is no view to autograd, which refuses writes into views
    that an autograd function made; what a view is to eager, AOTAutograd makes from its base.
    """
    laid = f"{step.source}, {_dims(step.shape)}, {_dims(step.strides)}"
    if not returned:
        return f"{step.name} = reinterpret({laid}, {show_dim(step.offset)})"
    offset = f"{step.source}.storage_offset() + {show_dim(step.offset)}"
    return f"{step.name} = as_strided({laid}, {offset}).detach()"


def _group_source(launches: Sequence[Launch]) -> list[str]:
    words = [w for x in launches for w in (*map(_address, x.tensors), *x.symbols)]
    name, call = f"{launches[0].name} and {len(launches) - 1} more", f"g{launches[0].group}"
    return [
        f"words = ({', '.join(words)}, )",
        f"if is_profiling._is_profiler_enabled: traced({name!r}, {call}, *words)",
        f"else: {call}(*words)",
    ]


def _address(tensor: str) -> str:
    name, _, at = tensor.partition("+")
    begin = "base" if name == ARENA else f"{name}.data_ptr()"
    return f"{begin} + {at}" if at not in ("", "0") else begin


def _call_source(step: Call) -> list[str]:
    call = f"{_function(step.target)}({step.args})"
    if not step.results:
        return [call]
    if step.picks:
        lines = [f"r = {call}"]
        lines += [f"{n} = r[{k}]" for n, k in zip(step.results, step.picks, strict=True)]
        lines.append("del r")
    else:
        lines = [f"{step.results[0]} = {call}"]
    for name, strides in zip(step.results, step.strides, strict=True):
        if strides:
            check = f"if {name}.stride() != {_dims(strides)}: "
            lines.append(f"{check}{name} = relay({name}, {_dims(strides)})")
    return lines


def _dims(dims: tuple[Dim, ...]) -> str:
    return f"({''.join(f'{show_dim(d)}, ' for d in dims)})"


def _function(target: str) -> str:
    return target.replace(".", "_").replace(":", "_")


def _operator(target: str) -> object:
    """`aten.mm.default` -> the operator, without the Python around it, which takes a microsecond;
    our own seed without the dispatcher either."""
    if target == "tofuse.seed.default":
        return draw_seed
    found: object = torch.ops
    for part in target.split("."):
        found = getattr(found, part)
    return found._op if isinstance(found, torch._ops.OpOverload) else found


def _relay(t: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
    """The tensor laid out as the kernels were compiled for; where only empty or size-1 dimensions
    differ, in the same memory. Along a stride of 0 its elements are equal."""
    same = all(a == b or n == 1 for a, b, n in zip(t.stride(), strides, t.shape, strict=True))
    if same or t.numel() == 0:
        return t.as_strided(t.shape, strides).detach()
    apart = tuple(1 if s == 0 else n for s, n in zip(strides, t.shape, strict=True))
    laid = torch.empty_strided(apart, strides, dtype=t.dtype, device=t.device)
    laid.copy_(t.as_strided(apart, t.stride()))  # what is repeated is written once
    return laid.expand(t.shape)


def _traced(name: str, kernel: Callable[..., None], *words: int) -> None:
    """A launch that the profiler sees."""
    with torch.profiler.record_function(f"tofuse::{name}"):
        kernel(*words)


_TORCH = {
    DType.F64: "torch.float64",
    DType.F32: "torch.float32",
    DType.F16: "torch.float16",
    DType.BF16: "torch.bfloat16",
    DType.F8E4M3: "torch.float8_e4m3fn",
    DType.F8E5M2: "torch.float8_e5m2",
    DType.I64: "torch.int64",
    DType.I32: "torch.int32",
    DType.I16: "torch.int16",
    DType.I8: "torch.int8",
    DType.U8: "torch.uint8",
    DType.BOOL: "torch.bool",
}
