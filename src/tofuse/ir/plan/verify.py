"""Checks that a plan reads only tensors that exist and have not been released."""

from __future__ import annotations

import re
from collections.abc import Iterable

from tofuse.errors import VerifyError
from tofuse.ir.dims import Dim, parse_dim, symbols_of
from tofuse.ir.plan.data import Allocate, Arena, Call, Launch, Plan, Release, Step, View, show_step


def verify_plan(plan: Plan) -> None:
    """Raise VerifyError unless every tensor is made once, before its uses, and released after."""
    room = -1  # bytes of the arena, once there is one
    live: set[str] = set()
    made: set[str] = set()
    for p in plan.parameters:
        _make(p.name, live, made, "the parameters")
    symbols = {name for name, _ in plan.symbols}
    if clash := sorted(symbols & made):
        raise VerifyError(f"{clash[0]} names both a tensor and a size")
    for p in plan.parameters:
        _verify_sizes(p.strides or (), symbols, f"parameter {p.name}")
    for step in plan.steps:
        where = f"'{show_step(step)}'"
        for name in reads(step):
            if name not in live:
                state = "was released before" if name in made else "is not made before"
                raise VerifyError(f"{name} {state}, in {where}")
        _verify_sizes(_dims(step), symbols, where)
        if isinstance(step, Arena):
            room = step.nbytes
        if isinstance(step, Launch):
            _verify_places(step, room, where)
        if isinstance(step, Call):
            _verify_call(step, where)
        if isinstance(step, Release):
            room = -1 if ARENA in step.names else room
            live -= set(step.names)
            if len(set(step.names)) != len(step.names):
                raise VerifyError(f"a tensor is released twice, in {where}")
        for name in makes(step):
            _make(name, live, made, where)
    _verify_results(plan, live, made, symbols)


def reads(step: Step) -> tuple[str, ...]:
    """The tensors a step needs; a library call's stand in its text as t_..."""
    match step:
        case Launch():
            return tuple(base_of(t) for t in step.tensors if not t.startswith(INSIDE))
        case Call():
            return tuple(re.findall(r"\bt_\w+", step.args))
        case View():
            return (step.source,)
        case Release():
            return step.names
        case Allocate() | Arena():
            return ()


def base_of(tensor: str) -> str:
    """The tensor in which a launch's begins: `t_x` of `t_x+64`, which is 64 bytes behind."""
    return tensor.partition("+")[0]


def makes(step: Step) -> tuple[str, ...]:
    """The tensors that exist after a step and did not before."""
    match step:
        case Allocate() | View():
            return (step.name,)
        case Call():
            return step.results
        case Arena():
            return (ARENA,)
        case Launch() | Release():
            return ()


def _make(name: str, live: set[str], made: set[str], where: str) -> None:
    if name in made:
        raise VerifyError(f"{name} is made twice, the second time in {where}")
    live.add(name)
    made.add(name)


def _dims(step: Step) -> Iterable[Dim]:
    match step:
        case Allocate():
            return (*step.shape, *step.strides)
        case View():
            return (*step.shape, *step.strides, step.offset)
        case Launch():
            return tuple(parse_dim(s) for s in step.symbols)
        case Call():
            return tuple(d for strides in step.strides for d in strides or ())
        case Arena() | Release():
            return ()


def _verify_sizes(dims: Iterable[Dim], symbols: set[str], where: str) -> None:
    for d in dims:
        for s in symbols_of(d):
            if s not in symbols:
                raise VerifyError(f"the size {s} is not known, in {where}")


def _verify_places(step: Launch, room: int, where: str) -> None:
    for t in step.tensors:
        if t.startswith(INSIDE) and int(t.removeprefix(INSIDE)) >= room:
            raise VerifyError(f"{t} lies outside an arena of {max(0, room)} bytes, in {where}")


def _verify_call(step: Call, where: str) -> None:
    if len(step.strides) != len(step.results):
        raise VerifyError(
            f"{len(step.strides)} layouts for {len(step.results)} results, in {where}"
        )
    if len(step.picks) != len(step.results) and (step.picks or len(step.results) > 1):
        raise VerifyError(f"{len(step.picks)} picks for {len(step.results)} results, in {where}")


def _verify_results(plan: Plan, live: set[str], made: set[str], symbols: set[str]) -> None:
    for name in plan.results:
        if name in live or name == "None":
            continue
        if name in made:
            raise VerifyError(f"the result {name} is released")
        if name.startswith("t_"):
            raise VerifyError(f"the result {name} is not made")
        _verify_sizes((parse_dim(name),), symbols, "the results")


ARENA = "arena"  # the name of that block among tensors
INSIDE = "arena+"  # stands before the byte of the arena at which a launch's tensor begins
