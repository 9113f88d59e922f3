"""Index-set splitting of loops over a concat: where they are cut, and that elements are right."""

import pytest
import torch

from tests.support.kernels import kernel, run_interpreter, run_llvm, schedules
from tofuse.backends.cpu.llvm.emit import emit
from tofuse.backends.cpu.llvm.index_set_split import Segment, split_index_set
from tofuse.backends.cpu.schedule.build_nest import build_nest
from tofuse.ir.kernel import Kernel
from tofuse.ir.nest import For
from tofuse.ir.parse_schedule import parse_schedule


def concat_kernel(rows: int, first: int, second: int) -> Kernel:
    buffers, whole = "x0: in f32, x1: in f32, y2: out f32", first + second
    return kernel(f"""kernel k({buffers}) over i0:{rows} i1:{whole} {{
  v0 = in_range [i1] {first} {whole} : b1
  v1 = load x1[({second})*i0 + i1 + -{first}] if v0 : f32
  v2 = in_range [i1] 0 {first} : b1
  v3 = load x0[({first})*i0 + i1] if v2 : f32
  v4 = where v2 v3 v1 of f32 : f32
  store y2[({whole})*i0 + i1] v4 : f32
}}""")


def outer_loop(k: Kernel, unroll: int) -> For:
    nest = build_nest(k, parse_schedule(f"order i0 i1; parallel 1; vector 16; unroll {unroll}"))
    (node,) = nest.phases[0].body
    assert isinstance(node, For)
    return node


def segments_of(k: Kernel, unroll: int, extent: int, step: int) -> list[Segment]:
    return split_index_set(outer_loop(k, unroll).body, "i1", extent, step, {})


def test_cuts_are_multiples_of_the_vector_group():
    first, second = {"v0": False, "v2": True}, {"v0": True, "v2": False}
    assert segments_of(concat_kernel(3, 64, 32), 2, 96, 32) == [
        Segment(0, 64, first),
        Segment(64, 96, second),
    ]
    assert segments_of(concat_kernel(3, 40, 60), 1, 100, 16) == [
        Segment(0, 32, first),
        Segment(32, 48, {}),
        Segment(48, 100, second),
    ]
    assert segments_of(concat_kernel(3, 3, 4), 1, 7, 16) == [Segment(0, 7, {})]


@pytest.mark.parametrize("sizes", [(64, 32), (32, 64), (40, 60), (3, 4), (1, 130), (128, 1)])
def test_concat_along_vector_axis(sizes):
    k = concat_kernel(5, *sizes)
    x, y = torch.randn(5, sizes[0]), torch.randn(5, sizes[1])
    buffers = {"x0": x.flatten(), "x1": y.flatten(), "y2": torch.empty(5 * sum(sizes))}
    expected = run_interpreter(k, buffers, {})["y2"]
    assert torch.equal(expected.view(5, -1), torch.cat([x, y], 1))
    for schedule in schedules(k, "order i0 i1; parallel 1; vector 16; unroll 4"):
        assert torch.equal(run_llvm(k, schedule, buffers, {})["y2"], expected), schedule


def test_unaligned_operands_get_separate_loops():
    """And so do the vectors that span two operands."""
    size, count, result = 170, 6, "0.0"
    lines = []
    for n in range(count):
        lines += [
            f"  g{n} = in_range [i1] {size * n} {size * n + size} : b1",
            f"  v{n} = load x{n}[({size})*i0 + i1 + {-size * n}] if g{n} : f32",
            f"  z{n} = where g{n} v{n} {result} of f32 : f32",
        ]
        result = f"z{n}"
    lines.append(f"  store y[({size * count})*i0 + i1] {result} : f32")
    buffers = ", ".join([*(f"x{n}: in f32" for n in range(count)), "y: out f32"])
    body = "\n".join(lines)
    k = kernel(f"kernel k({buffers}) over i0:3 i1:{size * count} {{\n{body}\n}}")
    assert len(segments_of(k, 1, size * count, 16)) == 2 * count - 1
    inputs = {f"x{n}": torch.randn(3, size) for n in range(count)}
    flat = {n: x.flatten() for n, x in inputs.items()} | {"y": torch.empty(3 * size * count)}
    for schedule in schedules(k, "order i0 i1; parallel 1; vector 16; unroll 2"):
        got = run_llvm(k, schedule, flat, {})["y"]
        assert torch.equal(got.view(3, -1), torch.cat(list(inputs.values()), 1)), schedule


