"""The levels of programs as text, with the passes over each: what `tofuse opt` runs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar, Union

from tofuse.analysis.alias import AliasAnalysis
from tofuse.backends.cpu.schedule.build_nest import build_nest
from tofuse.backends.cpu.schedule.choose_schedule import choose_schedule
from tofuse.backends.cpu.schedule.dead_statements import dead_statements
from tofuse.backends.cuda.schedule.build_tiles import build_tiles
from tofuse.backends.cuda.triton.emit import emit as emit_triton
from tofuse.backends.target import Backend, KernelRequest
from tofuse.config import make_config
from tofuse.cost.machine import default_machine
from tofuse.driver.pipeline import (
    CPU_KERNEL_PASSES,
    FIRST_GRAPH_PASSES,
    GRAPH_PASSES,
    KERNEL_PASSES,
    LAST_GRAPH_PASSES,
    NEST_PASSES,
    VIEW_PASSES,
    cost_oracle,
    fuse,
    run_graph_passes,
)
from tofuse.errors import CompileError, OptionError, ParseError, VerifyError, did_you_mean
from tofuse.fusion.concat.eliminate_concats import eliminate_concats
from tofuse.fusion.fold_epilogues import fold_epilogues
from tofuse.fusion.lowering_memo import LoweringMemo, own_kernel
from tofuse.fusion.overlap_collectives import overlap_collectives
from tofuse.fusion.partition.partitioner import ViewPass
from tofuse.fusion.split_reductions import split_reductions
from tofuse.graph_partition import Partition, show_partition
from tofuse.graph_partition.parse import parse_partition
from tofuse.ir.blocked import BlockedContraction
from tofuse.ir.graph import Graph, show_graph
from tofuse.ir.kernel import Kernel
from tofuse.ir.line_reader import read_lines, split_block
from tofuse.ir.nest import Nest
from tofuse.ir.parse_blocked import parse_blocked
from tofuse.ir.parse_graph import parse_graph
from tofuse.ir.parse_kernel import parse_kernel
from tofuse.ir.parse_nest import parse_nest
from tofuse.ir.parse_plan import parse_plan
from tofuse.ir.parse_product_chain import parse_chain
from tofuse.ir.parse_tile import parse_tile
from tofuse.ir.plan import Plan
from tofuse.ir.product_chain import ProductChain
from tofuse.ir.rules import Reason
from tofuse.ir.schedule import ScheduledKernel, Target
from tofuse.ir.tile import GpuTarget, TileProgram
from tofuse.ir.verify_nest import verify_nest
from tofuse.ir.verify_plan import verify_plan
from tofuse.ir.verify_tile import verify_tile
from tofuse.ops.check_graph import check_graph
from tofuse.ops.check_kernel import check_kernel
from tofuse.passes.contract_products import contract_products
from tofuse.passes.reroll.reroll import reroll
from tofuse.plan.arena import allocate_arena
from tofuse.plan.buffer_reuse import reuse_buffers
from tofuse.plan.fold_views import fold_views
from tofuse.plan.insert_releases import insert_releases
from tofuse.schedule.schedule_legality import Unschedulable

Program = Union[  # noqa: UP007
    Graph, Partition, Kernel, Nest, BlockedContraction, ProductChain, TileProgram, Plan
]
P = TypeVar("P", bound=Program)
LEVELS: dict[type, str] = {
    Graph: "graph",
    Partition: "partition",
    Kernel: "kernel",
    Nest: "nest",
    BlockedContraction: "blocked contraction",
    ProductChain: "product chain",
    TileProgram: "tile program",
    Plan: "plan",
}


@dataclass(frozen=True, eq=False)
class Pass:
    """A pass over programs of one level; a lowering returns programs of another one."""

    name: str
    level: str
    summary: str
    run: Callable[[Program], Sequence[Program]]


def parse_program(text: str) -> Program:
    """Parse a program of any level. Raises ParseError, and VerifyError if it is none."""
    program = _parser_of(text)(text)
    verify(program)
    return program


def _parser_of(text: str) -> Callable[[str], Program]:
    """Return the parser of the level that a text begins as."""
    lines = read_lines(text)
    if not lines:
        raise ParseError("the text is empty")
    word = lines[0].peek()
    _, rest = split_block(lines)
    if word == "plan":
        return parse_plan
    if word != "kernel":
        return parse_partition if rest else parse_graph
    if not rest:
        return parse_kernel
    if rest[0].peek() == "blocked":
        return parse_blocked
    if rest[0].peek() == "chain":
        return parse_chain
    return parse_nest if rest[0].peek() == "nest" else parse_tile


def show_program(program: Program) -> str:
    """Return the text of a program, which `parse_program` accepts."""
    match program:
        case Graph():
            return show_graph(program)
        case Partition():
            return show_partition(program)
        case _:
            return repr(program)


def verify(program: Program) -> None:
    """Raise VerifyError if a program is invalid."""
    match program:
        case Graph():
            check_graph(program)
        case Kernel():
            check_kernel(program)
        case Nest():
            check_kernel(program.kernel)
            verify_nest(program)
        case BlockedContraction() | ProductChain():
            check_kernel(program.kernel)
            for nest in program.nests:
                check_kernel(nest.kernel)
                verify_nest(nest)
        case TileProgram():
            for kernel in (program.kernel, *(nest.kernel for nest in program.nests)):
                check_kernel(kernel)
            verify_tile(program)
        case Plan():
            verify_plan(program)


def passes_by_level(target: Target, gpu: GpuTarget) -> list[Pass]:
    """Return the passes over all levels on a target, with default cache sizes."""
    oracle = cost_oracle(target, default_machine(target.threads, target.lanes))
    graph_passes = dict.fromkeys((*FIRST_GRAPH_PASSES, *GRAPH_PASSES, *LAST_GRAPH_PASSES))
    return [
        _pass(Graph, reroll),
        *(_pass(Graph, p) for p in graph_passes),
        _pass(Graph, run_graph_passes),
        _pass(Graph, _contract_all_products, contract_products),
        _pass(Graph, partial(eliminate_concats, costs_of=oracle.costs_of), eliminate_concats),
        _pass(Graph, partial(split_reductions, costs_of=oracle.costs_of), split_reductions),
        *(_pass(Graph, partial(_run_view_pass, p), p) for p in VIEW_PASSES),
        _pass(Graph, partial(fuse, oracle=oracle, config=make_config({})), fuse),
        _pass(Partition, fold_epilogues),
        _pass(Partition, overlap_collectives),
        _pass(Partition, lower_regions),
        *(_pass(Kernel, p) for p in KERNEL_PASSES),
        *(_pass(Kernel, partial(p, target=target), p) for p in CPU_KERNEL_PASSES),
        _pass(Kernel, partial(_schedule, target=target), build_nest),
        _pass(Kernel, partial(build_tiles, target=gpu), build_tiles),
        _pass(Nest, dead_statements),
        *(_pass(Nest, p) for p in NEST_PASSES),
        _pass(Plan, partial(reuse_buffers, alias_pairs={}), reuse_buffers),
        *(_pass(Plan, p) for p in (fold_views, insert_releases, allocate_arena)),
    ]


def run_passes(
    programs: Sequence[Program], names: Sequence[str], passes: Sequence[Pass]
) -> list[Program]:
    """Run the named passes, one after the other, over all programs; verify after each.

    Raises OptionError if there is no such pass over programs of a level.
    """
    found = list(programs)
    for name in names:
        found = [x for program in found for x in _find_pass(name, program, passes).run(program)]
        for program in found:
            try:
                verify(program)
            except VerifyError as error:
                raise VerifyError(f"after {name}: {error}") from error
    return found


def _find_pass(name: str, program: Program, passes: Sequence[Pass]) -> Pass:
    level = level_of(program)
    own = {p.name: p for p in passes if p.level == level}
    if name in own:
        return own[name]
    other = next((p.level for p in passes if p.name == name), None)
    why = f"{name} is a pass over a {other}, not a {level}" if other else f"no pass {name!r}"
    known = f"the passes over a {level}: {', '.join(own) or 'none'}"
    raise OptionError(f"{why}{did_you_mean(name, () if other else own, known)}")


def emit_program(program: Program, language: str, target: Target, gpu: GpuTarget) -> str:
    """Return the code of a scheduled kernel, or of a kernel that the heuristics schedule.

    Raises CompileError for programs of other levels.
    """
    if isinstance(program, Kernel):
        if language == "llvm":
            return _cpu(target).emit(_lower(program, target), exact=False)
        program = build_tiles(program, gpu)
    match program, language:
        case ((Nest() | BlockedContraction() | ProductChain()), "llvm"):
            return _cpu(target).emit(program, exact=False)
        case TileProgram(), "triton":
            return emit_triton(program)
    level = "nest" if language == "llvm" else "tile program"
    raise CompileError(
        f"{language} is the code of a kernel or {level}, not of a {level_of(program)}"
    )


def level_of(program: Program) -> str:
    """Return the name of a program's level."""
    return next(name for kind, name in LEVELS.items() if isinstance(program, kind))


