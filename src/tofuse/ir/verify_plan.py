"""Verify that a plan reads only tensors that exist and have not been released."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from keyword import iskeyword

from tofuse.errors import VerifyError
from tofuse.ir.dims import Dim, SymDim, symbols_of
from tofuse.ir.plan import (
    Allocate,
    Arena,
    Call,
    Launch,
    Plan,
    Release,
    Step,
    Tiles,
    View,
    launches_by_group,
    show_step,
)
from tofuse.ir.size_expression import ArgumentSize, size_symbols


@dataclass(frozen=True)
class KernelSignature:
    """How many tensors and sizes a kernel takes; `groups`: it may be launched in a group."""

    tensors: int
    sizes: int
    groups: bool


def verify_plan(plan: Plan, kernels: Sequence[KernelSignature] | None = None) -> None:
    """Raise VerifyError unless every tensor has one definition, before its uses and its release.

    With the signatures of its kernels, each launch must have a kernel's number of operands.
    """
    arena_bytes = -1  # no arena yet
    live: set[str] = set()
    defined: set[str] = set()
    groups = launches_by_group(plan)
    elements: dict[str, int] = {}  # from the start of a tensor to the end of its memory, if known
    for p in plan.parameters:
        _define(p.name, live, defined, "the parameters")
    symbols = _verify_sources(plan)
    if clash := sorted(symbols & defined):
        raise VerifyError(f"{clash[0]} names both a tensor and a size")
    for p in plan.parameters:
        _verify_sizes(p.strides or (), symbols, f"parameter {p.name}")
    for step in plan.steps:
        where = f"'{show_step(step)}'"
        for name in reads(step):
            if name not in live:
                state = "was released before" if name in defined else "is not defined before"
                raise VerifyError(f"{name} {state}, in {where}")
        _verify_sizes(_dims(step), symbols, where)
        if isinstance(step, Arena):
            arena_bytes = step.nbytes
        if isinstance(step, (Allocate, View)):
            _verify_extent(step, elements, where)
        if isinstance(step, Tiles) and len(step.rows) != len(groups.get(step.group, ())):
            raise VerifyError(f"the group has not so many launches, in {where}")
        if isinstance(step, Launch):
            _verify_arena_offsets(step, arena_bytes, where)
            if kernels is not None:
                _verify_operands(step, kernels, where)
        if isinstance(step, Call):
            _verify_call(step, where)
            _verify_symbols(step.arguments.symbols, symbols, where)
        if isinstance(step, Release):
            arena_bytes = -1 if ARENA in step.names else arena_bytes
            live -= set(step.names)
            if len(set(step.names)) != len(step.names):
                raise VerifyError(f"a tensor is released twice, in {where}")
        for name in defines(step):
            _define(name, live, defined, where)
    _verify_results(plan, live, defined, symbols)


def _verify_sources(plan: Plan) -> set[str]:
    """Return the sizes; each is read from a parameter or computed from earlier ones."""
    symbols: set[str] = set()
    for name, source in plan.symbols:
        where = f"the source of {name}"
        if not isinstance(source, ArgumentSize):
            _verify_symbols(size_symbols(source), symbols, where)
        elif not 0 <= source.argument < len(plan.parameters) or source.dim < 0:
            raise VerifyError(f"there is no parameter {source.argument}, in {where}")
        _verify_name(name, where)
        symbols.add(name)
    return symbols


def reads(step: Step) -> tuple[str, ...]:
    """Return the tensors a step reads, in order; a call may repeat one."""
    match step:
        case Launch():
            return tuple(t.tensor for t in step.tensors if t.tensor != ARENA)
        case Call():
            return step.arguments.tensor_names
        case View():
            return (step.source,)
        case Release():
            return step.names
        case Tiles():
            return tuple(s.name for s in step.scratch if s.is_allocated)
        case Allocate() | Arena():
            return ()


def defines(step: Step) -> tuple[str, ...]:
    """Return the tensors that a step creates."""
    match step:
        case Allocate() | View():
            return (step.name,)
        case Call():
            return step.results
        case Arena():
            return (ARENA,)
        case Tiles():
            return tuple(s.name for s in step.scratch if not s.is_allocated)
        case Launch() | Release():
            return ()


def _define(name: str, live: set[str], defined: set[str], where: str) -> None:
    if name in defined:
        raise VerifyError(f"{name} is defined twice, the second time in {where}")
    _verify_name(name, where)
    live.add(name)
    defined.add(name)


def _verify_name(name: str, where: str) -> None:
    if not name.isidentifier() or iskeyword(name):
        raise VerifyError(f"{name!r} is no name, in {where}")


def _dims(step: Step) -> Iterable[Dim]:
    match step:
        case Allocate():
            return (*step.shape, *step.strides)
        case View():
            return (*step.shape, *step.strides, step.offset)
        case Launch():
            return step.sizes
        case Call():
            return tuple(d for dims in (*step.strides, *step.shapes) for d in dims or ())
        case Arena() | Release() | Tiles():
            return ()


def _verify_sizes(dims: Iterable[Dim], symbols: set[str], where: str) -> None:
    for d in dims:
        _verify_symbols(symbols_of(d), symbols, where)


def _verify_symbols(used: Iterable[str], symbols: set[str], where: str) -> None:
    for s in used:
        if s not in symbols:
            raise VerifyError(f"the size {s} is not defined, in {where}")


def _verify_extent(step: Allocate | View, elements: dict[str, int], where: str) -> None:
    """Check that a view is inside of the memory of its source, as far as sizes are numbers."""
    offset = step.offset if isinstance(step, View) else 0
    dims = (*step.shape, *step.strides, offset)
    if len(step.shape) != len(step.strides) or any(isinstance(d, int) and d < 0 for d in dims):
        raise VerifyError(f"a shape, strides or an offset cannot be, in {where}")
    numbers = [d for d in dims if isinstance(d, int)]
    if len(numbers) != len(dims):
        return
    rank = len(step.shape)
    pairs = zip(numbers[:rank], numbers[rank:], strict=False)
    reach = 1 + sum((n - 1) * stride for n, stride in pairs) if 0 not in numbers[:rank] else 0
    if isinstance(step, Allocate):
        elements[step.name] = reach
    elif step.source in elements:
        elements[step.name] = elements[step.source] - numbers[-1]
        if reach > elements[step.name]:
            raise VerifyError(f"a view is outside of its source, in {where}")


def _verify_operands(step: Launch, kernels: Sequence[KernelSignature], where: str) -> None:
    if not 0 <= step.kernel < len(kernels):
        raise VerifyError(f"there is no kernel {step.kernel}, in {where}")
    kernel = kernels[step.kernel]
    if (len(step.tensors), len(step.sizes)) != (kernel.tensors, kernel.sizes):
        expected = f"{kernel.tensors} tensors and {kernel.sizes} sizes"
        raise VerifyError(f"kernel {step.kernel} takes {expected}, in {where}")
    if step.group is not None and not kernel.groups:
        raise VerifyError(f"kernel {step.kernel} cannot run in a group, in {where}")


def _verify_arena_offsets(step: Launch, arena_bytes: int, where: str) -> None:
    for t in step.tensors:
        if t.tensor == ARENA and (t.offset or 0) >= arena_bytes:
            size = max(0, arena_bytes)
            raise VerifyError(f"{t} is outside an arena of {size} bytes, in {where}")


def _verify_call(step: Call, where: str) -> None:
    if step.arguments.operand_indices:
        raise VerifyError(f"${step.arguments.operand_indices[0]} names no tensor, in {where}")
    if len(step.strides) != len(step.results):
        raise VerifyError(
            f"{len(step.strides)} stride tuples for {len(step.results)} results, in {where}"
        )
    if len(step.picks) != len(step.results) and (step.picks or len(step.results) > 1):
        raise VerifyError(f"{len(step.picks)} picks for {len(step.results)} results, in {where}")


def _verify_results(plan: Plan, live: set[str], defined: set[str], symbols: set[str]) -> None:
    for name in plan.results:
        if isinstance(name, (int, SymDim)):
            _verify_sizes((name,), symbols, "the results")
        elif name is not None and name not in live:
            state = "released" if name in defined else "not defined"
            raise VerifyError(f"the result {name} is {state}")


ARENA = "arena"  # the name of the arena among the tensors of a plan
