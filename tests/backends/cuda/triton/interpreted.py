"""Triton kernels in Triton's interpreter against the reference interpreter; see test_emit.py."""

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, assume, given, note, settings
from hypothesis import strategies as st

from tests.backends.cpu.schedule.test_build_nest import buffer_lengths
from tests.driver.test_codegen import assert_close, is_unstable, outputs, random_inputs
from tests.support.cases import Case, read_cases
from tests.support.evaluators import rejecting
from tests.support.extra_steps import EXTRA_STEPS
from tests.support.graphs import graphs
from tests.support.kernels import Buffers, kernel, random_buffers, run_interpreter
from tests.support.loops_text import assert_complete
from tests.support.numbers import TORCH_DTYPES, sizes_of
from tests.support.partition_runner import run_partition
from tests.support.tile_runner import run_tile_group, run_tiles
from tofuse.backends.cuda.schedule.build_tiles import build_tiles
from tofuse.backends.cuda.schedule.choose_tiling import DEFAULT_LIMITS, TilingLimits
from tofuse.driver.pipeline import partition, run_graph_passes
from tofuse.ir.dims import evaluate
from tofuse.ir.graph import show_graph
from tofuse.ir.kernel import Kernel
from tofuse.ir.rules import Reason
from tofuse.ir.tile import GpuTarget, TileGroup, TileProgram
from tofuse.ops.check_kernel import check_kernel
from tofuse.ops.table import ELEMENTARY
from tofuse.schedule.alias_legality import legal_tile_aliases
from tofuse.schedule.schedule_legality import Unschedulable

CASES = read_cases(Path(__file__).parents[1] / "schedule" / "build_tiles.txt")
SIZES = {"s0": 5, "s1": 37}
EXAMPLES = 10
MAX_ELEMENTS = 1 << 15  # Triton's interpreter runs one program instance after another


def program_of(case: Case) -> TileProgram | None:
    """Return the launches of a case; None if it has none."""
    head, _, text = case.before.partition("\n")
    try:
        return build_tiles(kernel(text), GpuTarget(int(head.split()[-1])))
    except Unschedulable:
        return None


def sizes_and_buffers(k: Kernel) -> tuple[dict[str, int], Buffers]:
    """Return the sizes of a kernel's symbols, and random buffers whose integers are indices."""
    sizes = {s: SIZES[s] for s in k.symbols}
    buffers = random_buffers(k, buffer_lengths(k, sizes), torch.Generator().manual_seed(5))
    return sizes, buffers | {n: t.abs() for n, t in buffers.items() if t.dtype is torch.int64}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_tile_program_cases(case: Case):
    program = program_of(case)
    if program is None:
        return
    sizes, buffers = sizes_and_buffers(program.kernel)
    for nest in program.nests:
        for b in nest.kernel.buffers:
            assert b.role in ("in", "out", "host")
        if not nest.partials:
            check_kernel(nest.kernel)
    want = run_interpreter(program.kernel, buffers, sizes, precise=True)
    for name, t in run_tiles(program, buffers, sizes).items():
        rtol = 8e-3 if t.dtype is torch.bfloat16 else 2e-4  # a rounding may differ
        torch.testing.assert_close(t, want[name], rtol=rtol, atol=2e-3)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_results_in_the_memory_of_operands(case: Case):
    program = program_of(case)
    if program is None or not program.kernel.axes:  # it writes one of two elements
        return
    sizes, buffers = sizes_and_buffers(program.kernel)
    want = run_tiles(program, buffers, sizes)
    names = [b.name for b in program.kernel.buffers]
    for pair in legal_tile_aliases(program):
        read, written = (names[n] for n in pair)
        if buffers[read].shape == buffers[written].shape:
            got = run_tiles(program, buffers, sizes, in_place=(read, written))
            torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)


POINTWISE = """kernel k(x: in f32, s: host f32, y: out f32) over i0:n0 sizes n0 {
  v0 = load x[i0] : f32
  v1 = load s[0] : f32
  v2 = mul v0 v1 of f32 : f32
  store y[i0] v2 : f32
}"""


