"""Write a plan as the text of straight-line Python, which has little overhead per call."""

from __future__ import annotations

from collections.abc import Sequence

from tofuse.backends.cpu.runtime.pool import LOCAL_REFERENCES
from tofuse.cost.machine import SMALLEST_POOLED
from tofuse.ir.call_arguments import CallArgument, TensorRef, show_argument
from tofuse.ir.dims import Dim, SymDim, product
from tofuse.ir.plan import (
    Address,
    Allocate,
    Arena,
    Call,
    Launch,
    Plan,
    Release,
    Tiles,
    View,
    launches_by_group,
    show_source,
    tiles_by_group,
)
from tofuse.ir.size_expression import SizeExpression
from tofuse.ir.types import DType
from tofuse.ir.verify_plan import ARENA
from tofuse.ops.reference import TO_TORCH
from tofuse.torch_internals.dispatch import PROFILER_FLAG

PROFILING = f"is_profiling.{PROFILER_FLAG}"
LARGE_ADDRESS = 1 << 40  # above all offsets, and below the memory of most systems


def plan_source(
    plan: Plan, timed: bool = False, seeds: frozenset[str] = frozenset()
) -> tuple[str, list[CallArgument]]:
    """Return the Python text of a plan, and the arguments that it reads as `constant<k>`.

    `timed` adds calls of `record(step, begin, end)`; `seeds` are the seeds of GPU kernels.
    """
    bound: list[CallArgument] = []
    names = [p.name for p in plan.parameters]
    lines = ["def run(args):"]
    if names:
        lines.append(f"{', '.join(names)}, = *args, *constants")
    lines.append("args.clear()")
    lines += [f"{name} = {show_source(plan, source)}" for name, source in plan.symbols]
    copies_back = any(p.mutated and p.strides for p in plan.parameters)
    lines += ["restrided = []"] if copies_back else []
    for p in plan.parameters:
        if p.strides:
            lines.append(_restride_source(p.name, p.strides, p.mutated))
    for name in (p.name for p in plan.parameters if p.donated):
        held = f"references({name}) != {LOCAL_REFERENCES} or is_shared({name})"
        lines.append(f"if {held}: {name} = {name}.clone()")
    foreign = _foreign_tensors(plan)
    for p in plan.parameters:
        if p.name in seeds:
            lines.append(f"{p.name}_at = seed_address({p.name})")
        elif p.name in foreign:
            lines += _location_source(p.name, p.mutated)
    groups, tiles = launches_by_group(plan), tiles_by_group(plan)
    returned = frozenset(plan.results)
    for k, step in enumerate(plan.steps):
        if isinstance(step, View):
            lines.append(_view_source(step, step.name in returned))
        elif isinstance(step, Launch) and step.group in tiles:
            source = _tiled_source(step, groups[step.group], tiles[step.group], foreign)
            lines += ["begin = now()", *source, f"record({k}, begin, now())"] if timed else source
        elif isinstance(step, Launch) and step.group is not None and not timed:
            launches = groups[step.group]
            lines += _group_source(launches, foreign) if step is launches[-1] else []
        else:  # when timed, launches of a group one by one
            source = _step_source(step, bound, foreign)
            if timed and isinstance(step, (Launch, Call)):
                source = ["begin = now()", *source, f"record({k}, begin, now())"]
            lines += source
            if isinstance(step, Call):
                seen = seeds.intersection(step.results)
                lines += [f"{name}_at = seed_address({name})" for name in sorted(seen)]
    if copies_back:
        copy = "old.data_ptr() == new.data_ptr() or old.copy_(new)"
        lines.append(f"for old, new in restrided: {copy}")
    lines.append(f"return [{', '.join(map(str, plan.results))}]")
    return "\n    ".join(lines), bound


def _foreign_tensors(plan: Plan) -> frozenset[str]:
    """Return the tensors that a plan reads or writes by address, and did not allocate itself."""
    names = {p.name for p in plan.parameters}
    names |= {name for step in plan.steps if isinstance(step, Call) for name in step.results}
    launches = [step for step in plan.steps if isinstance(step, Launch)]
    views = [step for step in plan.steps if isinstance(step, View)]
    return frozenset(
        names & {*(x.tensor for s in launches for x in s.tensors), *(v.source for v in views)}
    )


def _location_source(name: str, mutated: bool = False) -> list[str]:
    """Return the text that sets `<name>_at` to a tensor's address; zeros without memory are copied.

    Without memory, the address is the offset in the storage: a small number, which is compared
    first because that takes no call.
    """
    found = f"{name} = with_memory({name}, {mutated}); {name}_at = address({name})"
    return [f"{name}_at = {name}.data_ptr()", f"if {name}_at < {LARGE_ADDRESS}: {found}"]


def _retype_source(name: str, dtype: DType) -> str:
    """Return the text that converts a result if it is not of the dtype that torch predicted."""
    wanted = TO_TORCH[dtype]
    return f"if {name}.dtype is not {wanted}: {name} = {name}.to({wanted})"


