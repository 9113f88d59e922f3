"""Plan -> callable: write the plan as straight-line Python, which has little overhead per call."""

from __future__ import annotations

import marshal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from sys import getrefcount
from types import FunctionType, MappingProxyType

import torch

from tofuse.backends.cpu.runtime.group_launch import GroupLauncher
from tofuse.backends.cpu.runtime.launch import Launcher
from tofuse.backends.cpu.runtime.pool import LOCAL_REFERENCES, POOL, is_shared
from tofuse.backends.cuda.runtime.cuda import empty_on, seed_address
from tofuse.backends.launcher import KernelLauncher
from tofuse.cost.machine import SMALLEST_POOLED
from tofuse.cost.thresholds import MIN_CALLS_OF_PLAN_WITH_ROOM
from tofuse.errors import TofuseError
from tofuse.ir.call_arguments import CallArgument, TensorRef, show_argument
from tofuse.ir.dims import Dim, SymDim, equal_strides, product
from tofuse.ir.machine_function import Entry
from tofuse.ir.plan import (
    Address,
    Allocate,
    Arena,
    Call,
    Launch,
    Plan,
    Release,
    View,
    launches_by_group,
    show_source,
)
from tofuse.ir.size_expression import SIZE_FUNCTIONS, SizeExpression
from tofuse.ir.types import DType
from tofuse.ir.verify_plan import ARENA
from tofuse.ops.check_shape import check_shape
from tofuse.ops.reference import TO_TORCH, draw_seed, resolve_operator, torch_constant
from tofuse.runtime.frame_room import with_room
from tofuse.runtime.timing import Clock, now
from tofuse.torch_internals.dispatch import PROFILER_FLAG, profiler_state
from tofuse.torch_internals.memory import reinterpret_tensor
from tofuse.torch_internals.operators import OpOverload, without_python
from tofuse.torch_internals.packed_convolutions import PACKED_CONVOLUTION_TARGET, packed_convolution

Tensor = torch.Tensor  # for modules that only pass tensors on and do not import torch
PROFILING = f"is_profiling.{PROFILER_FLAG}"  # in the text of a plan
SPARE = torch.zeros(8, device="cpu")  # what kernels read of tensors without memory
OUR_OPERATORS = {"tofuse.seed.default": draw_seed, PACKED_CONVOLUTION_TARGET: packed_convolution}
LARGE_ADDRESS = 1 << 40  # above all offsets, and below the memory of most systems
CompiledPlan = Callable[[list[object]], list[Tensor]]  # and sizes, for AOTAutograd


@dataclass(frozen=True)
class PlanCode:
    """The Python code of a plan for one release of Python, and what it reads as `constant<k>`."""

    marshalled: bytes
    constants: tuple[CallArgument, ...]


def load_plan(
    plan: Plan,
    kernels: Sequence[KernelLauncher],
    driver: Entry,
    constants: Sequence[torch.Tensor],
    fallbacks: Mapping[str, Callable[..., object]],
    clock: Clock | None = None,
    code: PlanCode | None = None,
    gpu_groups: Mapping[int, Callable[..., None]] = MappingProxyType({}),
) -> CompiledPlan:
    """Return a callable that takes the flat arguments in one list, and empties the list.

    A clock records when each launch and library call began and ended. `code` is that of
    `plan_code`, if it is already known. `gpu_groups` launch the groups of GPU kernels.
    """
    namespace = dict(
        fallbacks,
        **SIZE_FUNCTIONS,
        torch=torch,
        empty=POOL.allocate,
        pooled=POOL.empty,
        as_strided=torch.as_strided,
        reinterpret=reinterpret_tensor,
        restride=restride,
        check_shape=check_shape,
        with_memory=with_memory,
        address=address,
        seed_address=seed_address,
        references=getrefcount,
        is_shared=is_shared,
        launch_traced=_launch_traced,
        constants=tuple(constants),
    )
    namespace |= {f"k{k}": kernel for k, kernel in enumerate(kernels)}
    for number, launches in launches_by_group(plan).items():
        members = [m for x in launches if isinstance(m := kernels[x.kernel], Launcher)]
        group = gpu_groups.get(number)
        namespace[f"g{number}"] = group or GroupLauncher(driver, members)
    for step in plan.steps:
        if isinstance(step, Call) and step.target not in fallbacks:
            namespace[_identifier(step.target)] = _operator(step.target)
        if isinstance(step, Allocate) and not step.on_host:
            namespace[_identifier(step.device)] = empty_on(step.device)
    namespace["is_profiling"] = profiler_state
    if clock is not None:
        namespace |= {"now": now, "record": clock.record}
    if code is None:
        code = plan_code(plan, kernels, timed=clock is not None)
    namespace |= {f"constant{k}": torch_constant(x) for k, x in enumerate(code.constants)}
    exec(marshal.loads(code.marshalled), namespace)
    run = namespace["run"]
    assert isinstance(run, FunctionType)  # what `source` defines
    calls = sum(isinstance(step, (Launch, Call)) for step in plan.steps)
    if calls >= MIN_CALLS_OF_PLAN_WITH_ROOM:
        with_room(run)
    return run