@pytest.mark.parametrize("sizes", [(5,), (1, 5), (16, 2048, 1024), (3, 0, 1025, 7, 2)], ids=str)
def test_a_group_of_calls_that_differ_in_size(sizes: tuple[int, ...]):
    k = kernel(POINTWISE)
    program = build_tiles(k, GpuTarget(), bounds={"n0": max(sizes)})
    calls = [{"x": torch.randn(n), "s": torch.randn(1), "y": torch.empty(n)} for n in sizes]
    group = TileGroup(program, tuple((n,) for n in sizes))
    for own, got in zip(calls, run_tile_group(group, calls), strict=True):
        assert torch.equal(got["y"], own["x"] * own["s"])


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_group_of_equal_calls(case: Case):
    program = program_of(case)
    if program is None or program.kernel.symbols:
        return
    generator = torch.Generator().manual_seed(6)
    lengths = buffer_lengths(program.kernel, {})
    calls = [random_buffers(program.kernel, lengths, generator) for _ in range(3)]
    calls = [{n: t.abs() if t.dtype is torch.int64 else t for n, t in own.items()} for own in calls]
    for own, got in zip(calls, run_tile_group(TileGroup(program, ((),) * 3), calls), strict=True):
        want = run_tiles(program, own, {})
        torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)


@given(st.data())
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
def test_random_graphs(data: st.DataObject):
    graph = data.draw(graphs(extra_steps=EXTRA_STEPS))
    if data.draw(st.booleans()):
        graph = run_graph_passes(graph)
    assume(not is_unstable(graph))
    note(show_graph(graph))
    target = GpuTarget(data.draw(st.sampled_from((4, 132))))
    min_split = data.draw(st.sampled_from((1, 64, DEFAULT_LIMITS.min_split)))
    register_tile = data.draw(st.sampled_from((1, 16, DEFAULT_LIMITS.register_tile)))
    loop_block = data.draw(st.sampled_from((2, DEFAULT_LIMITS.loop_block)))
    exact = data.draw(st.booleans())  # else it is the text that users run
    limits = TilingLimits(
        register_tile=register_tile,
        register_row=register_tile,
        half_row=register_tile,
        unaligned_row=register_tile,
        loop_block=loop_block,
        loop_block_beside_whole=loop_block,
        min_split=min_split,
    )

    def reject(kernel: Kernel) -> Reason | None:
        try:
            build_tiles(kernel, target, limits)
        except Unschedulable as e:
            return e.reason
        return None

    def run(kernel: Kernel, buffers: Mapping[str, torch.Tensor], sizes: Mapping[str, int]):
        try:
            program = build_tiles(kernel, target, limits)
        except Unschedulable:
            return run_interpreter(kernel, buffers, sizes)
        note(repr(program))
        assert_complete(program)
        return run_tiles(program, buffers, sizes, exact)

    sizes = sizes_of(graph)
    if sizes:
        sizes |= {"s0": data.draw(st.sampled_from((3, 19, 70)))}
    assume(
        all(evaluate(r.type.numel, sizes) <= MAX_ELEMENTS for op in graph.ops for r in op.results)
    )
    inputs = random_inputs(graph, sizes, data.draw(st.integers(0, 3)))
    want = outputs(graph, inputs, sizes)
    part = partition(graph, rejecting(reject), exact=True)
    for a, b in zip(run_partition(part, inputs, sizes, run), want, strict=True):
        assert_close(a, b, repr(part))


def test_gather_index_out_of_range_raises():
    k = kernel(
        "kernel k(x: in f32, i: in i64, y: out f32) over i0:3 {\nv0 = load i[i0] : i64\n"
        "v1 = gather wrap x[0] by v0 * 2 below 4 : f32\nstore y[i0] v1 : f32\n}"
    )
    x, y = torch.arange(8.0), torch.empty(3)
    program = build_tiles(k, GpuTarget())
    good = run_tiles(program, {"x": x, "i": torch.tensor([0, -1, 3]), "y": y}, {})
    assert good["y"].tolist() == [0, 6, 6]
    for bad in (4, -5, 2**62):
        with pytest.raises(IndexError):
            run_tiles(program, {"x": x, "i": torch.tensor([0, bad, 3]), "y": y}, {})


@pytest.mark.parametrize("shape", [(3, 70), (2, 64), (5, 1), (4, 256), (1, 5000)])
@pytest.mark.parametrize("role", ["in", "host"])
@pytest.mark.parametrize("stream", ["9", "n0"])
def test_uniform_matches_reference(shape: tuple[int, int], role: str, stream: str):
    rows, cols = shape
    sizes = {} if stream == "9" else {stream: 9}
    declared = f" sizes {stream}" if sizes else ""
    k = kernel(
        f"kernel k(s: {role} i64, x: in f32, y: out f32) over i0:{rows} i1:{cols}{declared} {{\n"
        f"v0 = uniform s[i0][i1] of {cols} stream {stream} : f32\n"
        f"v1 = load x[i0] : f32\nv2 = add v0 v1 of f32 : f32\n"
        f"store y[({cols})*i0 + i1] v2 : f32\n}}"
    )
    buffers = {"s": torch.tensor([-5, 77]), "x": torch.zeros(rows), "y": torch.empty(rows * cols)}
    got = run_tiles(build_tiles(k, GpuTarget()), buffers, sizes)
    assert torch.equal(got["y"], run_interpreter(k, buffers, sizes)["y"])