def _step_source(
    step: Arena | Allocate | Launch | Call | Release | Tiles,
    bound: list[CallArgument],
    foreign: frozenset[str],
) -> list[str]:
    match step:
        case Tiles():  # their launches name them
            return []
        case Arena():
            return [
                f"arena = pooled({step.nbytes}, ({step.nbytes},), (1,), torch.uint8)",
                "base = arena.data_ptr()",
            ]
        case Allocate():
            shape, strides = _dims(step.shape), _dims(step.strides)
            dtype = TO_TORCH[step.dtype]
            if not step.on_host:
                return [f"{step.name} = {identifier(step.device)}({shape}, {strides}, {dtype})"]
            nbytes = product((*step.shape, step.dtype.itemsize))
            small = isinstance(nbytes, int) and nbytes < SMALLEST_POOLED
            if small or step.has_gaps:  # the pool's tensors have none
                return [f"{step.name} = empty({shape}, {strides}, {dtype})"]
            return [f"{step.name} = pooled({nbytes}, {shape}, {strides}, {dtype})"]
        case Launch():
            words = _words(step, foreign)
            call = f"k{step.kernel}"
            return [
                f"if {PROFILING}: launch_traced({step.name!r}, {call}, {', '.join(words)})",
                f"else: {call}({', '.join(words)})",
            ]
        case Call():
            located = [line for n in step.results if n in foreign for line in _location_source(n)]
            return _call_source(step, bound, foreign) + located
        case Release():
            return [f"del {', '.join(step.names)}"]


def _view_source(step: View, returned: bool) -> str:
    """Return the text that makes a view; autograd does not know it as a view.

    A returned view shares the version counter of its source, so that autograd detects writes to
    saved tensors. It must not be an autograd view: autograd rejects writes into views made by an
    autograd function. AOTAutograd makes the views that eager returns from their base.
    """
    source = f"{step.source}, {_dims(step.shape)}, {_dims(step.strides)}"
    if not returned:
        return f"{step.name} = reinterpret({source}, {step.offset})"
    offset = f"{step.source}.storage_offset() + {step.offset}"
    return f"{step.name} = as_strided({source}, {offset}).detach()"


def _group_source(launches: Sequence[Launch], foreign: frozenset[str]) -> list[str]:
    words = [w for x in launches for w in _words(x, foreign)]
    name, call = f"{launches[0].name} and {len(launches) - 1} more", f"g{launches[0].group}"
    return [
        f"words = ({', '.join(words)}, )",
        f"if {PROFILING}: launch_traced({name!r}, {call}, *words)",
        f"else: {call}(*words)",
    ]


def _tiled_source(
    step: Launch, launches: Sequence[Launch], tiles: Tiles, foreign: frozenset[str]
) -> list[str]:
    """Return the text of a launch of a group by tiles: the last one is the launch of all."""
    if step is not launches[-1]:
        return []
    without_memory = frozenset(s.name for s in tiles.scratch if not s.is_allocated)
    source = [f"{name} = SPARE" for name in sorted(without_memory)]
    return [*source, *_group_source(launches, foreign)]


def _words(launch: Launch, foreign: frozenset[str]) -> list[str]:
    """Return the text of the words that a launch passes: addresses, then sizes."""
    return [*(_address(x, foreign) for x in launch.tensors), *map(str, launch.sizes)]


def _address(x: Address, foreign: frozenset[str]) -> str:
    start = f"{x.tensor}_at" if x.tensor in foreign else f"{x.tensor}.data_ptr()"
    start = "base" if x.tensor == ARENA else start
    return f"{start} + {x.offset}" if x.offset else start


def _call_source(step: Call, bound: list[CallArgument], foreign: frozenset[str]) -> list[str]:
    arguments = [_argument_source(a, bound) for a in step.arguments.positional]
    arguments += [f"{k}={_argument_source(a, bound)}" for k, a in step.arguments.keyword]
    call = f"{identifier(step.target)}({', '.join(arguments)})"
    if not step.results:
        return [call]
    if step.picks:
        lines = [f"r = {call}"]
        lines += [f"{n} = r[{k}]" for n, k in zip(step.results, step.picks, strict=True)]
        lines.append("del r")
    else:
        lines = [f"{step.results[0]} = {call}"]
    for name, shape in zip(step.results, step.shapes, strict=False):
        lines.append(f"check_shape({step.target!r}, {name}.shape, {_dims(shape)})")
    for name, dtype in zip(step.results, step.dtypes, strict=False):
        if name in foreign and dtype in TO_TORCH:
            lines.append(_retype_source(name, dtype))
    for name, strides in zip(step.results, step.strides, strict=True):
        if strides:
            lines.append(_restride_source(name, strides))
    return lines


def _restride_source(name: str, strides: tuple[Dim, ...], mutated: bool = False) -> str:
    """Return the text that gives a tensor these strides; a mutated one is copied back later."""
    check, copy = f"if {name}.stride() != {_dims(strides)}: ", f"restride({name}, {_dims(strides)})"
    return check + (
        f"restrided.append(({name}, {name} := {copy}))" if mutated else f"{name} = {copy}"
    )


def _argument_source(argument: CallArgument, bound: list[CallArgument]) -> str:
    """Return the text of an argument; constants other than integers are bound as values."""
    match argument:
        case tuple():
            return f"[{', '.join(_argument_source(a, bound) for a in argument)}]"
        case TensorRef() | SymDim() | SizeExpression() | bool() | int() | None:
            return show_argument(argument)
        case _:
            bound.append(argument)
            return f"constant{len(bound) - 1}"


def _dims(dims: tuple[Dim, ...]) -> str:
    return f"({''.join(f'{d}, ' for d in dims)})"


def identifier(target: str) -> str:
    return target.replace(".", "_").replace(":", "_")
