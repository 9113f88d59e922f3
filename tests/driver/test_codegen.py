"""Machine code, interpreter and reference agree on partitioned random graphs."""

from collections.abc import Mapping

import torch
from hypothesis import HealthCheck, assume, given, note, settings
from hypothesis import strategies as st

from tests.support.evaluators import rejecting
from tests.support.extra_steps import HOST_STEPS
from tests.support.graphs import graphs
from tests.support.kernels import run_interpreter, run_nest
from tests.support.loops_text import assert_complete
from tests.support.numbers import TORCH_DTYPES, sizes_of
from tests.support.partition_runner import RunKernel, run_partition
from tofuse.backends.cpu.schedule.build_nest import build_nest
from tofuse.backends.cpu.schedule.choose_schedule import choose_schedule
from tofuse.backends.cpu.schedule.unroll_axes import unroll_axes
from tofuse.driver.pipeline import partition, run_graph_passes
from tofuse.graph_partition import Partition, show_partition
from tofuse.graph_partition.parse import parse_partition
from tofuse.ir.dims import evaluate
from tofuse.ir.graph import Graph, Scalar, Value, show_graph
from tofuse.ir.kernel import Kernel
from tofuse.ir.nest import Nest
from tofuse.ir.parse_kernel import parse_kernel
from tofuse.ir.rules import Reason
from tofuse.ir.schedule import Loop, Schedule, Target
from tofuse.ir.types import DType
from tofuse.ops.check_kernel import check_kernel
from tofuse.ops.reference import run_graph
from tofuse.schedule.alias_legality import legal_aliases
from tofuse.schedule.schedule_legality import Unschedulable

EXAMPLES = 120
INEXACT = {"sum", "pow"}  # two ways to compute these differ in the last bit, or in a zero's sign
DISCONTINUOUS = {
    "lt",
    "eq",
    "ne",
    "floor",
    "copysign",
    "div",
    "isnan",
    "sqrt",
    "logical_not",
    "amax",
}


def is_unstable(graph: Graph) -> bool:
    """Return whether a rounding error may grow: a discontinuous op follows an inexact one."""
    inexact: set[Value] = set()
    for op in graph.ops:
        if any(v in inexact for v in op.inputs):
            truncates = op.kind == "convert" and not op.result.dtype.is_float
            if op.kind in DISCONTINUOUS or truncates or op.result.dtype.is_reduced_float:
                return True
            inexact.add(op.result)
        roots = [x.value for x in op.operands if isinstance(x, Scalar) and x.value in (0.5, -0.5)]
        if op.kind == "pow" and roots:  # sqrt and rsqrt have other signs at zero
            return True
        if op.kind in ("amax", "amin", "scatter_reduce") or (
            op.kind in INEXACT and op.result.dtype.is_float
        ):
            inexact.add(op.result)
    return False


def partition_on_cpu(graph: Graph) -> Partition:
    target = Target(16, 2)

    def reject(kernel: Kernel) -> Reason | None:
        try:
            kernel = unroll_axes(kernel, target)
            build_nest(kernel, choose_schedule(kernel, target))
        except Unschedulable as e:
            return e.reason
        return None

    return partition(graph, rejecting(reject), exact=True)


def random_inputs(graph: Graph, sizes: Mapping[str, int], seed: int) -> dict[Value, torch.Tensor]:
    """Return small integers and multiples of 0.5, so that most arithmetic is exact."""
    generator = torch.Generator().manual_seed(seed)
    inputs = {}
    for v in graph.inputs:
        shape = [evaluate(d, sizes) for d in v.shape]
        whole = torch.randint(-5, 6, shape, generator=generator)
        x = whole / 2 if v.dtype.is_float else whole > 0 if v.dtype is DType.BOOL else whole
        inputs[v] = x.to(TORCH_DTYPES[v.dtype])
    return inputs