@pytest.mark.parametrize("op", ["argmax", "argmin"])
@pytest.mark.parametrize("min_split", [1, 1 << 30])
def test_argmax_ties_and_nan(op: str, min_split: int):
    k = kernel(
        "kernel k(x: in f32, y: out i64) over i0:99 {\nv0 = load x[i0] : f32\n"
        f"v1 = reduce {op}<i0> v0 at [i0] : i64\nstore y[0] v1 : i64\n}}"
    )
    program = build_tiles(k, GpuTarget(4), TilingLimits(loop_block=16, min_split=min_split))
    assert len(program.nests) == (2 if min_split == 1 else 1)
    for positions in ([98], [7, 50], [40, 90, 97]):
        for value in (float("nan"), 30.0, -30.0):
            x = torch.randn(99, generator=torch.Generator().manual_seed(1))
            x[positions] = value
            buffers = {"x": x, "y": torch.empty(1, dtype=torch.int64)}
            got = run_tiles(program, buffers, {})["y"].item()
            assert got == getattr(torch, op)(x).item()


@pytest.mark.parametrize("dtype", ["f8e4m3", "f8e5m2"])
def test_fp8(dtype: str):
    k = kernel(
        f"kernel k(x: in f32, q: in {dtype}, y: out {dtype}, z: out f32, u: out f32) "
        "over i0:4096 {\n"
        f"v0 = load x[i0] : f32\nv1 = round_{dtype} v0 of f32 : f32\nv2 = load q[i0] : f32\n"
        f"store y[i0] v0 : {dtype}\nstore z[i0] v1 : f32\nstore u[i0] v2 : f32\n}}"
    )
    torch_type = TORCH_DTYPES[k.buffers[1].dtype]
    bits = torch.arange(-(2**31), 2**31, 2**20).to(torch.int32)
    x = torch.where(torch.arange(4096) % 2 == 0, bits, bits + 0x7FFF1).view(torch.float32)
    q = torch.arange(256).to(torch.uint8).repeat(16).view(torch_type)
    buffers = {"x": x, "q": q, "y": q, "z": x, "u": x}
    got = run_tiles(build_tiles(k, GpuTarget()), buffers, {})
    torch.testing.assert_close(got["u"], q.float(), rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(got["y"].float(), x.to(torch_type).float(), equal_nan=True)
    torch.testing.assert_close(got["z"], x.to(torch_type).float(), equal_nan=True)


HALF_RANGES = {"exp": (-80, 80), "sigmoid": (-80, 80), "tanh": (-12, 12), "erf": (-7, 7)}


@pytest.mark.parametrize("op", sorted(ELEMENTARY))
@pytest.mark.parametrize("half", ["bf16", "f16"])
def test_functions_for_half_precision(op: str, half: str):
    """Errors are at most an eighth of the rounding, and special values are as eager's."""
    bound = 2.0**-12 if half == "bf16" and op in ("sin", "cos") else 2.0**-15
    n = 1 << 14
    k = kernel(
        f"kernel k(x: in f32, y: out f32) over i0:{n} {{\nv0 = load x[i0] : f32\n"
        f"v1 = {op} v0 of f32 to {half} : f32\nstore y[i0] v1 : f32\n}}"
    )
    generator = torch.Generator().manual_seed(3)
    low, high = HALF_RANGES.get(op, (-1000, 1000))
    x = torch.rand(n, generator=generator) * (high - low) + low
    x[: n // 2] *= torch.exp2(-20 * torch.rand(n // 2, generator=generator))
    special = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, 1e-30, -1e-30, 3e6, 1e30])
    x[: len(special)] = special
    program = build_tiles(k, GpuTarget())
    got = run_tiles(program, {"x": x, "y": torch.empty(n)}, {}, exact=False)["y"]
    want = getattr(torch, op)(x.double())
    relative = ((got.double() - want) / want).abs()[len(special) :]
    assert float(relative.max()) <= bound
    torch.testing.assert_close(
        got[: len(special)], want[: len(special)].float(), rtol=bound, atol=0, equal_nan=True
    )