def test_no_masks_for_operands_of_whole_vectors():
    text = emit(
        build_nest(concat_kernel(5, 64, 32), schedules(concat_kernel(5, 64, 32), lanes=[16])[0])
    )
    assert "masked.load" not in text and "icmp sge" not in text


def flat_kernel(cut: int, length: int) -> Kernel:
    """Return a kernel that concats two vectors, and sums their products with their squares."""
    return kernel(f"""kernel k(x0: in f32, x1: in f32, y2: out f32, y3: out f32) over i0:{length} {{
  v0 = in_range [i0] {cut} {length} : b1
  v1 = load x1[i0 + -{cut}] if v0 : f32
  v2 = in_range [i0] 0 {cut} : b1
  v3 = load x0[i0] if v2 : f32
  v4 = where v2 v3 v1 of f32 : f32
  v5 = mul v4 v4 of f32 : f32
  v6 = reduce sum<i0> v5 : f32
  store y2[i0] v4 : f32
  store y3[0] v6 : f32
}}""")


@pytest.mark.parametrize("length", [64, 4097, 8192, 12_345])
def test_tiles_of_a_flat_loop(length):
    x = torch.randn(length)
    for cut in {c for c in (1, 17, 64, length // 2, length - 65, length - 3) if 0 < c < length}:
        k = flat_kernel(cut, length)
        buffers = {"x0": x[:cut], "x1": x[cut:], "y2": torch.empty(length), "y3": torch.empty(1)}
        tiled = [f"order i0/{t} i0; parallel 1; vector 16; unroll 4" for t in (64, 1024, 4096)]
        for schedule in schedules(k, *tiled, "order i0/48 i0; parallel 1; vector 16; unroll 2"):
            got = run_llvm(k, schedule, buffers, {}, threads=2)
            assert torch.equal(got["y2"][:length], x), schedule
            torch.testing.assert_close(got["y3"][0], (x * x).sum())


def test_tiles_load_whole_vectors_beside_the_cut():
    k = flat_kernel(64, 8192)
    schedule = parse_schedule("order i0/4096 i0; parallel 1; vector 16; unroll 4")
    lines = emit(build_nest(k, schedule)).splitlines()
    assert sum("= load <16 x float>" in line and "align 4" in line for line in lines) >= 8


def stack_kernel(store_index: str, operands: int) -> Kernel:
    """Return a kernel that stacks operands along an outer axis, each with its own arithmetic."""
    buffers = ", ".join([*(f"x{k}: in f32" for k in range(operands)), f"y{operands}: out f32"])
    lines, result = [], "0.0"
    for k in range(operands):
        lines += [
            f"  g{k} = in_range [i1] {k} {k + 1} : b1",
            f"  v{k} = load x{k}[(40)*i0 + i2] if g{k} : f32",
            f"  w{k} = mul v{k} {k + 2}.0 of f32 : f32",
            f"  z{k} = where g{k} w{k} {result} of f32 : f32",
        ]
        result = f"z{k}"
    body = "\n".join([*lines, f"  store y{operands}[{store_index}] {result} : f32"])
    return kernel(f"kernel k({buffers}) over i0:3 i1:{operands} i2:40 {{\n{body}\n}}")


@pytest.mark.parametrize("operands", [2, 4, 6, 9])
@pytest.mark.parametrize("outer", [True, False])
def test_stack_along_outer_axis(operands, outer):
    store_index = "(120)*i1 + (40)*i0 + i2" if outer else f"({40 * operands})*i0 + (40)*i1 + i2"
    k, x = stack_kernel(store_index, operands), torch.randn(9, 3, 40)
    buffers = {f"x{n}": x[n].flatten() for n in range(operands)}
    buffers[f"y{operands}"] = torch.empty(operands * 120)
    orders = [f"order {o}; parallel {p}; vector 16; unroll 1" for o, p in ORDERS]
    for schedule in schedules(k, *orders):
        got = run_llvm(k, schedule, buffers, {}, threads=2)
        for name, want in run_interpreter(k, buffers, {}).items():
            assert torch.equal(got[name], want), schedule


ORDERS = [("i1 i0 i2", 1), ("i1 i0 i2", 2), ("i0 i1 i2", 1), ("i0 i2 i1", 1), ("i1 i0 i2/16 i2", 2)]


def test_stack_along_outer_axis_has_no_masks():
    k = stack_kernel("(120)*i1 + (40)*i0 + i2", 4)
    text = emit(build_nest(k, parse_schedule("order i1 i0 i2; parallel 1; vector 8; unroll 1")))
    assert "masked.load" not in text