def _gpu_seeds(plan: Plan, kernels: Sequence[KernelLauncher]) -> frozenset[str]:
    """Return the tensors that GPU kernels take seeds from."""
    launches = (step for step in plan.steps if isinstance(step, Launch))
    return frozenset(x.tensors[k].tensor for x in launches for k in kernels[x.kernel].host_seeds)


def plan_code(plan: Plan, kernels: Sequence[KernelLauncher], timed: bool = False) -> PlanCode:
    """Return the Python code of a plan; see `plan_source`."""
    source, constants = plan_source(plan, timed, _gpu_seeds(plan, kernels))
    code = compile(source, f"<tofuse {plan.name}>", "exec")
    return PlanCode(marshal.dumps(code), tuple(constants))


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
    groups = launches_by_group(plan)
    returned = frozenset(plan.results)
    for k, step in enumerate(plan.steps):
        if isinstance(step, View):
            lines.append(_view_source(step, step.name in returned))
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
    step: Arena | Allocate | Launch | Call | Release,
    bound: list[CallArgument],
    foreign: frozenset[str],
) -> list[str]:
    match step:
        case Arena():
            return [
                f"arena = pooled({step.nbytes}, ({step.nbytes},), (1,), torch.uint8)",
                "base = arena.data_ptr()",
            ]
        case Allocate():
            shape, strides = _dims(step.shape), _dims(step.strides)
            dtype = TO_TORCH[step.dtype]
            if not step.on_host:
                return [f"{step.name} = {_identifier(step.device)}({shape}, {strides}, {dtype})"]
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
    call = f"{_identifier(step.target)}({', '.join(arguments)})"
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


def _identifier(target: str) -> str:
    return target.replace(".", "_").replace(":", "_")


def _operator(target: str) -> object:
    """Return the operator of `aten.mm.default` without its Python wrapper, which takes 1 us.

    Some of our own operators are called without the dispatcher too.
    """
    if target in OUR_OPERATORS:
        return OUR_OPERATORS[target]
    operator = resolve_operator(target)
    return without_python(operator) if isinstance(operator, OpOverload) else operator


def restride(t: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
    """Return the tensor with the given strides; elements along a stride of 0 must be equal.

    The memory is shared if only the strides of dimensions with at most one element differ.
    """
    if equal_strides(t.stride(), strides, t.shape) or t.numel() == 0:
        return t.as_strided(t.shape, strides).detach()
    distinct = tuple(1 if s == 0 else n for s, n in zip(strides, t.shape, strict=True))
    copy = torch.empty_strided(distinct, strides, dtype=t.dtype, device=t.device)
    copy.copy_(t.as_strided(distinct, t.stride()))  # write repeated elements once
    return copy.expand(t.shape)


def with_memory(t: torch.Tensor, mutated: bool) -> torch.Tensor:
    """Return a tensor, or a copy if it has no memory; an empty tensor needs none.

    The gradients of `sgn` and `round` are zeros without memory. Raises TofuseError for other
    tensors without memory, such as fake tensors, and PyTorch's error if zeros are to be written.
    """
    if not t.numel() or _has_memory(t):
        return t
    if t.untyped_storage().nbytes():
        copy = t.zero_() if mutated else t.clone()
        if _has_memory(copy):
            return copy
    raise TofuseError(
        f"a {type(t).__name__} of shape {list(t.shape)} has no memory, which kernels need"
    )


def address(t: torch.Tensor) -> int:
    """Return the address of a tensor's first element.

    PyTorch gives an empty tensor the address 0. A kernel may still read from it: an element that
    all iterations of the loops share is read before the loops, also if they have no iteration. So
    an empty tensor gets the address of its storage, or of spare memory if its storage is empty.
    """
    if t.numel():
        return t.data_ptr()
    storage = t.untyped_storage()
    offset = int(t.storage_offset()) * t.element_size()
    return storage.data_ptr() + offset if offset < storage.nbytes() else SPARE.data_ptr()


def _has_memory(t: torch.Tensor) -> bool:
    """Return whether a tensor has memory, so that its address is more than an offset."""
    return t.data_ptr() not in (0, t.storage_offset() * t.element_size())


def _launch_traced(name: str, kernel: Callable[..., None], *words: int) -> None:
    """Launch a kernel inside a range of the profiler."""
    with torch.profiler.record_function(f"tofuse::{name}"):
        kernel(*words)
