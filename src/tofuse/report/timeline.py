"""Bytes alive at each step: of the plan, and of the program run op by op."""

from __future__ import annotations

from dataclasses import dataclass

from tofuse.ir.dims import hint, product
from tofuse.ir.graph import Value
from tofuse.ir.plan import Allocate, Arena, Call, Launch, Release, Step, View
from tofuse.ir.plan.parse import parse_plan
from tofuse.ir.plan.verify import makes
from tofuse.ops.aten_aliases import lender
from tofuse.report.measured_times import step_regions
from tofuse.report.program_view import Program, short_name, variable


@dataclass(frozen=True)
class Moment:
    """What is alive while something runs: bytes of results, inputs not counted."""

    name: str
    nbytes: int


def plan_memory(program: Program) -> tuple[Moment, ...]:
    """One moment for each launch and call of the plan, its results included."""
    plan = parse_plan(program.report.plan)
    names = step_regions(plan, program.report)
    values = {variable(v.name): v for op in program.graph.ops for v in op.results}
    size: dict[str, int] = {}  # of tensors that own memory
    owner: dict[str, str] = {}
    names_of: dict[str, set[str]] = {}
    live, moments = 0, []
    for k, step in enumerate(plan.steps):
        match step:
            case Arena():
                live += step.nbytes
            case Allocate():
                size[step.name] = hint(product((*step.shape, step.dtype.itemsize)))
                owner[step.name] = step.name
                names_of[step.name] = {step.name}
                live += size[step.name]
            case View():
                _lend(step, step.source, owner, names_of)
            case Call():
                source = lender(step)
                if source is not None:
                    _lend(step, source, owner, names_of)
                for n in step.results if source is None else ():
                    size[n] = hint(values[n].type.nbytes) if n in values else 0
                    owner[n], names_of[n] = n, {n}
                    live += size[n]
                moments.append(Moment(names.get(k, step.target), live))
            case Launch():
                moments.append(Moment(names.get(k, step.name), live))
            case Release():
                for n in step.names:
                    root = owner.pop(n, None)
                    if root is not None:
                        names_of[root].discard(n)
                        live -= 0 if names_of[root] else size[root]
    return tuple(moments)


def op_memory(program: Program) -> tuple[Moment, ...]:
    """The same if every op ran by itself and freed what nothing reads any more."""
    graph = program.graph
    root: dict[Value, Value] = {}
    for op in program.views:
        if op.inputs:
            root[op.result] = root.get(op.inputs[0], op.inputs[0])
    last: dict[Value, int] = {}
    for k, op in enumerate(graph.ops):
        for v in op.inputs:
            last[root.get(v, v)] = k
    kept = {root.get(v, v) for v in graph.outputs if v is not None}
    computing = set(program.ops)
    owned: dict[Value, int] = {}
    moments: list[Moment] = []
    ending: dict[int, list[Value]] = {}
    live = 0
    for k, op in enumerate(graph.ops):
        if op in computing:
            for r in op.results:
                owned[r] = hint(r.type.nbytes)
                live += owned[r]
                if r not in kept:
                    ending.setdefault(last.get(r, k), []).append(r)
            moments.append(Moment(short_name(op), live))
        live -= sum(owned[v] for v in ending.pop(k, ()))
    return tuple(moments)


def _lend(step: Step, source: str, owner: dict[str, str], names_of: dict[str, set[str]]) -> None:
    """What a step makes of a tensor lies in its memory; an argument's is the caller's."""
    root = owner.get(source)
    if root is not None:
        owner.update(dict.fromkeys(makes(step), root))
        names_of[root].update(makes(step))