@st.composite
def schedules(draw, kernel: Kernel) -> Schedule:
    """Draw a loop order, tiles, parallel loops, lanes and unroll factor; many are unschedulable."""
    order = list(draw(st.permutations([a.name for a in kernel.axes])))
    loops = [Loop(a) for a in order]
    lanes = draw(st.sampled_from((1, 4, 8, 16)))
    tiled: bool = draw(st.booleans())
    if order and tiled:
        axis = draw(st.sampled_from(order))
        loops.insert(
            draw(st.integers(0, order.index(axis))), Loop(axis, draw(st.sampled_from((8, 16))))
        )
    parallel = draw(st.integers(0, min(2, max(0, len(loops) - 1))))
    return Schedule(tuple(loops), parallel, lanes, draw(st.sampled_from((1, 2, 4))))


def outputs(graph: Graph, inputs: Mapping[Value, torch.Tensor], sizes) -> list[torch.Tensor]:
    values = run_graph(graph, {v: x.clone() for v, x in inputs.items()}, sizes)
    return [values[v] for v in graph.outputs if v is not None]


@given(st.data())
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
def test_random_graphs(data: st.DataObject):
    graph = data.draw(graphs(extra_steps=HOST_STEPS))
    if data.draw(st.booleans()):
        graph = run_graph_passes(graph)
    assume(not is_unstable(graph))
    note(show_graph(graph))
    sizes = sizes_of(graph) | (
        {"s0": data.draw(st.sampled_from((3, 19, 70)))} if sizes_of(graph) else {}
    )
    inputs = random_inputs(graph, sizes, data.draw(st.integers(0, 3)))
    part = partition_on_cpu(graph)
    text = show_partition(part)
    assert show_partition(parse_partition(text)) == text

    def run_interpreted(kernel, buffers, sizes):
        check_kernel(kernel)
        assert repr(parse_kernel(repr(kernel))) == repr(kernel)
        return run_interpreter(kernel, buffers, sizes)

    def run_chosen_schedule(kernel, buffers, sizes):
        unrolled = unroll_axes(kernel, Target(4, 2))
        check_kernel(unrolled)
        nest = build_nest(unrolled, choose_schedule(unrolled, Target(4, 2)), repeat_reductions=True)
        return run_nest(nest, buffers, sizes, 2, contract=False)

    def run_random_schedule(kernel, buffers, sizes):
        want = run_interpreter(kernel, buffers, sizes)
        schedule = data.draw(schedules(kernel))
        try:
            nest = build_nest(kernel, schedule, repeat_reductions=data.draw(st.booleans()))
        except Unschedulable:
            return want
        assert_complete(nest)
        threads = data.draw(st.sampled_from((1, 3)))
        for shared in (None, *aliasable_buffers(nest, buffers)):
            got = run_nest(nest, buffers, sizes, threads, contract=False, shared=shared)
            for name, t in want.items():
                assert_close(got[name], t, f"{name} of {nest!r}, {shared} share memory")
        return want

    want = outputs(graph, inputs, sizes)
    runs: list[RunKernel] = [run_interpreted, run_chosen_schedule, run_random_schedule]
    for run in runs:
        got = run_partition(part, inputs, sizes, run)
        for a, b in zip(got, want, strict=True):
            assert_close(a, b, f"{run.__name__}\n{text}")


def aliasable_buffers(nest: Nest, buffers: Mapping[str, torch.Tensor]) -> list[tuple[str, str]]:
    """Return the pairs of an input and an output buffer of one shape that may share memory."""
    names = [b.name for b in nest.kernel.buffers]
    pairs = [(names[i], names[j]) for i, j in legal_aliases(nest)]
    return [(a, b) for a, b in pairs if buffers[a].shape == buffers[b].shape]


def assert_close(got: torch.Tensor, want: torch.Tensor, where: str) -> None:
    torch.testing.assert_close(got, want, equal_nan=True, msg=lambda m: f"{where}\n{m}")