def lower_regions(part: Partition) -> list[Kernel]:
    """Lower each region that is no library call to a kernel. Raises LoweringError."""
    memo, memrefs = LoweringMemo(KERNEL_PASSES), part.aliases.memrefs
    regions = [r for r in part.regions if not r.library]
    lowered = [memo.lower(r, memrefs, part.rounded) for r in regions]
    return [own_kernel(x, r) for x, r in zip(lowered, regions, strict=True)]


def _pass(
    kind: type[P],
    run: Callable[[P], Program | Sequence[Program]],
    function: Callable[..., object] | None = None,
) -> Pass:
    """Return a pass with the name and the summary of a function: of `run` if no other is given."""
    named: Callable[..., object] = function or run
    summary = (inspect.getdoc(named) or "").partition("\n")[0]

    def run_on(program: Program) -> Sequence[Program]:
        assert isinstance(program, kind)
        found = run(program)
        return found if isinstance(found, Sequence) else (found,)

    return Pass(named.__name__, LEVELS[kind], summary, run_on)


def _contract_all_products(graph: Graph) -> Graph:
    return contract_products(graph, {r for op in graph.ops for r in op.results})


def _run_view_pass(view_pass: ViewPass, graph: Graph) -> Graph:
    aliases = AliasAnalysis(graph)
    return view_pass(aliases.graph, aliases.memrefs)


def _schedule(kernel: Kernel, target: Target) -> Nest:
    return build_nest(kernel, choose_schedule(kernel, target), repeat_reductions=True)


def _lower(kernel: Kernel, target: Target) -> ScheduledKernel:
    """Return the nest or the blocks that the compiler makes of a kernel."""
    (call,) = _cpu(target).schedule([KernelRequest(kernel, lambda own: own)])
    if isinstance(call, Reason):
        raise Unschedulable(call)
    return call.scheduled


def _cpu(target: Target) -> Backend:
    machine = default_machine(target.threads, target.lanes)
    return cost_oracle(target, machine).backend("cpu")
