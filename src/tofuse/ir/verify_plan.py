"""Verify that a plan reads only tensors that exist and have not been released."""

from __future__ import annotations

from collections.abc import Iterable

from tofuse.errors import VerifyError
from tofuse.ir.dims import Dim, SymDim, symbols_of
from tofuse.ir.plan import Allocate, Arena, Call, Launch, Plan, Release, Step, View, show_step
from tofuse.ir.size_expression import ArgumentSize, size_symbols


def verify_plan(plan: Plan) -> None:
    """Raise VerifyError unless every tensor has one definition, before its uses and its release."""
    arena_bytes = -1  # no arena yet
    live: set[str] = set()
    defined: set[str] = set()
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
        if isinstance(step, Launch):
            _verify_arena_offsets(step, arena_bytes, where)
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
        elif source.argument >= len(plan.parameters):
            raise VerifyError(f"there is no parameter {source.argument}, in {where}")
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
        case Launch() | Release():
            return ()


def _define(name: str, live: set[str], defined: set[str], where: str) -> None:
    if name in defined:
        raise VerifyError(f"{name} is defined twice, the second time in {where}")
    live.add(name)
    defined.add(name)


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
        case Arena() | Release():
            return ()


def _verify_sizes(dims: Iterable[Dim], symbols: set[str], where: str) -> None:
    for d in dims:
        _verify_symbols(symbols_of(d), symbols, where)


def _verify_symbols(used: Iterable[str], symbols: set[str], where: str) -> None:
    for s in used:
        if s not in symbols:
            raise VerifyError(f"the size {s} is not defined, in {where}")


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
