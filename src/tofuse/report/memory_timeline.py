"""Live bytes at each step: of the plan, and of the program run op by op."""

from __future__ import annotations

from dataclasses import dataclass

from tofuse.ir.dims import product, size_hint
from tofuse.ir.graph import Value
from tofuse.ir.plan import Allocate, Arena, Call, Launch, Release, Step, View
from tofuse.ir.plan.parse import parse_plan
from tofuse.ir.plan.verify import defines
from tofuse.ops.aten_aliases import alias_base
from tofuse.report.measured_times import step_regions
from tofuse.report.program_view import ProgramView, plan_name, short_name


@dataclass(frozen=True)
class MemorySample:
    """The live bytes while a step or op runs, without the program's inputs."""

    name: str
    nbytes: int


def plan_memory(program: ProgramView) -> tuple[MemorySample, ...]:
    """Return one sample for each launch and library call of the plan, its results included."""
    plan = parse_plan(program.report.plan)
    names = step_regions(plan, program.report)
    values = {plan_name(v.name): v for op in program.graph.ops for v in op.results}
    size: dict[str, int] = {}  # bytes of the tensors that own memory
    base_of: dict[str, str] = {}
    aliases_of: dict[str, set[str]] = {}
    live, samples = 0, []
    for k, step in enumerate(plan.steps):
        match step:
            case Arena():
                live += step.nbytes
            case Allocate():
                size[step.name] = size_hint(product((*step.shape, step.dtype.itemsize)))
                base_of[step.name] = step.name
                aliases_of[step.name] = {step.name}
                live += size[step.name]
            case View():
                _record_alias(step, step.source, base_of, aliases_of)
            case Call():
                source = alias_base(step)
                if source is not None:
                    _record_alias(step, source, base_of, aliases_of)
                for n in step.results if source is None else ():
                    size[n] = size_hint(values[n].type.nbytes) if n in values else 0
                    base_of[n], aliases_of[n] = n, {n}
                    live += size[n]
                samples.append(MemorySample(names.get(k, step.target), live))
            case Launch():
                samples.append(MemorySample(names.get(k, step.name), live))
            case Release():
                for n in step.names:
                    base = base_of.pop(n, None)
                    if base is not None:
                        aliases_of[base].discard(n)
                        live -= 0 if aliases_of[base] else size[base]
    return tuple(samples)


def op_memory(program: ProgramView) -> tuple[MemorySample, ...]:
    """Return one sample for each op, as if each ran by itself and dead values were freed."""
    graph = program.graph
    base: dict[Value, Value] = {}
    for op in program.views:
        if op.inputs:
            base[op.result] = base.get(op.inputs[0], op.inputs[0])
    last_use: dict[Value, int] = {}
    for k, op in enumerate(graph.ops):
        for v in op.inputs:
            last_use[base.get(v, v)] = k
    returned = {base.get(v, v) for v in graph.outputs if v is not None}
    computing = set(program.ops)
    size_of: dict[Value, int] = {}
    samples: list[MemorySample] = []
    dying: dict[int, list[Value]] = {}
    live = 0
    for k, op in enumerate(graph.ops):
        if op in computing:
            for r in op.results:
                size_of[r] = size_hint(r.type.nbytes)
                live += size_of[r]
                if r not in returned:
                    dying.setdefault(last_use.get(r, k), []).append(r)
            samples.append(MemorySample(short_name(op), live))
        live -= sum(size_of[v] for v in dying.pop(k, ()))
    return tuple(samples)


def _record_alias(
    step: Step, source: str, base_of: dict[str, str], aliases_of: dict[str, set[str]]
) -> None:
    """Record a step's results as aliases of `source`, unless the caller owns its memory."""
    base = base_of.get(source)
    if base is not None:
        base_of.update(dict.fromkeys(defines(step), base))
        aliases_of[base].update(defines(step))
