"""Plan -> callable: load the text of a plan with all that it names."""

from __future__ import annotations

import marshal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from sys import getrefcount
from types import FunctionType, MappingProxyType

import torch

from tofuse.backends.cpu.runtime.group_launch import DriverFunctions, GroupLauncher
from tofuse.backends.cpu.runtime.launch import Launcher
from tofuse.backends.cpu.runtime.pool import POOL, is_shared
from tofuse.backends.cpu.runtime.tile_launch import TileLauncher
from tofuse.backends.cuda.runtime.cuda import empty_on, seed_address
from tofuse.backends.launcher import KernelLauncher
from tofuse.cost.thresholds import MIN_CALLS_OF_PLAN_WITH_ROOM
from tofuse.errors import TofuseError
from tofuse.ir.call_arguments import CallArgument
from tofuse.ir.dims import equal_strides
from tofuse.ir.plan import (
    Allocate,
    Call,
    Launch,
    Plan,
    launches_by_group,
    tiles_by_group,
)
from tofuse.ir.size_expression import SIZE_FUNCTIONS
from tofuse.ops.check_shape import check_shape
from tofuse.ops.reference import draw_seed, resolve_operator, torch_constant
from tofuse.runtime.frame_room import with_room
from tofuse.runtime.plan_source import identifier, plan_source
from tofuse.runtime.timing import Clock, now
from tofuse.torch_internals.dispatch import profiler_state
from tofuse.torch_internals.memory import reinterpret_tensor
from tofuse.torch_internals.operators import OpOverload, without_python
from tofuse.torch_internals.packed_convolutions import PACKED_CONVOLUTION_TARGET, packed_convolution

Tensor = torch.Tensor  # for modules that only pass tensors on and do not import torch
SPARE = torch.zeros(8, device="cpu")  # what kernels read of tensors without memory
OUR_OPERATORS = {"tofuse.seed.default": draw_seed, PACKED_CONVOLUTION_TARGET: packed_convolution}
CompiledPlan = Callable[[list[object]], list[Tensor]]  # and sizes, for AOTAutograd


@dataclass(frozen=True)
class PlanCode:
    """The Python code of a plan for one release of Python, and what it reads as `constant<k>`."""

    marshalled: bytes
    constants: tuple[CallArgument, ...]


def load_plan(
    plan: Plan,
    kernels: Sequence[KernelLauncher],
    driver: DriverFunctions,
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
        SPARE=SPARE,
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
    tiles = tiles_by_group(plan)
    for number, launches in launches_by_group(plan).items():
        members = [m for x in launches if isinstance(m := kernels[x.kernel], Launcher)]
        group = gpu_groups.get(number)
        if number in tiles:
            group = TileLauncher(*driver, members, launches, tiles[number])
        namespace[f"g{number}"] = group or GroupLauncher(driver.run, members)
    for step in plan.steps:
        if isinstance(step, Call) and step.target not in fallbacks:
            namespace[identifier(step.target)] = _operator(step.target)
        if isinstance(step, Allocate) and not step.on_host:
            namespace[identifier(step.device)] = empty_on(step.device)
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
